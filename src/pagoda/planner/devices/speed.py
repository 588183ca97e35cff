"""How fast a model will decode and read prompts, from what the device reads and computes.

A step's products take the longer of two times: reading the weights from memory and multiplying
them, which overlap but not wholly. Keys and values are read besides, and every operation costs a
start of its own.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import inf, sqrt

from pagoda.arch.recurrent import RecurrentSpec
from pagoda.arch.spec import AttentionSpec, ModelSpec
from pagoda.base.words import say
from pagoda.core.kvcache.spec import GroupSpec, KVGroupSpec
from pagoda.planner.memory.weights import HeldWeight

PROMPT_TOKENS = 512
"""Length of a prompt whose speed is foretold."""
# Two times that overlap add up to less than both: the norm of this order. 1 would be one after
# the other, infinity the longer one alone.
_OVERLAP = 3.0
_EXCHANGING = say("exchanging between devices")
_VERIFYING = say("verifying guesses")
_FROM_HOST = say("reading weights from the host's memory")
_FROM_DISK = say("reading experts from disk")
# Roles that a token's step does not multiply with: it looks rows up, or meets no picture.
_NOT_READ = frozenset(("embedding", "table", "vision"))


@dataclass(frozen=True)
class ProductSpeed:
    """Speed of matrix products in one storage format, by all threads, weights in the caches."""

    decode: float
    """Bytes of weights per second, for one token."""
    prompt: float
    """Multiplications and additions per second, for many tokens."""


@dataclass(frozen=True)
class DeviceSpeed:
    """What a device does per second; measured by the doctor, or from a table of GPUs."""

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
    disk: float | None = None
    """Bytes from a CPU's disk; None where that is not known."""
    experts: float = 1.0
    """Share of `read` at which the few experts of a token are read."""
    exchange: float = 0.0
    """Seconds until several devices have added up what each has of a token."""
    link: float = inf
    """Bytes between two devices."""


Range = tuple[float, float]


@dataclass(frozen=True)
class SpeedEstimate:
    decode: float
    """Tokens per second of all requests."""
    decode_bound: str
    prefill: float
    """Prompt tokens per second."""
    prefill_bound: str
    decode_range: Range = (0.0, inf)
    prefill_range: Range = (0.0, inf)


# What a CPU did, as a multiple of what was foretold of it (docs/benchmarks/doctor.md: 0.86 to 1.36
# of twelve).
_CPU_SPREAD = (0.85, 1.36)


def as_measured(found: SpeedEstimate) -> SpeedEstimate:
    """With the range in which a CPU's speed lies that was foretold from what was measured."""
    low, high = _CPU_SPREAD
    return replace(
        found,
        decode_range=(low * found.decode, high * found.decode),
        prefill_range=(low * found.prefill, high * found.prefill),
    )


def between(slow: SpeedEstimate, fast: SpeedEstimate) -> SpeedEstimate:
    """The middle of two, by ratio; what bounds the slow one is named."""
    return replace(
        slow,
        decode=sqrt(slow.decode * fast.decode),
        prefill=sqrt(slow.prefill * fast.prefill),
        decode_range=(slow.decode, fast.decode),
        prefill_range=(slow.prefill, fast.prefill),
    )


