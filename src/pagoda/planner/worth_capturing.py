"""Which steps are captured on a GPU, and what they take of its memory."""

from bisect import bisect_left

from pagoda.base.facts import DeviceFacts
from pagoda.base.words import say
from pagoda.planner.attention import AttentionChoice
from pagoda.planner.captured import PADDING, CapturedSize, captured_sizes, mixed_sizes
from pagoda.planner.devices.roofline import GpuPart, prompt_seconds
from pagoda.planner.memory.plan import captured_bytes
from pagoda.planner.reason import Reason
from pagoda.planner.resolved import ResolvedConfig

# Launches that take a smaller share of the work's time are not worth a graph.
_NOTABLE = 0.1
# Of a GPU's memory, which keys and values want more.
_MOST_MEMORY = 1 / 16


def sizes_worth_capturing(
    config: ResolvedConfig,
    part: GpuPart,
    attention: AttentionChoice,
    facts: DeviceFacts,
    reasons: list[Reason],
) -> tuple[CapturedSize, ...]:
    """Decode steps; and those with prompts, as long as launching these op by op takes a notable
    share of their time, and no less than padding may add, and as the memory of all is a small share
    of the GPU's."""
    guesses, scheduler = config.speculation, config.scheduler
    most = guesses.most if attention.captures_guesses else 0
    decodes = captured_sizes(scheduler.max_num_seqs, most, guesses.most_in_step)
    if not attention.captures_prompts:
        return decodes
    mixed = mixed_sizes(scheduler.max_num_seqs, scheduler.max_num_batched_tokens)

    def gains(size: CapturedSize) -> bool:
        computing, launching = prompt_seconds(part, size.tokens)
        padded, _ = prompt_seconds(part, round((1 + PADDING) * size.tokens))
        return launching >= max(_NOTABLE * computing, padded - computing)

    def is_too_large(count: int) -> bool:
        sizes = (*decodes, *mixed[:count])
        nbytes = captured_bytes(part.spec, config.model.dtype, sizes, part.ranks)
        return nbytes > _MOST_MEMORY * facts.total_memory

    worth = max((place for place, size in enumerate(mixed, 1) if gains(size)), default=0)
    kept = bisect_left(range(1, worth + 1), True, key=is_too_large)
    tokens = mixed[kept - 1].tokens if kept else 0
    why = say(
        "tokens of a step; with more, launching takes little beside computing on the {gpu}",
        gpu=part.gpu.name,
    )
    if kept < worth:
        why = say("tokens of a step; as many as a sixteenth of the GPU's memory has room for")
    elif kept == len(mixed):
        why = say("tokens of a step; all that a step may have")
    reasons.append(Reason("captured_prompts", tokens, why))
    return (*decodes, *mixed[:kept])
