"""Requests and their arrival times: read from files, or generated."""

import csv
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Protocol, TextIO

from pagoda.base.errors import ConfigError
from pagoda.config.option import Options, option

Part = tuple[int, int]
"""A token, and how often it follows itself: texts here only differ or do not."""
_SHARED = 1
# In recorded traces, below are names of the file, from here on texts that are in one request.
_FIRST_OWN = 1 << 30
_SECONDS, _INPUT, _OUTPUT = "Timestamp", "Request tokens", "Response tokens"


@dataclass(slots=True)
class Arrival:
    time: float
    """In seconds from the start."""
    prompt: tuple[Part, ...]
    prompt_len: int
    output_len: int
    reply: int
    """The token that its reply consists of."""
    then: Callable[[float], "Arrival"] | None = None
    """The next request of the same user, given when this one ended; None: there is none."""
    session: str | None = None


class Trace(Protocol):
    num_requests: int
    has_followers: bool
    """Some requests come once another one has ended."""

    def __iter__(self) -> Iterator[Arrival]:
        """Those that come whatever becomes of others, in the order of their times; the same each
        time."""


@dataclass(frozen=True)
class TraceFileConfig(Options):
    """Requests of a file instead of made-up ones."""

    trace: str | None = option(
        None, "BurstGPT's CSV, or JSON lines with timestamp, input_length, output_length and "
        "hash_ids (Mooncake's, which vLLM's and others' tools read).",
    )  # fmt: skip
    trace_block_tokens: int = option(
        512, "Tokens that each of hash_ids stands for.", bounds=(1, 1 << 20)
    )
    trace_requests: int | None = option(None, "So many of its requests.", bounds=(1, 10**9))


@dataclass(frozen=True)
class UsersConfig(Options):
    """Made-up users. Each sends `turns` requests, one after the other: a prompt is all that was
    said before and `input-len` new tokens."""

    users: int = option(1000, "How many come.", bounds=(1, 10**9))
    request_rate: float = option(1.0, "Users who come per second.", bounds=(1e-6, 1e9))
    burstiness: float = option(
        1.0, "Shape of the gamma distribution of times between two; 1 is Poisson, less is more in "
        "bursts.", bounds=(1e-3, 1e6),
    )  # fmt: skip
    prefix_len: int = option(0, "Tokens that all prompts begin with.", bounds=(0, 1 << 24))
    input_len: int = option(512, "New tokens of each request.", bounds=(1, 1 << 24))
    output_len: int = option(128, "Tokens of each reply.", bounds=(1, 1 << 24))
    range_ratio: float = option(
        0.0, "These two vary by this share, up and down.", bounds=(0.0, 0.99)
    )
    turns: int = option(1, "Requests of each user.", bounds=(1, 10**6))
    think_seconds: float = option(
        5.0, "From a reply to the user's next request, on average.", bounds=(0.0, 1e6)
    )
    seed: int = option(0, "Another seed makes others.")


class MadeUp:
    """A trace of made-up users."""

    def __init__(self, config: UsersConfig):
        self._config = config
        self.num_requests = config.users * config.turns
        self.has_followers = config.turns > 1

    def __iter__(self) -> Iterator[Arrival]:
        config, ids, now = self._config, count(_SHARED + 1), 0.0
        rng = random.Random(config.seed)
        shape = config.burstiness
        shared = ((_SHARED, config.prefix_len),) if config.prefix_len else ()
        for user in range(config.users):
            # A user's texts do not depend on when others' replies end.
            own = random.Random(rng.getrandbits(64)) if config.turns > 1 else rng
            yield self._request(own, ids, f"user-{user}", config.turns, shared, now)
            now += rng.gammavariate(shape, 1 / (shape * config.request_rate))

    def _request(
        self,
        rng: random.Random,
        ids: "count[int]",
        user: str,
        turns: int,
        before: tuple[Part, ...],
        time: float,
    ) -> Arrival:
        config = self._config
        new, output = self._vary(rng, config.input_len), self._vary(rng, config.output_len)
        prompt = (*before, (next(ids), new))
        reply = next(ids)
        made = Arrival(time, prompt, sum(length for _, length in prompt), output, reply)
        if config.turns > 1:
            made.session = user
        if turns > 1:
            think = rng.expovariate(1 / config.think_seconds) if config.think_seconds else 0.0
            known = (*prompt, (reply, output))
            made.then = lambda ended: self._request(rng, ids, user, turns - 1, known, ended + think)
        return made

    def _vary(self, rng: random.Random, length: int) -> int:
        ratio = self._config.range_ratio
        if not ratio:
            return length
        return max(1, rng.randint(round(length * (1 - ratio)), round(length * (1 + ratio))))


