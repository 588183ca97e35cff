"""Where the time of steps goes."""

from dataclasses import dataclass, field


@dataclass
class StepTimes:
    """Seconds since start, per part of a step: `media` (encoding pictures), `host`, `forward`,
    `sample`, and of the latter `masks`, what grammars took.

    On a GPU `forward` ends when the work is queued; waiting for it shows in `sample`.
    """

    steps: int = 0
    tokens: int = 0
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("media", "host", "forward", "sample", "masks"), 0.0)
    )

    def add(self, part: str, seconds: float) -> None:
        self.seconds[part] += seconds
