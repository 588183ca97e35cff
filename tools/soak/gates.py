"""What a soak is held to: functions of figures, which tests feed with played ones."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# A leak of half a kilobyte per request is one; so is less that has grown to megabytes.
LEAK_PER_REQUEST = 512
# What a process may grow by within the scatter of its allocator: bodies of megabytes, in as many
# threads as a pool has, move a server by that much up and down.
SPARE_BYTES = 16 << 20
# Files and threads that a pool may hold beyond the first quiet look.
SPARE_HANDLES = 4
# An idle server, with its engines, may take so much of one core.
IDLE_SHARE = 0.02
# Fewer samples or requests behind the warm-up say nothing of a slope.
LEAST_SAMPLES, LEAST_REQUESTS = 20, 1000
# What counts as a process's warm-up: a third of its samples, and so many requests.
WARM_UP, WARM_UP_REQUESTS = 1 / 3, 1000


@dataclass(frozen=True)
class Gate:
    name: str
    figure: str
    limit: str
    passed: bool


@dataclass(frozen=True)
class Slope:
    """Bytes per request of one process, and how far off that may be."""

    process: str
    per_request: float
    error: float
    requests: float

    @property
    def leaks(self) -> bool:
        """Surely steeper than allowed, and far enough to be no scatter."""
        surely = self.per_request - 3 * self.error
        return surely > LEAK_PER_REQUEST and surely * self.requests > SPARE_BYTES


def slope(process: str, samples: Sequence[tuple[float, float]]) -> Slope | None:
    """Least squares through (requests served, bytes) behind the warm-up; None for too few."""
    behind = samples[math.ceil(len(samples) * WARM_UP) :]
    points = [(x, y) for x, y in behind if x >= samples[0][0] + WARM_UP_REQUESTS]
    span = points[-1][0] - points[0][0] if points else 0
    if len(points) < LEAST_SAMPLES or span < LEAST_REQUESTS:
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    steep = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    off = sum((y - mean_y - steep * (x - mean_x)) ** 2 for x, y in points)
    return Slope(process, steep, math.sqrt(off / (len(points) - 2) / spread), span)


def memory(slopes: Iterable[Slope]) -> list[Gate]:
    """One gate for each role: of several processes the one that served longest counts. Until some
    thousand requests are served, memory that was needed at once for the first time looks like a
    slope."""
    worst: dict[str, Slope] = {}
    for found in slopes:
        earlier = worst.get(found.process)
        if earlier is None or _weight(found) > _weight(earlier):
            worst[found.process] = found
    return [
        Gate(
            f"memory of {role}, kB per 1,000 requests",
            f"{found.per_request:+.0f} (± {found.error:.0f}) over {found.requests:.0f} requests",
            f"{LEAK_PER_REQUEST}, or {SPARE_BYTES >> 20} MiB in all",
            not found.leaks,
        )
        for role, found in sorted(worst.items())
    ]


def _weight(found: Slope) -> tuple[float, bool, float]:
    return found.requests, found.leaks, found.per_request


def grown(what: str, role: str, quiet: Sequence[int], spare: int = SPARE_HANDLES) -> Gate:
    """Handles of a role at its quiet looks, the first to the last."""
    return Gate(
        f"{what} of {role}", f"{quiet[0]} -> {quiet[-1]}", f"+{spare}",
        quiet[-1] <= quiet[0] + spare,
    )  # fmt: skip


def idle_cpu(when: str, share: float) -> Gate:
    return Gate(
        f"idle CPU {when}", f"{share:.2%} of a core", f"{IDLE_SHARE:.0%}", share <= IDLE_SHARE
    )


def none(name: str, found: int) -> Gate:
    """Nothing of this kind may happen."""
    return Gate(name, str(found), "0", found == 0)


@dataclass
class Asked:
    """What clients know of the requests that one server process was sent."""

    sent: int = 0
    completed: int = 0
    """Choices that came whole, vectors among them."""
    unsure: int = 0
    """Choices that may have run to any length, or not at all: left, cut or refused."""
    tokens: int = 0
    """New tokens of the completed ones."""
    unsure_tokens: int = 0


# Of each served request, one observation in each of these.
_ONE_EACH = (
    "vllm:e2e_request_latency_seconds_count",
    "vllm:request_prompt_tokens_count",
    "vllm:request_generation_tokens_count",
    "vllm:request_params_n_count",
)


def metrics_faults(values: Mapping[str, float], asked: Asked) -> list[str]:
    """Where counters of an idle server disagree with each other or with its clients.

    `values` has each name's sum over its labels, and `name{reason}` for ends of requests.
    """
    faults = []
    ended = values.get("vllm:request_success_total", 0)
    for name in _ONE_EACH:
        if values.get(name, 0) != ended:
            faults.append(f"{name} is {values.get(name, 0):g}, requests ended {ended:g}")

    def within(what: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:
            faults.append(f"{what}: {value:g}, clients know of {low:g} to {high:g}")

    most = asked.completed + asked.unsure
    whole = sum(values.get(f"vllm:request_success_total{{{r}}}", 0) for r in ("stop", "length"))
    within("requests that ended", ended, asked.completed, most)
    within("requests that ended by themselves", whole, asked.completed, most)
    tokens = values.get("vllm:request_generation_tokens_sum", 0)
    within("generated tokens", tokens, asked.tokens, asked.tokens + asked.unsure_tokens)
    prompts = values.get("vllm:prompt_tokens_total", 0)
    sources = values.get("vllm:prompt_tokens_by_source_total", 0)
    if prompts != sources:
        faults.append(f"prompt tokens are {prompts:g}, by source {sources:g}")
    return faults
