"""How fast a model will decode and read prompts, from what the device reads and computes.

A step's products take the longer of two times: reading the weights from memory and multiplying
them, which overlap but not wholly. Keys and values are read besides, and every operation costs a
start of its own.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import inf

from pagoda.arch.spec import AttentionSpec, LayerSpec, ModelSpec
from pagoda.core.kvcache.spec import GroupSpec, KVGroupSpec
from pagoda.planner.gpus import Gpu
from pagoda.planner.weights import HeldWeight
from pagoda.weights.formats import FORMATS

PROMPT_TOKENS = 512
"""Of a prompt whose speed is foretold."""
# Two times that overlap add up to less than both: the norm of this order. 1 would be one after
# the other, infinity the longer one alone.
_OVERLAP = 3.0
_EXCHANGING = "exchanging between devices"
_FROM_HOST = "reading weights from the host's memory"
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
    host: float = inf
    """Bytes from the host's memory, where that is another one."""
    experts: float = 1.0
    """Share of `read` at which the few experts of a token are read."""
    exchange: float = 0.0
    """Seconds until several devices have added up what each has of a token."""
    link: float = inf
    """Bytes between two devices."""


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
    in_host: Set[str] = frozenset(),
) -> SpeedEstimate | None:
    """Of one request behind `context` tokens, and of a prompt of 512 tokens; None where the device
    has no speed for one of the weights' formats. Weights of the names `in_host` are in the host's
    memory."""
    if any(part.storage not in device.products for part in _read_weights(spec, held)):
        return None
    from_host = [part for part in held if part.tensor.name in in_host]
    decode = _decode(spec, held, groups, device, context)
    decode[_FROM_HOST] = sum(part.nbytes * _share(spec, part) for part in from_host) / device.host
    decode[_EXCHANGING] = _exchanging(spec, device, 1)
    prefill = _prefill(spec, held, device)
    prefill[_EXCHANGING] = _exchanging(spec, device, PROMPT_TOKENS)
    prefill[_FROM_HOST] = sum(part.nbytes for part in from_host) / device.host
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
    scattered = sum(
        part.nbytes * _share(spec, part)
        for part in _read_weights(spec, held)
        if part.tensor.role == "experts"
    )
    reading = (sum(nbytes.values()) + scattered * (1 / device.experts - 1)) / device.read
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


def _exchanging(spec: ModelSpec, device: DeviceSpeed, tokens: int) -> float:
    """Behind each layer's mixer and behind its MLP; each device sends its part of the sums, and
    then the sums (fp16 or bf16)."""
    nbytes = 2 * 2 * tokens * spec.hidden_size
    return 2 * len(spec.layers) * (device.exchange + nbytes / device.link)


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
# Of a bus's nominal bandwidth; assumed, not measured.
_BUS_READS = 0.8
# At the rate of other weights an A100 would decode gpt-oss-20b at 272 tokens/s and Gemma 4 26B in
# fp8 at 234; users of vLLM report 165 and 81.
_GPU_EXPERTS = 0.3
_GPU_START = 3e-6
_GPU_STEP = 300e-6
# Assumed, not measured: an operation that Python starts, an exchange over NVLink or PCIe, and
# bytes over NVLink.
_EAGER_START = 30e-6
_EXCHANGES = {True: 12e-6, False: 25e-6}
_NVLINK = 200e9


def gpu_speed(gpu: Gpu) -> DeviceSpeed:
    """Of a GPU by its data sheet, decode steps captured."""
    rate = _GPU_COMPUTES * max(gpu.matmul.get("bf16", 0.0), gpu.matmul.get("fp16", 0.0))
    return DeviceSpeed(
        read=_GPU_READS * gpu.bandwidth,
        products={name: ProductSpeed(inf, rate) for name in FORMATS},
        start=_GPU_START,
        step=_GPU_STEP,
        floats=rate,
        host=_BUS_READS * gpu.bus,
        experts=_GPU_EXPERTS,
    )


def gpu_speed_as_planned(
    speed: DeviceSpeed, gpu: Gpu, ranks: int, *, captured: bool
) -> DeviceSpeed:
    """`speed` of a GPU as one of so many, or with steps that are not captured."""
    if not captured:
        speed = replace(speed, start=_EAGER_START)
    if ranks == 1:
        return speed
    link = _NVLINK if gpu.nvlink else _BUS_READS * gpu.bus
    return replace(speed, exchange=_EXCHANGES[gpu.nvlink], link=link)
