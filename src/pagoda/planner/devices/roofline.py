"""What each kind of operation of a decode step should take on a GPU, so that what is measured
there can be held against it line by line; and a step with a prompt as a whole."""

from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from pagoda.arch.spec import AttentionSpec, ModelSpec
from pagoda.base.words import say
from pagoda.core.kvcache.spec import GroupSpec, KVGroupSpec
from pagoda.planner.devices.gpu_speed import FAST, SEEN, Shares, device_speed, launches
from pagoda.planner.devices.gpus import Gpu
from pagoda.planner.devices.speed import (
    DeviceSpeed,
    cached_bytes,
    exchanging,
    met_together,
    mixer_operations,
    overlapped,
    read_weights,
    token_share,
)
from pagoda.planner.memory.weights import HeldWeight


@dataclass(frozen=True)
class StepLine:
    """One kind of operation, of all layers together."""

    name: str
    launches: int
    nbytes: float
    """Weights, keys, values and states that are read and written; activations are left out."""
    flops: float
    seen: float
    """Seconds with the shares of a GPU's limits that another engine was seen to reach."""
    best: float
    """Seconds with the largest shares that one may hope for."""
    bound: str
    """What most of `seen` is."""


@dataclass(frozen=True)
class Step:
    """A decode step of so many requests behind `context` tokens each."""

    lines: tuple[StepLine, ...]
    requests: int
    context: int

    @property
    def seen(self) -> float:
        return sum(line.seen for line in self.lines)

    @property
    def best(self) -> float:
        return sum(line.best for line in self.lines)


@dataclass
class _Work:
    nbytes: float = 0.0
    from_host: float = 0.0
    flops: float = 0.0
    scattered: bool = False
    """It reads the few experts of its tokens."""


@dataclass(frozen=True)
class GpuPart:
    """What one of `ranks` GPUs has of a model."""

    gpu: Gpu
    ranks: int
    captured: bool
    spec: ModelSpec
    held: Sequence[HeldWeight]
    groups: Sequence[GroupSpec]
    in_host: Set[str] = frozenset()
    """Names of weights that lie in the host's memory."""

    @cached_property
    def launches(self) -> dict[str, int]:
        return launches(self.spec)

    @cached_property
    def products(self) -> list["_Product"]:
        """What all layers read and compute, once for steps of any size."""
        found: dict[tuple[str, bool, bool, float], list[float]] = {}
        for part in read_weights(self.spec, self.held):
            tensor = part.tensor
            share = token_share(self.spec, part)
            key = (_name(part), tensor.role == "experts", tensor.name in self.in_host, share)
            sums = found.setdefault(key, [0, 0])
            sums[0] += part.nbytes
            sums[1] += part.elements
        return [_Product(*key, *sums) for key, sums in found.items()]

    @cached_property
    def seen(self) -> DeviceSpeed:
        """The speed of its GPU as another engine was seen to reach it, op by op."""
        return device_speed(self.gpu, self.spec, self.ranks, False, SEEN)


@dataclass(frozen=True)
class _Product:
    name: str
    scattered: bool
    in_host: bool
    share: float
    """What a token meets of it."""
    nbytes: float
    elements: float


def decode_step(part: GpuPart, context: int, requests: int = 1) -> Step:
    """The step of one GPU; the others compute theirs meanwhile."""
    spec, groups = part.spec, part.groups
    work = _weights(part, requests)
    for group in groups:
        name = "attending" if isinstance(group, KVGroupSpec) else "updating states"
        work[name].nbytes += requests * cached_bytes(group, context)
    for layer in spec.layers:
        name = "attending" if isinstance(layer.mixer, AttentionSpec) else "updating states"
        work[name].flops += requests * mixer_operations(layer.mixer, context)
    starts = part.launches
    names = [*starts, *(name for name in work if name not in starts)]
    limits = [(s, device_speed(part.gpu, spec, part.ranks, part.captured, s)) for s in (SEEN, FAST)]
    lines = []
    for name in names:
        (seen, bound), (best, _) = (
            _seconds(work[name], starts.get(name, 0), device, shares, part.captured)
            for shares, device in limits
        )
        of = work[name]
        nbytes = of.nbytes + of.from_host
        lines.append(StepLine(name, starts.get(name, 0), nbytes, of.flops, seen, best, bound))
    if part.ranks > 1:
        seen, best = (exchanging(spec, device, requests) for _, device in limits)
        count = 2 * len(spec.layers)
        nbytes = count * 4.0 * requests * spec.hidden_size
        lines.append(StepLine("exchanging", count, nbytes, 0.0, seen, best, "link"))
    lines.append(StepLine("between steps", 0, 0.0, 0.0, SEEN.step, FAST.step, "host"))
    return Step(tuple(lines), requests, context)


def prompt_seconds(part: GpuPart, tokens: int, context: int = 0) -> tuple[float, float]:
    """How long the work of a step takes that computes the first `tokens` of a prompt behind a
    `context`, and how long launching it op by op; with the shares of a GPU's limits that another
    engine was seen to reach.
    """
    spec, device = part.spec, part.seen
    work = _weights(part, tokens)
    work["head"].flops /= tokens  # the last one alone has logits
    # Half of the pairs are in the future.
    work["attending"].flops = tokens * sum(
        mixer_operations(layer.mixer, context + tokens // 2) for layer in spec.layers
    )
    if context:
        work["attending"].nbytes += sum(cached_bytes(group, context) for group in part.groups)
    computing = sum(_seconds(of, 0, device, SEEN, False)[0] for of in work.values())
    if part.ranks > 1:
        computing += exchanging(spec, device, tokens)
    return computing, SEEN.eager * sum(part.launches.values())


def _weights(part: GpuPart, requests: int) -> defaultdict[str, _Work]:
    """What products read and compute, by the names of their weights within a layer."""
    work: defaultdict[str, _Work] = defaultdict(_Work)
    for product in part.products:
        of = work[product.name]
        nbytes = product.nbytes * met_together(product.share, requests)
        if product.in_host:
            of.from_host += nbytes
        else:
            of.nbytes += nbytes
        of.flops += 2 * product.elements * product.share * requests
        of.scattered |= product.scattered
    return work


def _name(part: HeldWeight) -> str:
    name = part.tensor.name.removesuffix(".weight").removesuffix(".bias")
    if part.tensor.role == "embedding":
        return "head"  # of a tied table
    return name if part.tensor.layer is None else name.split(".", 2)[2]


def _seconds(
    work: _Work, starts: int, device: DeviceSpeed, shares: Shares, captured: bool
) -> tuple[float, str]:
    """How long it takes, and what of it is most."""
    reading = work.nbytes / device.read / (device.experts if work.scattered else 1.0)
    parts = {
        say("memory"): reading,
        say("arithmetic"): work.flops / device.floats,
        say("bus"): work.from_host / device.host,
        say("launches"): starts * (shares.captured if captured else shares.eager),
    }
    together = overlapped(parts["memory"], parts["arithmetic"])
    return together + parts["bus"] + parts["launches"], max(parts, key=lambda name: parts[name])
