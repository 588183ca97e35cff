"""What a GPU does per second, as its data sheet and the speeds that users report bound it.

Held against single streams of vLLM, as its logs have them. A100-80G: gpt-oss-20b 165 tokens/s,
Gemma 4 26B in bf16 and eager 18.5, in fp8 80.6, 31B in bf16 23; V100: a 7B in fp16 42; two
2080 Ti: Qwen3.6-27B in 4 bits 45.
"""

from collections import Counter
from dataclasses import dataclass
from math import inf

from pagoda.arch.recurrent import Mamba2Spec, ShortConvSpec
from pagoda.arch.spec import AttentionSpec, LayerSpec, ModelSpec
from pagoda.planner.devices.gpus import Gpu
from pagoda.planner.devices.speed import DeviceSpeed, ProductSpeed
from pagoda.weights.formats import FORMATS


@dataclass(frozen=True)
class Shares:
    """How much of what is nominal is reached, and what comes on top."""

    read: float
    """Share of the bandwidth that reading reaches: dense models were seen to reach 0.71 to 0.85
    with all else counted in."""
    experts: float
    """Share of `read` that is reached by the few experts of a token: small products at scattered
    places."""
    compute: float
    """Share of the matrix units' speed that is reached by large products."""
    bus: float
    captured: float
    """Seconds that a kernel takes beyond its work, in a captured step."""
    eager: float
    """The same where Python starts each: with a slow processor's as with a fast one's."""
    step: float
    """Seconds of a step outside its kernels."""
    exchange: float
    """Seconds of one exchange of `_EXCHANGES`."""


SLOW = Shares(0.68, 0.15, 0.3, 0.6, 6e-6, 60e-6, 800e-6, 1.6)
FAST = Shares(0.85, 0.6, 0.65, 0.9, 2e-6, 20e-6, 200e-6, 0.6)
SEEN = Shares(0.76, 0.2, 0.5, 0.75, 2.7e-6, 50e-6, 400e-6, 1.0)
"""Fitted to those reports: all but Gemma 4 in fp8, which was a quarter slower than this, are met
within a fifth."""
# Seconds until several GPUs have added up what each has of a token, over NVLink or PCIe, and bytes
# a second over NVLink; assumed, not measured.
_EXCHANGES = {True: 12e-6, False: 25e-6}
_NVLINK = 200e9


def gpu_speeds(
    gpu: Gpu, spec: ModelSpec, ranks: int, *, captured: bool
) -> tuple[DeviceSpeed, DeviceSpeed]:
    """The slowest and the fastest that one of so many GPUs may be with this model."""
    slow, fast = (device_speed(gpu, spec, ranks, captured, shares) for shares in (SLOW, FAST))
    return slow, fast


def launches(spec: ModelSpec) -> dict[str, int]:
    """Kernels of a step, by what they compute; those of products by the names of their weights
    within a layer."""
    count: Counter[str] = Counter(embedding=1, norms=1, head=1, sampling=1)
    for layer in spec.layers:
        count.update(_layer_launches(layer))
    return dict(count)


def device_speed(
    gpu: Gpu, spec: ModelSpec, ranks: int, captured: bool, shares: Shares
) -> DeviceSpeed:
    rate = shares.compute * max(gpu.matmul.get("bf16", 0.0), gpu.matmul.get("fp16", 0.0))
    each = shares.captured if captured else shares.eager
    bus = shares.bus * gpu.bus
    return DeviceSpeed(
        read=shares.read * gpu.bandwidth,
        products={name: ProductSpeed(inf, rate) for name in FORMATS},
        start=0.0,
        step=shares.step + each * sum(launches(spec).values()),
        floats=rate,
        host=bus,
        experts=shares.experts,
        exchange=shares.exchange * _EXCHANGES[gpu.nvlink] if ranks > 1 else 0.0,
        link=(_NVLINK if gpu.nvlink else bus) if ranks > 1 else inf,
    )


def _layer_launches(layer: LayerSpec) -> dict[str, int]:
    mixer, experts = layer.mixer, layer.experts
    # Sums that are not part of a norm count as norms.
    norms = 2 if layer.norms == "before" else 3
    count: Counter[str] = Counter(norms=norms if layer.feeds_forward else 1)
    if isinstance(mixer, AttentionSpec):
        # Norms of heads and the rotation are part of storing.
        count.update({"attention.qkv": 1, "attention.output": 1, "storing": 1, "attending": 1})
        if mixer.output_gate:
            count["gates"] = 1
        if mixer.qk_norm_whole:
            count["norms"] += 2
    elif isinstance(mixer, ShortConvSpec):
        count.update({"short_conv.input": 1, "short_conv.output": 1, "convolving": 1, "gates": 2})
    elif isinstance(mixer, Mamba2Spec):
        count.update({"mamba2.input": 1, "mamba2.output": 1, "convolving": 1, "gates": 1})
        count.update({"updating states": 1, "norms": 1})
    else:
        count.update({"delta_net.input": 2, "delta_net.output": 1, "convolving": 1, "gates": 1})
        count.update({"updating states": 1, "norms": 1})
    if layer.mlp is not None:
        count.update({"mlp.gate_up" if layer.mlp.gated else "mlp.up": 1, "mlp.down": 1})
        count["activation"] += 1
    if experts is not None:
        place = "mlp" if layer.mlp is None else "experts"
        count.update({f"{place}.router": 1, f"{place}.gate_up": 1, f"{place}.down": 1})
        # Each expert's activation is part of its first product; the sum adds a shared one's part.
        count.update({"routing": 1, "adding experts": 1})
        if experts.shared is not None:
            inner = "gate_up" if experts.gated else "up"
            count.update({f"{place}.shared.{inner}": 1, f"{place}.shared.down": 1})
            count["activation"] += 1
    if layer.sandwiched:
        count["norms"] += 3 + (4 if layer.mlp is not None and experts is not None else 0)
    return count
