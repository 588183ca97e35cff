"""Ways to guess tokens ahead, as the doctor weighs them."""

from dataclasses import dataclass
from math import prod

from pagoda.planner.devices.guess_speed import Gain
from pagoda.planner.devices.speed import Range

COPYING = ("suffix", "ngram")
# A way that gains less is not worth a flag.
_WORTH_IT = 1.1


@dataclass(frozen=True)
class Way:
    """One way to guess."""

    method: str
    flags: str
    """What to type; empty for what is in use."""
    most: int
    """Tokens guessed at a time, at most."""
    memory: int = 0
    """Bytes more than without guesses, the KV cache of the longest request included."""
    gains: tuple[Gain, ...] = ()
    """On the slowest and the fastest that the device may be; empty where no speed is known."""
    decode_range: Range | None = None
    """Tokens a second of one request; of a way that copies, while a reply repeats what stood in
    the request or in recent replies."""
    problem: str = ""
    """Why it is not in use though asked for, or cannot be."""

    @property
    def copies(self) -> bool:
        return self.method in COPYING

    @property
    def times(self) -> float:
        """The middle of its gains; 0 where none is known."""
        return prod(gain.times for gain in self.gains) ** (1 / len(self.gains)) if self.gains else 0


@dataclass(frozen=True)
class Guesses:
    method: str
    """In use with the flags as they are."""
    why: str
    ways: tuple[Way, ...]

    @property
    def best(self) -> Way | None:
        """The way to take: the fastest of those that help with any text, else one that copies."""
        able = [way for way in self.ways if not way.problem and way.times >= _WORTH_IT]
        return max(able, key=lambda way: (not way.copies, way.times, not way.flags), default=None)