def estimate_speed(
    spec: ModelSpec,
    held: Sequence[HeldWeight],
    groups: Sequence[GroupSpec],
    device: DeviceSpeed,
    context: int,
    elsewhere: Set[str] = frozenset(),
    requests: int = 1,
    rows: int = 1,
) -> SpeedEstimate | None:
    """The speed of so many requests, each behind `context` tokens, and of a prompt of 512 tokens;
    None where the device has no speed for one of the weights' formats. Weights of the names
    `elsewhere` are in the host's memory, or of a CPU on disk. Of a step that verifies guesses, each
    request has `rows` tokens, of which one counts."""
    if any(part.storage not in device.products for part in read_weights(spec, held)):
        return None
    moved = [part for part in held if part.tensor.name in elsewhere]
    decode = _decode(spec, held, groups, device, context, requests, rows)
    fetched = sum(part.nbytes * share_met(spec, part, requests * rows) for part in moved)
    decode[_FROM_HOST] = fetched / device.host
    decode[_EXCHANGING] = exchanging(spec, device, requests)
    prefill = _prefill(spec, held, device)
    prefill[_EXCHANGING] = exchanging(spec, device, PROMPT_TOKENS)
    prefill[_FROM_HOST] = sum(part.nbytes for part in moved) / device.host
    # They cost what tokens of a prompt do: a step that is this short does not hide their products.
    decode[_VERIFYING] = requests * (rows - 1) * sum(prefill.values()) / PROMPT_TOKENS
    if device.disk is not None:
        decode[_FROM_DISK] = fetched / device.disk
        prefill[_FROM_DISK] = _not_hidden(moved, device.disk, sum(prefill.values()))
    seconds = sum(decode.values())
    return SpeedEstimate(
        decode=requests / seconds,
        decode_bound=_largest(decode),
        prefill=PROMPT_TOKENS / sum(prefill.values()),
        prefill_bound=_largest(prefill),
    )


def _not_hidden(moved: Sequence[HeldWeight], disk: float, rest: float) -> float:
    """Seconds that a prompt's reading from disk adds to the `rest`: layers are read while those
    before them compute."""
    return overlapped(rest, sum(part.nbytes for part in moved) / disk) - rest


def draft_seconds(spec: ModelSpec, held: Sequence[HeldWeight], device: DeviceSpeed) -> float | None:
    """What a loaded draft head takes for one guess: its weights and the output head are read, and
    its operations started, as many as of one layer. None as of `estimate_speed`."""
    own = any(part.tensor.drafts and part.tensor.role == "head" for part in held)
    parts = [part for part in held if part.tensor.is_matrix and part.tensor.drafts]
    parts = [part for part in parts if part.tensor.role not in _NOT_READ]
    if not own:
        parts += [part for part in read_weights(spec, held) if part.tensor.layer is None]
    if any(part.storage not in device.products for part in parts):
        return None
    reading = sum(part.nbytes * token_share(spec, part) for part in parts) / device.read
    computing = sum(
        part.nbytes * token_share(spec, part) / device.products[part.storage].decode
        for part in parts
    )
    starting = (device.start * _operations(spec) + device.step) / len(spec.layers)
    return overlapped(reading, computing) + starting


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
        part.nbytes * share_met(spec, part, requests) for part in read_weights(spec, held)
    )
    return weights + requests * sum(cached_bytes(group, context) for group in groups)


def step_operations(
    spec: ModelSpec, held: Sequence[HeldWeight], tokens: int, samples: int
) -> float:
    """Multiplications and additions of a step's products, attention left out; logits are computed
    for so many of its tokens."""
    return sum(
        2
        * part.elements
        * token_share(spec, part)
        * (samples if part.tensor.role in ("head", "embedding") else tokens)
        for part in read_weights(spec, held)
    )


def _largest(parts: Mapping[str, float]) -> str:
    return max(parts, key=lambda name: parts[name])


def read_weights(spec: ModelSpec, held: Sequence[HeldWeight]) -> list[HeldWeight]:
    """What every step multiplies with, the draft head's left out; a tied table is the output
    head."""
    tied = spec.tie_word_embeddings and spec.writes_text
    return [
        part
        for part in held
        if part.tensor.is_matrix
        and not part.tensor.drafts
        and (part.tensor.role not in _NOT_READ or (tied and part.tensor.role == "embedding"))
    ]