class Recorded:
    """A trace of requests that are known."""

    def __init__(self, arrivals: Sequence[Arrival]):
        self._arrivals = sorted(arrivals, key=lambda arrival: arrival.time)
        self.num_requests = len(arrivals)
        self.has_followers = any(arrival.then is not None for arrival in arrivals)

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self._arrivals)


def read_trace(config: TraceFileConfig) -> Recorded:
    """Raises ConfigError for a file that cannot be read, naming the line."""
    path = Path(config.trace or "")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            begins = file.read(1)
            file.seek(0)
            read = _read_jsonl if begins == "{" else _read_csv
            arrivals = read(path, file, config)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The trace {path} cannot be read: {error}.") from error
    if not arrivals:
        raise ConfigError(f"The trace {path} has no request.")
    return Recorded(arrivals)


def _read_csv(path: Path, file: TextIO, config: TraceFileConfig) -> list[Arrival]:
    """Read BurstGPT's columns: seconds, tokens in and out, of which none says what a text has in
    common with another. Requests that failed there, without a reply, are left out."""
    rows = csv.DictReader(file)
    missing = {_SECONDS, _INPUT, _OUTPUT} - set(rows.fieldnames or ())
    if missing:
        raise ConfigError(
            f"{path} has no column {', '.join(sorted(missing))}; it is no trace of BurstGPT."
        )
    arrivals: list[Arrival] = []
    for row in rows:
        with _at_line(path, rows.line_num):
            time, prompt, output = float(row[_SECONDS]), int(row[_INPUT]), int(row[_OUTPUT])
            if output > 0:
                arrivals.append(_recorded(time, [], prompt, output, len(arrivals)))
        if len(arrivals) == config.trace_requests:
            break
    return _from_zero(arrivals)


def _read_jsonl(path: Path, file: TextIO, config: TraceFileConfig) -> list[Arrival]:
    """Read Mooncake's lines: milliseconds, tokens in and out, and a name for each so many tokens of
    the prompt, the same where all up to there is."""
    arrivals: list[Arrival] = []
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        with _at_line(path, number):
            entry = json.loads(line)
            prompt, output = int(entry["input_length"]), int(entry["output_length"])
            parts, left = list[Part](), prompt
            for name in entry.get("hash_ids") or ():
                length = min(left, config.trace_block_tokens)
                if length > 0:
                    parts.append((_token_of(name), length))
                left -= length
            time = float(entry["timestamp"]) / 1000
            arrivals.append(_recorded(time, parts, prompt, output, len(arrivals)))
        if len(arrivals) == config.trace_requests:
            break
    return _from_zero(arrivals)


def _recorded(
    time: float, parts: list[Part], prompt_len: int, output_len: int, number: int
) -> Arrival:
    """A request whose prompt is these parts and then its own; so is its reply."""
    if min(prompt_len, output_len) < 1 or not math.isfinite(time):
        raise ValueError("a request needs tokens in and out, and a time")
    own = prompt_len - sum(length for _, length in parts)
    if own:
        parts.append((_FIRST_OWN + 2 * number, own))
    return Arrival(time, tuple(parts), prompt_len, output_len, _FIRST_OWN + 2 * number + 1)


def _token_of(name: object) -> int:
    if not isinstance(name, int) or not 0 <= name < _FIRST_OWN:
        raise ValueError(f"hash_ids are numbers from 0 to {_FIRST_OWN - 1}, not {name!r}")
    return name


@contextmanager
def _at_line(path: Path, number: int) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}, line {number}, is not a request: {error!r}.") from error


def _from_zero(arrivals: list[Arrival]) -> list[Arrival]:
    """The first one comes at once."""
    first = min((arrival.time for arrival in arrivals), default=0.0)
    for arrival in arrivals:
        arrival.time -= first
    return arrivals
