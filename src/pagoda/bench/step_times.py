"""`bench step-times`: what steps of each size take on this machine, for `pagoda simulate`."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagoda.base.errors import ConfigError
from pagoda.config.option import Options, option
from pagoda.planner.devices.step_table import StepPoint, doubled

if TYPE_CHECKING:
    from pagoda.bench.inprocess import BenchEngine

_SHORT = 32
_FEWEST_PROMPT_TOKENS = 2
# Requests that come together may start in steps of their own: so many at most.
_STARTING_STEPS = 8


@dataclass(frozen=True)
class StepTimesConfig(Options):
    """Which steps are timed: powers of two, up to these."""

    requests: int = option(16, "Requests that decode at once.", bounds=(1, 4096))
    prompt_tokens: int = option(512, "Tokens of a step with a prompt.", bounds=(2, 1 << 16))
    context: int = option(1024, "Tokens behind which they are timed, too.", bounds=(64, 1 << 20))
    steps: int = option(16, "Steps of each size; the median counts.", bounds=(2, 10**6))
    rounds: int = option(
        3, "So often; the least median of each size counts, for other programs only add.",
        bounds=(1, 1000),
    )  # fmt: skip

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return self.context + max(self.prompt_tokens, self.steps + _STARTING_STEPS) + 1


def step_times(
    engine: "BenchEngine", config: StepTimesConfig, progress: Callable[[int, int], None]
) -> list[StepPoint]:
    """Time steps of an engine with a prefix cache, in which contexts are kept, and whose steps
    take as many tokens of a prompt as they may."""
    contexts = [engine.random_prompt(config.context) for _ in range(config.requests)]
    for context in contexts:
        engine.run([context], [1])
    none: list[int] = []
    sizes = [
        *((_decode, count, behind) for count in doubled(1, config.requests)
          for behind in ([engine.random_prompt(_SHORT) for _ in contexts], contexts)),
        *((_prompt, tokens, [behind])
          for tokens in doubled(_FEWEST_PROMPT_TOKENS, config.prompt_tokens)
          for behind in (none, contexts[0])),
    ]  # fmt: skip
    rounds: list[list[StepPoint]] = []
    for number in range(config.rounds):
        rounds.append([])
        for time, count, behind in sizes:
            rounds[-1].append(time(engine, config.steps, count, behind))
            progress(number * len(sizes) + len(rounds[-1]), config.rounds * len(sizes))
    return [min(points, key=lambda point: point.seconds) for points in zip(*rounds, strict=True)]


def _decode(
    engine: "BenchEngine", num_steps: int, count: int, contexts: list[list[int]]
) -> StepPoint:
    """Steps with a token of each of `count` requests. ConfigError where they do not run at once."""
    length = num_steps + _STARTING_STEPS
    steps = engine.steps(contexts[:count], [length] * count)
    # The first in which each gets a token reads the last prompt.
    alike = [seconds for tokens, seconds in steps if tokens == count][1:]
    if len(alike) < num_steps:
        raise ConfigError(
            f"{count} requests do not run at once here. Lower --requests or --context, or raise "
            "--max-num-seqs or --kv-cache-memory-bytes."
        )
    attended = len(contexts[0]) + 1 + (len(alike) + 1) / 2
    return StepPoint("decode", count, attended, statistics.median(alike))


def _prompt(
    engine: "BenchEngine", num_steps: int, tokens: int, contexts: list[list[int]]
) -> StepPoint:
    """Steps that read so many tokens of a prompt behind cached ones. ConfigError where it takes
    several."""
    (context,), before = contexts, engine.stats().num_steps
    seconds = [
        engine.run([[*context, *engine.random_prompt(tokens)]], [1]) for _ in range(num_steps)
    ]
    if engine.stats().num_steps - before != num_steps:
        raise ConfigError(
            f"{tokens} tokens of a prompt behind {len(context)} are not one step here. Lower "
            "--prompt-tokens, or raise --max-num-batched-tokens or --kv-cache-memory-bytes."
        )
    return StepPoint("prompt", tokens, len(context) + (tokens + 1) / 2, statistics.median(seconds))