def _decode(
    spec: ModelSpec,
    held: Sequence[HeldWeight],
    groups: Sequence[GroupSpec],
    device: DeviceSpeed,
    context: int,
    requests: int,
    rows: int,
) -> dict[str, float]:
    """Seconds of a step with a token of each request, by what bounds them; of `rows` tokens each
    it reads the weights."""
    nbytes: defaultdict[str, float] = defaultdict(float)
    ops: defaultdict[str, float] = defaultdict(float)
    scattered = 0.0
    for part in read_weights(spec, held):
        size = part.nbytes * share_met(spec, part, requests * rows)
        nbytes[part.storage] += size
        ops[part.storage] += 2 * part.elements * token_share(spec, part) * requests
        scattered += size if part.tensor.role == "experts" else 0
    reading = (sum(nbytes.values()) + scattered * (1 / device.experts - 1)) / device.read
    computing = 0.0
    for name, size in nbytes.items():
        speed = device.products[name]
        many = ops[name] / speed.prompt if requests > 1 else 0.0
        computing += max(size / speed.decode, many)
    kv = requests * sum(cached_bytes(group, context) for group in groups) / device.read
    return {
        _bound(reading, computing): overlapped(reading, computing),
        say("reading keys, values and states"): kv,
        say("starting operations"): device.start * _operations(spec) + device.step,
    }


def _prefill(spec: ModelSpec, held: Sequence[HeldWeight], device: DeviceSpeed) -> dict[str, float]:
    """Seconds of a prompt, by what bounds them. The head is for its last token alone."""
    ops: defaultdict[str, float] = defaultdict(float)
    nbytes = 0.0
    for part in read_weights(spec, held):
        nbytes += part.nbytes
        if part.tensor.role not in ("head", "embedding"):
            ops[part.storage] += 2 * part.elements * token_share(spec, part) * PROMPT_TOKENS
    computing = sum(count / device.products[name].prompt for name, count in ops.items())
    reading = nbytes / device.read
    # Half of the pairs are in the future.
    mean = PROMPT_TOKENS // 2
    attending = sum(mixer_operations(layer.mixer, mean) for layer in spec.layers)
    attention = PROMPT_TOKENS * attending / device.floats
    return {
        _bound(reading, computing): overlapped(reading, computing),
        say("arithmetic of attention"): attention,
        say("starting operations"): device.start * _operations(spec) + device.step,
    }


def exchanging(spec: ModelSpec, device: DeviceSpeed, tokens: int) -> float:
    """Behind each layer's mixer and behind its MLP; each device sends its part of the sums, and
    then the sums (fp16 or bf16)."""
    nbytes = 2 * 2 * tokens * spec.hidden_size
    return 2 * len(spec.layers) * (device.exchange + nbytes / device.link)


def _bound(reading: float, computing: float) -> str:
    return say("reading weights from memory" if reading >= computing else "multiplying weights")


def overlapped(one: float, other: float) -> float:
    longer, shorter = max(one, other), min(one, other)
    if longer in (0.0, inf):
        return longer
    return float(longer * (1 + (shorter / longer) ** _OVERLAP) ** (1 / _OVERLAP))


def token_share(spec: ModelSpec, part: HeldWeight) -> float:
    """The share of an experts' parameter that a token meets."""
    if part.tensor.role != "experts":
        return 1.0
    head, index = spec.draft_head, part.tensor.layer
    layer = head.layer if index is None and head is not None else spec.layers[index or 0]
    experts = layer.experts
    assert experts is not None  # the tensor is theirs
    return experts.top_k / (experts.num_chosen_from or experts.num_experts)


def share_met(spec: ModelSpec, part: HeldWeight, tokens: int) -> float:
    """The share of an experts' parameter that so many tokens meet together."""
    return met_together(token_share(spec, part), tokens)


def met_together(share: float, tokens: int) -> float:
    """What so many tokens meet, each a `share`, if routers choose evenly."""
    return 1 - (1 - share) ** tokens


def cached_bytes(group: GroupSpec, context: int) -> float:
    """Read for one token; a state is written, too."""
    if not isinstance(group, KVGroupSpec):
        return 2 * group.block_bytes
    seen = context if group.window is None else min(context, group.window)
    return group.block_bytes / group.block_size * seen


def mixer_operations(mixer: AttentionSpec | RecurrentSpec, context: int) -> float:
    """Operations of attention of one token behind `context` others, or of its state's update."""
    if not isinstance(mixer, AttentionSpec):
        return mixer.operations
    seen = context if mixer.window is None else min(context, mixer.window)
    return 4.0 * seen * mixer.num_heads * mixer.head_dim


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
