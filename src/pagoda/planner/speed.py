"""How fast a model will decode and read prompts, from what the device reads and computes.

A step's products take the longer of two times: reading the weights from memory and multiplying
them, which overlap but not wholly. Keys and values are read besides, and every operation costs a
start of its own.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from pagoda.arch.spec import AttentionSpec, LayerSpec, ModelSpec
from pagoda.core.kvcache.spec import GroupSpec, KVGroupSpec
from pagoda.planner.weights import HeldWeight
from pagoda.weights.formats import FORMATS

PROMPT_TOKENS = 512
"""Of a prompt whose speed is foretold."""
# Two times that overlap add up to less than both: the norm of this order. 1 would be one after
# the other, infinity the longer one alone.
_OVERLAP = 3.0
# Roles that a token's step does not multiply with: it looks rows up, or meets no picture.
_NOT_READ = frozenset(("embedding", "table", "vision"))


@dataclass(frozen=True)
class ProductSpeed:
    """Of matrix products in one storage format, by all threads, weights in the caches."""

    decode: float
    """Bytes of weights per second, for one token."""
    prompt: float
    """Multiplications and additions per second, for many tokens."""


@dataclass(frozen=True)
class DeviceSpeed:
    """What a device does per second; measured by `doctor.measure`, or from a table of GPUs."""

    read: float
    """Bytes from memory."""
    products: Mapping[str, ProductSpeed]
    """By storage format."""
    start: float
    """Seconds that an operation takes beyond its work."""
    step: float
    """Seconds of a step outside its operations."""
    floats: float
    """fp32 multiplications and additions."""


@dataclass(frozen=True)
class SpeedEstimate:
    decode: float
    """Tokens per second of one request."""
    decode_bound: str
    prefill: float
    """Prompt tokens per second."""
    prefill_bound: str


def estimate_speed(
    spec: ModelSpec,
    held: Sequence[HeldWeight],
    groups: Sequence[GroupSpec],
    device: DeviceSpeed,
    context: int,
) -> SpeedEstimate | None:
    """Of one request behind `context` tokens, and of a prompt of 512 tokens; None where the device
    has no speed for one of the weights' formats."""
    if any(part.storage not in device.products for part in _read_weights(spec, held)):
        return None
    decode = _decode(spec, held, groups, device, context)
    prefill = _prefill(spec, held, device)
    seconds, total = sum(decode.values()), sum(prefill.values())
    return SpeedEstimate(
        decode=1 / seconds,
        decode_bound=_largest(decode),
        prefill=PROMPT_TOKENS / total,
        prefill_bound=_largest(prefill),
    )


def step_bytes(
    spec: ModelSpec,
    held: Sequence[HeldWeight],
    groups: Sequence[GroupSpec],
    requests: int,
    context: int,
) -> float:
    """Read by a decode step of so many requests behind `context` tokens: each weight once, of
    experts those that some token meets if routers choose evenly, and each request's KV."""
    weights = sum(
        part.nbytes * (1 - (1 - _share(spec, part)) ** requests)
        for part in _read_weights(spec, held)
    )
    return weights + requests * sum(_cached_bytes(group, context) for group in groups)


def step_operations(
    spec: ModelSpec, held: Sequence[HeldWeight], tokens: int, samples: int
) -> float:
    """Multiplications and additions of a step's products, attention left out; logits are computed
    for so many of its tokens."""
    return sum(
        2
        * part.elements
        * _share(spec, part)
        * (samples if part.tensor.role in ("head", "embedding") else tokens)
        for part in _read_weights(spec, held)
    )


def _largest(parts: Mapping[str, float]) -> str:
    return max(parts, key=lambda name: parts[name])


def _read_weights(spec: ModelSpec, held: Sequence[HeldWeight]) -> list[HeldWeight]:
    """What every step multiplies with; a tied table is the output head."""
    tied = spec.tie_word_embeddings and spec.writes_text
    return [
        part
        for part in held
        if part.tensor.is_matrix
        and (part.tensor.role not in _NOT_READ or (tied and part.tensor.role == "embedding"))
    ]


