"""What steps take on a device, from points that were measured or foretold."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from pagoda.base.errors import ConfigError
from pagoda.core.plan import StepPlan

Floats = npt.NDArray[np.float64]


class StepPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step whose time is known."""

    kind: Literal["decode", "prompt"]
    """A token of each request, or tokens of a prompt."""
    tokens: int
    context: float
    """Keys that each of its tokens attends to, on average, its own included."""
    seconds: float


class Beside(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How steps fare while several engines compute on one machine."""

    engines: int
    """So many compute at once, this one included."""
    decode: float
    """A step without prompts takes so many times as long as alone,"""
    prompt: float
    """and one with a prompt."""


class Served(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the server and its client add to an engine, all in seconds."""

    request: float = 0.0
    """From a request to its first token, beyond the step."""
    step: float = 0.0
    """Each step, beyond what it takes where nobody is told of its tokens."""
    token_cpu: float = 0.0
    """CPU time of the server and the client for a token,"""
    request_cpu: float = 0.0
    """and for a request."""


class StepProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of points, as `pagoda bench step-times` writes it."""

    model: str
    device: str
    points: list[StepPoint]
    cores: int = 0
    """CPUs of the machine; 0: not known, and nothing is shared."""
    threads: int = 0
    """CPUs that an engine computes with."""
    beside: list[Beside] = []
    served: Served = Served()


def read_profile(path: Path) -> StepProfile:
    """Raises ConfigError for a file that is none."""
    advice = "write one with `pagoda bench step-times MODEL --output FILE`"
    try:
        profile = msgspec.json.decode(path.read_bytes(), type=StepProfile)
    except OSError as error:
        raise ConfigError(f"The profile {path} cannot be read ({error}); {advice}.") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not a profile of step times ({error}); {advice}.") from error
    if any(min(point.tokens, point.context, point.seconds) <= 0 for point in profile.points):
        raise ConfigError(f"{path} has a step without tokens, context or time; {advice}.")
    served = profile.served
    if min(served.request, served.step, served.token_cpu, served.request_cpu) < 0 or any(
        one.engines < 1 or min(one.decode, one.prompt) <= 0 for one in profile.beside
    ):
        raise ConfigError(f"{path} has a negative time of a server or of engines; {advice}.")
    missing = {"decode", "prompt"} - {point.kind for point in profile.points}
    if missing:
        raise ConfigError(f"{path} has no {' and no '.join(sorted(missing))} steps; {advice}.")
    return profile


def write_profile(path: Path, profile: StepProfile) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(profile)) + b"\n")


class StepTable:
    """Seconds of any step, between points in straight lines: by context, then by tokens.

    Beyond the largest the last line goes on, below the smallest it stays. A step with prompts and
    streams takes what its prompts would with as many tokens, and what attending to the streams'
    contexts adds to a step of theirs.
    """

    def __init__(self, points: Sequence[StepPoint]):
        """There must be one of each kind."""
        self._decodes = _Surface(point for point in points if point.kind == "decode")
        self._prompts = _Surface(point for point in points if point.kind == "prompt")

    def decode_seconds(self, requests: int, pairs: float) -> float:
        """Seconds of a step with a token of each request; `pairs`: keys that all attend to."""
        return self._decodes.seconds(requests, pairs)

    def decodes_seconds(self, requests: int, pairs: float, count: int) -> Floats:
        """Seconds of `count` such steps in a row, each with a key more for each request."""
        return self._decodes.growing(requests, pairs, count)

    def prompt_seconds(self, tokens: int) -> float:
        """Seconds of a step that reads a prompt of so many tokens from its start."""
        return self._prompts.seconds(tokens, tokens * (tokens + 1) / 2)

    def seconds(self, plan: StepPlan) -> float:
        """Seconds that a plan's step takes."""
        lens, tokens = plan.lens, int(plan.num_tokens)
        streams, attended = len(lens), int(np.add.reduce(plan.starts)) + len(lens)
        if tokens == streams:
            return self.decode_seconds(streams, attended)
        pairs = 0.0
        for place in (lens > 1).nonzero()[0].tolist():
            start, length = int(plan.starts[place]), int(lens[place])
            pairs += length * (start + (length + 1) / 2)
            streams -= 1
            attended -= start + 1
        seconds = self._prompts.seconds(tokens, pairs)
        if streams:
            seconds += self._decodes.added(streams, attended)
        return seconds


def doubled(first: int, last: int) -> list[int]:
    """`first`, twice that and so on, and `last`: sizes of which a table is made."""
    sizes = []
    while first < last:
        sizes.append(first)
        first *= 2
    return [*sizes, last]


class _Surface:
    """Seconds over tokens and context."""

    def __init__(self, points: Iterable[StepPoint]):
        rows: dict[int, dict[float, float]] = {}
        for point in points:
            rows.setdefault(point.tokens, {})[point.context] = point.seconds
        self._tokens = sorted(rows)
        self._rows = [_Line(sorted(rows[tokens].items())) for tokens in self._tokens]
        self._lines: dict[int, _Line] = {}

    def seconds(self, tokens: int, pairs: float) -> float:
        return self._line(tokens).at(pairs / tokens)

    def growing(self, tokens: int, pairs: float, count: int) -> Floats:
        """Seconds of `count` steps, each with `tokens` pairs more than the one before: what
        `seconds` says of each."""
        return self._line(tokens).at_each((pairs + tokens * np.arange(count)) / tokens)

    def added(self, tokens: int, pairs: float) -> float:
        """What a context adds to the least that is known."""
        line = self._line(tokens)
        return max(0.0, line.at(pairs / tokens) - line.values[0])

    def _line(self, tokens: int) -> "_Line":
        """The line of steps with so many tokens."""
        if tokens not in self._lines:
            self._lines[tokens] = self._make_line(tokens)
        return self._lines[tokens]

    def _make_line(self, tokens: int) -> "_Line":
        known, rows = self._tokens, self._rows
        place = bisect_right(known, tokens)
        if place == 0 or len(known) == 1:
            return rows[0]
        last = place == len(known)
        low, high = (place - 2, place - 1) if last else (place - 1, place)
        share = (tokens - known[low]) / (known[high] - known[low])
        places = sorted({*rows[low].places, *rows[high].places})
        values = []
        for context in places:
            below, above = rows[low].at(context), rows[high].at(context)
            rise = max(0.0, above - below) if last else above - below
            values.append((above + rise * (share - 1)) if last else below + rise * share)
        return _Line(list(zip(places, values, strict=True)))


class _Line:
    """Straight lines between points."""

    def __init__(self, points: Sequence[tuple[float, float]]):
        """In the order of their places."""
        self.places = [place for place, _ in points]
        self.values = [value for _, value in points]

    def at(self, place: float) -> float:
        places, values = self.places, self.values
        if place <= places[0]:
            return values[0]
        right = bisect_right(places, place)
        beyond = right == len(places)
        if beyond:
            right -= 1
            if not right:
                return values[0]
        left = right - 1
        slope = (values[right] - values[left]) / (places[right] - places[left])
        if beyond:
            return values[right] + max(0.0, slope) * (place - places[right])
        return values[left] + slope * (place - places[left])

    def at_each(self, places: Floats) -> Floats:
        """What `at` gives for each of them, to the last bit."""
        known, values = np.array(self.places), np.array(self.values)
        if len(known) == 1:
            return np.full(len(places), values[0])
        left = np.searchsorted(known, places, side="right") - 1
        left = np.minimum(np.maximum(left, 0), len(known) - 2)
        slopes = (values[left + 1] - values[left]) / (known[left + 1] - known[left])
        found = values[left] + slopes * (places - known[left])
        beyond = values[-1] + np.maximum(0.0, slopes) * (places - known[-1])
        found = np.where(places >= known[-1], beyond, found)
        whole: Floats = np.where(places <= known[0], values[0], found)
        return whole
