"""What a GPU does per second, as its data sheet and the speeds that users report bound it.

Held against single streams of vLLM, as its logs have them. A100-80G: gpt-oss-20b 165 tokens/s,
Gemma 4 26B in bf16 and eager 18.5, in fp8 80.6, 31B in bf16 23; V100: a 7B in fp16 42; two
2080 Ti: Qwen3.6-27B in 4 bits 45.
"""

from dataclasses import dataclass
from math import inf

from pagoda.arch.spec import AttentionSpec, LayerSpec, ModelSpec
from pagoda.planner.devices.gpus import Gpu
from pagoda.planner.devices.speed import DeviceSpeed, ProductSpeed
from pagoda.weights.formats import FORMATS


@dataclass(frozen=True)
class _Shares:
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


_SLOW = _Shares(0.68, 0.15, 0.3, 0.6, 6e-6, 60e-6, 800e-6, 1.6)
_FAST = _Shares(0.85, 0.6, 0.65, 0.9, 2e-6, 20e-6, 200e-6, 0.6)
# Seconds until several GPUs have added up what each has of a token, over NVLink or PCIe, and bytes
# a second over NVLink; assumed, not measured.
_EXCHANGES = {True: 12e-6, False: 25e-6}
_NVLINK = 200e9


def gpu_speeds(
    gpu: Gpu, spec: ModelSpec, ranks: int, *, captured: bool
) -> tuple[DeviceSpeed, DeviceSpeed]:
    """The slowest and the fastest that one of so many GPUs may be with this model."""
    slow, fast = (_speed(gpu, spec, ranks, captured, shares) for shares in (_SLOW, _FAST))
    return slow, fast


def launches(spec: ModelSpec) -> int:
    """Kernels of a step: those of its layers, the embedding, the last norm, the head, sampling."""
    return 4 + sum(_layer_launches(layer) for layer in spec.layers)


def _speed(gpu: Gpu, spec: ModelSpec, ranks: int, captured: bool, shares: _Shares) -> DeviceSpeed:
    rate = shares.compute * max(gpu.matmul.get("bf16", 0.0), gpu.matmul.get("fp16", 0.0))
    each = shares.captured if captured else shares.eager
    bus = shares.bus * gpu.bus
    return DeviceSpeed(
        read=shares.read * gpu.bandwidth,
        products={name: ProductSpeed(inf, rate) for name in FORMATS},
        start=0.0,
        step=shares.step + each * launches(spec),
        floats=rate,
        host=bus,
        experts=shares.experts,
        exchange=shares.exchange * _EXCHANGES[gpu.nvlink] if ranks > 1 else 0.0,
        link=(_NVLINK if gpu.nvlink else bus) if ranks > 1 else inf,
    )


def _layer_launches(layer: LayerSpec) -> int:
    mixer, experts = layer.mixer, layer.experts
    count = 2  # norms
    if isinstance(mixer, AttentionSpec):
        # The products before and after, rotation, storing keys and values, attending.
        count += 5 + mixer.qk_norm + mixer.value_norm + mixer.output_gate
    else:
        # Two products, the convolution, gates, the state's update, its norm, the product after.
        count += 7
    if layer.mlp is not None:
        count += 3
    if experts is not None:
        # The router, its choice and the order by expert, two products, the sum; a shared expert's
        # products and activation.
        count += 5 + (0 if experts.shared is None else 3)
    if layer.sandwiched:
        both = layer.mlp is not None and experts is not None
        count += 3 + (4 if both else 0)
    return count
