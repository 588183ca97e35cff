"""Which steps are captured on a GPU."""

from collections.abc import Sequence
from typing import NamedTuple

from pagoda.planner.attention import AttentionChoice
from pagoda.planner.resolved import ResolvedConfig

_USUAL_REQS = 32


class CapturedSize(NamedTuple):
    """A decode step that is captured; smaller ones are padded to it."""

    requests: int
    tokens: int
    """One of each request, and guesses of some."""

    @property
    def samples(self) -> int:
        """Rows of logits."""
        return self.tokens


class MixedSize(NamedTuple):
    """A step with prompts, and streams beside them; smaller ones are padded to it."""

    requests: int
    tokens: int
    samples: int
    """Rows of logits: of the last token of each request, at most."""


StepSize = CapturedSize | MixedSize


def step_size(requests: int, tokens: int, samples: int | None) -> StepSize:
    """`samples`: of a step with prompts."""
    if samples is None:
        return CapturedSize(requests, tokens)
    return MixedSize(requests, tokens, samples)


_MOST_MIXED = 512
"""Tokens: with more, a GPU computes for longer than the host takes to launch what it computes."""
_FEW_REQS = 16
"""Requests: with no more, few rows of logits are computed for nobody."""


def mixed_sizes(max_num_reqs: int, max_num_batched_tokens: int) -> tuple[MixedSize, ...]:
    """The steps with prompts that are captured, those of fewest tokens first."""
    counts = sorted({min(_FEW_REQS, max_num_reqs), max_num_reqs})
    most = min(_MOST_MIXED, max_num_batched_tokens)
    # Padding adds a quarter at most from 64 tokens on: each costs as much as one of somebody.
    steps = [16, 32, 48, *(part * 1 << power for power in range(4, 10) for part in (4, 5, 6, 7))]
    numbers = [*(number for number in steps if number < most), most]
    return tuple(MixedSize(count, number, count) for number in numbers for count in counts)


def captured_sizes(
    max_num_reqs: int, most_guesses: int = 0, most_in_step: int = 0
) -> tuple[CapturedSize, ...]:
    """The decode steps that are captured: without guesses, then with those of up to
    `most_guesses` tokens a request and `most_in_step` in all. With more requests than that, hardly
    one has a guess."""
    counts = _spread(max_num_reqs)
    sizes = [CapturedSize(count, count) for count in counts]
    for count in counts:
        if count <= most_in_step:
            tokens = _spread(count + min(count * most_guesses, most_in_step))
            sizes += [CapturedSize(count, number) for number in tokens if number > count]
    return tuple(sizes)


def usual_sizes(sizes: Sequence[StepSize]) -> tuple[CapturedSize, ...]:
    """Those that are captured before an engine is ready, the smallest first: one token of each of
    up to `_USUAL_REQS` requests, and the guesses of one request."""
    usual = [
        size
        for size in sizes
        if isinstance(size, CapturedSize)
        and size.requests <= (_USUAL_REQS if size.tokens == size.requests else 1)
    ]
    return tuple(sorted(usual, key=lambda size: (size.tokens, size.requests)))


def sizes_to_capture(config: ResolvedConfig, attention: AttentionChoice) -> tuple[StepSize, ...]:
    """Those of an engine."""
    guesses, scheduler = config.speculation, config.scheduler
    most = guesses.most if attention.captures_guesses else 0
    decodes = captured_sizes(scheduler.max_num_seqs, most, guesses.most_in_step)
    if not attention.captures_prompts:
        return decodes
    return (*decodes, *mixed_sizes(scheduler.max_num_seqs, scheduler.max_num_batched_tokens))


def _spread(most: int) -> list[int]:
    """Numbers up to `most`, each twice the one before it: from 16 on with one between, so that
    padding adds less than a half."""
    doubled = [1 << power for power in range(most.bit_length())]
    between = [3 * number // 2 for number in doubled if number >= 16]
    return [*sorted(number for number in {*doubled, *between} if number < most), most]