def _decode(
    spec: ModelSpec,
    held: Sequence[HeldWeight],
    groups: Sequence[GroupSpec],
    device: DeviceSpeed,
    context: int,
) -> dict[str, float]:
    """Seconds of a step with one request, by what bounds them."""
    nbytes: defaultdict[str, float] = defaultdict(float)
    for part in _read_weights(spec, held):
        nbytes[part.storage] += part.nbytes * _share(spec, part)
    reading = sum(nbytes.values()) / device.read
    computing = sum(size / device.products[name].decode for name, size in nbytes.items())
    kv = sum(_cached_bytes(group, context) for group in groups) / device.read
    return {
        _bound(reading, computing): _overlapped(reading, computing),
        "reading keys, values and states": kv,
        "starting operations": device.start * _operations(spec) + device.step,
    }


def _prefill(spec: ModelSpec, held: Sequence[HeldWeight], device: DeviceSpeed) -> dict[str, float]:
    """Seconds of a prompt, by what bounds them. The head is for its last token alone."""
    ops: defaultdict[str, float] = defaultdict(float)
    nbytes = 0.0
    for part in _read_weights(spec, held):
        nbytes += part.nbytes
        if part.tensor.role not in ("head", "embedding"):
            ops[part.storage] += 2 * part.elements * _share(spec, part) * PROMPT_TOKENS
    computing = sum(count / device.products[name].prompt for name, count in ops.items())
    reading = nbytes / device.read
    attention = sum(_attention_ops(layer) for layer in spec.layers) / device.floats
    return {
        _bound(reading, computing): _overlapped(reading, computing),
        "arithmetic of attention": attention,
        "starting operations": device.start * _operations(spec) + device.step,
    }


def _bound(reading: float, computing: float) -> str:
    return "reading weights from memory" if reading >= computing else "multiplying weights"


def _overlapped(one: float, other: float) -> float:
    longer, shorter = max(one, other), min(one, other)
    if longer in (0.0, inf):
        return longer
    return float(longer * (1 + (shorter / longer) ** _OVERLAP) ** (1 / _OVERLAP))


def _share(spec: ModelSpec, part: HeldWeight) -> float:
    """Of an experts' parameter that a token meets."""
    if part.tensor.role != "experts" or part.tensor.layer is None:
        return 1.0
    experts = spec.layers[part.tensor.layer].experts
    assert experts is not None  # the tensor is theirs
    return experts.top_k / experts.num_experts


def _cached_bytes(group: GroupSpec, context: int) -> float:
    """Read for one token; a state is written, too."""
    if not isinstance(group, KVGroupSpec):
        return 2 * group.block_bytes
    seen = context if group.window is None else min(context, group.window)
    return group.block_bytes / group.block_size * seen


def _attention_ops(layer: LayerSpec) -> float:
    """Of one layer over a whole prompt; half of the pairs are in the future."""
    mixer = layer.mixer
    if not isinstance(mixer, AttentionSpec):
        # Each token updates and reads every head's state, and writes it: 7 operations an element.
        return (
            7.0
            * PROMPT_TOKENS
            * mixer.num_value_heads
            * (mixer.key_head_dim * mixer.value_head_dim)
        )
    return 2.0 * PROMPT_TOKENS**2 * mixer.num_heads * mixer.head_dim


def _operations(spec: ModelSpec) -> int:
    """Kernels of a step: two norms, the mixer's product, rotation, attention and output, then the
    products of the MLP with their activation; a mixture has its router and choice besides, and a
    shared expert its products, activation and addition."""
    total = 4
    for layer in spec.layers:
        total += 9
        if layer.experts is not None:
            total += 2 if layer.experts.shared is None else 6
    return total


# Of its nominal bandwidth a GPU reads 71 to 85% while decoding: V100, 7B in fp16, 42 tokens/s of
# 59 possible; A100, 31B in bf16, 23 of 33; two 2080 Ti, 27B in 4 bits, 45 of 53 (reported by
# users of vLLM). Large products take place at about half the nominal rate.
_GPU_READS = 0.75
_GPU_COMPUTES = 0.5
_GPU_START = 3e-6
_GPU_STEP = 300e-6


def gpu_speed(bandwidth: float, matmul: Mapping[str, float]) -> DeviceSpeed:
    """Of a GPU by its data sheet: bytes and operations per second, by type."""
    rate = _GPU_COMPUTES * max(matmul.get("bf16", 0.0), matmul.get("fp16", 0.0))
    products = {name: ProductSpeed(inf, rate) for name in FORMATS}
    return DeviceSpeed(_GPU_READS * bandwidth, products, _GPU_START, _GPU_STEP, rate)
