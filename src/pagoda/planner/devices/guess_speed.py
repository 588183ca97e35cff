"""How much faster replies come where tokens are guessed and verified several in a step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

CHANCE = 0.8
"""Assumed: how often the first guess is right, and each further one where those before it were.
A head and a copy that goes on were seen to do as well (docs/benchmarks/cpu.md)."""
MOST_COPIED = 8
"""Copied tokens that a step is taken to verify, at most."""


@dataclass(frozen=True)
class Gain:
    guesses: int
    """Verified in a step, as many as pay; 0 where none do."""
    times: float
    """Tokens a second as a multiple of those without guesses."""


def tokens_of_step(guesses: int) -> float:
    """That a step gives on average: its own, and the guesses up to the first wrong one."""
    return sum(CHANCE**place for place in range(guesses + 1))


def best_gain(seconds: Callable[[int], float], most: int, drafting: float = 0.0) -> Gain:
    """The number of guesses, up to `most`, that gives the most tokens a second. Each takes
    `drafting` seconds to make, and a step with `rows` tokens of a request `seconds(rows)`."""
    plain = seconds(1)

    def gain(guesses: int) -> Gain:
        step = seconds(1 + guesses) + guesses * drafting
        return Gain(guesses, tokens_of_step(guesses) * plain / step)

    return max(map(gain, range(most + 1)), key=lambda found: found.times)


def gained(decode: Sequence[float], gains: Sequence[Gain]) -> tuple[float, float]:
    """The range of tokens a second from that without guesses: each end with its own gain, or both
    with the only one."""
    low, high = decode[0] * gains[0].times, decode[-1] * gains[-1].times
    return low, high
