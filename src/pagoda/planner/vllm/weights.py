"""What "Model loading took" says: weights of a rank and the buffers that are made with them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from math import prod

from pagoda.arch.spec import TOWERS, AttentionSpec, ModelSpec, RopeSpec
from pagoda.base.errors import ConfigError
from pagoda.base.units import format_bytes
from pagoda.planner.estimate import Estimate
from pagoda.planner.memory.tensor import ModelTensor, Part
from pagoda.planner.memory.tensors import model_tensors
from pagoda.planner.vllm.allocator import allocated
from pagoda.planner.vllm.setup import Run
from pagoda.weights.checkpoint import TensorInfo

# Rows of the vocabulary are padded to a multiple of this before ranks share them.
_VOCAB_UNIT = 64
_FLOATS = ("BF16", "F16", "F32")
_QUANTIZED = ("linear", "experts")
# Left in the checkpoint: what is computed anew, and what a tied head repeats.
_UNLOADED = ("*.inv_freq", "*.g_idx")
_MTP = "mtp.*"
# Positions of MRoPE's table for each of the model's.
_MROPE_POSITIONS = 4
# Of group quantization in 128s: 4 bits, a 16-bit scale, and at most a zero of 4 bits.
_INT4_BYTES = 0.5 + 2 / 128
# Of "4 bit" checkpoints that leave recurrent layers in bf16; the largest seen has 0.86 bytes for
# each parameter that others quantize (Qwopus3.6-27B-v2-AWQ-4bit: 25.03 GiB).
_INT4_MOST = 0.9
_WORDS = {"": "unquantized", "fp8": "fp8", "mxfp4": "mxfp4 experts"}
# Marlin, which computes for GPUs without fp8 of their own, has a 16-bit scale for each output and
# 128 inputs instead of one for each block.
_NATIVE_FP8 = (8, 9)
_MARLIN_BLOCK = 128


def stage_weights(
    spec: ModelSpec,
    tensors: Mapping[str, TensorInfo],
    run: Run,
    held: range,
) -> Estimate:
    """Bytes of the weights of one rank that holds these layers; the first stage has the embedding
    and the tower, the last the head.

    ConfigError for a quantization that is not known.
    """
    buffers = _buffers(spec, run, held)
    tables = f"{format_bytes(sum(buffers))} of them tables of rotations and vision's places"
    method = storage(spec, tensors, run)
    if method == "checkpoint":
        sizes = _header_sizes(spec, tensors, run, held)
        detail = f"{len(sizes)} tensors of the checkpoint's headers, {tables}"
        return Estimate.exactly(allocated([*sizes, *buffers]), detail)
    listed = [tensor for tensor in model_tensors(spec) if _on_stage(tensor, spec, held)]
    if run.drafters and held.stop == len(spec.layers):
        listed += list(_drafter(spec)) * run.drafters
    towers: list[int] = []
    if held.start == 0 and spec.vision is None:
        towers = [prod(info.shape) * run.width for info in _left_out(spec, tensors)]
    sizes = [size for tensor in listed for size in _bytes(tensor, spec, run, method)]
    total = allocated([*towers, *sizes, *buffers])
    if method != "int4":
        detail = f"{_WORDS[method]}, {len(sizes) + len(towers)} tensors, {tables}"
        return Estimate.exactly(total, detail)
    quantized = sum(
        prod(tensor.rank_shape(run.size)) for tensor in listed if tensor.role in _QUANTIZED
    )
    most = total + round(quantized * (_INT4_MOST - _INT4_BYTES))
    return Estimate(total, total, most, "4 bits in groups of 128, guessed without headers")


def storage(spec: ModelSpec, tensors: Mapping[str, TensorInfo], run: Run) -> str:
    """How the weights are held: "" as they are, fp8, mxfp4, as in the checkpoint's headers
    ("checkpoint"), or guessed without them ("int4")."""
    asked, published = run.quantization, spec.quantization
    if asked == "none":
        return ""
    if published == "MXFP4":
        if asked in ("auto", "mxfp4"):
            return "mxfp4"
    elif published:
        if tensors:
            return "checkpoint"
        return "fp8" if "FP8" in published.upper() or "8 bits" in published else "int4"
    if asked in ("auto", "fp8"):
        return "" if asked == "auto" else "fp8"
    raise ConfigError(
        f"--quantization {asked} does not fit: config.json says that the weights are not "
        "quantized. Take fp8, which rounds them while they load, or leave it out."
    )


def _on_stage(tensor: ModelTensor, spec: ModelSpec, held: range) -> bool:
    if tensor.layer is not None:
        return tensor.layer in held
    last = held.stop == len(spec.layers)
    if tensor.role in ("embedding", "table", "vision") or tensor.name.startswith(TOWERS):
        return held.start == 0 or (last and tensor.role == "embedding" and spec.tie_word_embeddings)
    return last


def _drafter(spec: ModelSpec) -> Iterator[ModelTensor]:
    """The MTP layer: one of attention like the model's last, behind a matrix that takes a token's
    embedding and hidden state together; embedding and head are the model's own."""
    hidden = spec.hidden_size
    last = max(
        index for index, layer in enumerate(spec.layers) if isinstance(layer.mixer, AttentionSpec)
    )
    yield from (tensor for tensor in model_tensors(spec) if tensor.layer == last)
    yield ModelTensor("mtp.fc.weight", (hidden, 2 * hidden), "linear", (Part(hidden, hidden),))
    for name in ("embedding_norm", "hidden_norm", "norm"):
        yield ModelTensor(f"mtp.{name}.weight", (hidden,), "vector")


def _bytes(tensor: ModelTensor, spec: ModelSpec, run: Run, method: str) -> list[int]:
    """Bytes of a rank's part: the matrix, and its scales if it has some."""
    if tensor.role in ("embedding", "head"):
        rows, columns = tensor.shape
        padded = -(-rows // _VOCAB_UNIT) * _VOCAB_UNIT
        return [-(-padded // run.size) * columns * run.width]
    if method == "mxfp4" and tensor.role == "experts":
        return _mxfp4_bytes(tensor, run)
    shape = _with_values(tensor, spec).rank_shape(run.size)
    elements = prod(shape)
    if tensor.role not in _QUANTIZED or not tensor.is_matrix:
        return [elements * run.width]
    if method == "fp8":
        # Without fp8 in hardware Marlin computes, with a scale for each output; else the scale is
        # one number, or one for each expert.
        if run.capability < _NATIVE_FP8:
            return [elements, elements // shape[-1] * run.width]
        return [elements, 4 * (shape[0] if tensor.role == "experts" else 1)]
    if method == "int4":
        return [round(elements * _INT4_BYTES)]
    return [elements * run.width]


def _with_values(tensor: ModelTensor, spec: ModelSpec) -> ModelTensor:
    """vLLM keeps a place for values also where a model takes its keys for them (Gemma 4)."""
    if tensor.layer is None or not tensor.name.startswith(f"layers.{tensor.layer}.attention.qkv."):
        return tensor
    mixer = spec.layers[tensor.layer].mixer
    assert isinstance(mixer, AttentionSpec)
    heads = Part(mixer.num_heads * mixer.head_dim, mixer.num_heads)
    shared = Part(mixer.num_kv_heads * mixer.head_dim, mixer.num_kv_heads)
    parts = (heads, shared, shared) + ((heads,) if mixer.output_gate else ())
    rows = sum(part.rows for part in parts)
    return replace(tensor, parts=parts, shape=(rows, *tensor.shape[1:]))


def padded_experts(hidden: int, wide: int, run: Run) -> tuple[int, int]:
    """Hidden and intermediate size of a rank's mxfp4 experts, as their kernel wants them
    (`mxfp4_round_up_hidden_size_and_intermediate_size`): TensorRT-LLM's on data centre Blackwell,
    Triton's on Hopper, Marlin's on others."""
    wide = -(-wide // run.size)
    if _has_triton_experts(run):
        return hidden, _up(wide, 64)
    return _up(hidden, 256), _up(wide, 256 if (10, 0) <= run.capability < (12, 0) else 128)


def _has_triton_experts(run: Run) -> bool:
    return (9, 0) <= run.capability < (10, 0)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _mxfp4_bytes(tensor: ModelTensor, run: Run) -> list[int]:
    """Half a byte each, and a byte of scale for 32."""
    count, rows = tensor.shape[:2]
    is_down = ".down." in tensor.name
    if not tensor.is_matrix:
        hidden, wide = padded_experts(rows if is_down else 1, 1 if is_down else rows // 2, run)
        return [count * (hidden if is_down else 2 * wide) * 2]
    columns = tensor.shape[2]
    hidden, wide = padded_experts(*((rows, columns) if is_down else (columns, rows // 2)), run)
    rows, columns = (hidden, wide) if is_down else (2 * wide, hidden)
    # Triton's layout for Hopper pads columns of values (120b on an H100, 0.14: 64.38 GiB logged).
    padded = _up(columns, 256) if _has_triton_experts(run) else columns
    return [count * rows * padded // 2, count * rows * columns // 32]


def _buffers(spec: ModelSpec, run: Run, held: range) -> list[int]:
    ropes: dict[tuple[int, RopeSpec], None] = {}
    for index in held:
        mixer = spec.layers[index].mixer
        if isinstance(mixer, AttentionSpec) and mixer.rope is not None:
            ropes[mixer.head_dim, mixer.rope] = None
    found = [_rope_bytes(rope, spec, run) for _, rope in ropes]
    if spec.vision is not None:
        found += [run.tokens * spec.hidden_size * run.width] * len(spec.vision.deepstack)
    return found


def _rope_bytes(rope: RopeSpec, spec: ModelSpec, run: Run) -> int:
    """A table of cosines and sines; layers with equal rotations share one."""
    positions = spec.max_position
    if rope.scaling is not None:
        stretched = int(rope.scaling.original_max_position * rope.scaling.factor)
        positions = stretched if rope.scaling.kind == "yarn" else positions
        # Two tables, for short and for long contexts.
        if rope.scaling.kind == "longrope":
            positions += rope.scaling.original_max_position
    if rope.axes is not None:
        positions *= _MROPE_POSITIONS
    width = 4 if spec.architecture == "GptOssForCausalLM" else run.width
    return positions * rope.rotary_dim * width


def _left_out(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> list[TensorInfo]:
    """A tower that the spec does not have and vLLM loads whole on each rank."""
    if spec.vision is not None:
        return []
    patterns = [pattern for pattern in spec.ignored_weights if "*" in pattern]
    return [
        info
        for name, info in tensors.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
        and not any(fnmatchcase(name, pattern) for pattern in (*_UNLOADED, _MTP))
    ]


def knows_towers(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> bool:
    """False for a checkpoint that has a tower of unknown size."""
    if spec.vision is not None or not any("vision" in name for name in spec.ignored_weights):
        return True
    return bool(tensors)


def _header_sizes(
    spec: ModelSpec, tensors: Mapping[str, TensorInfo], run: Run, held: range
) -> list[int]:
    """A quantized checkpoint's own bytes: what the spec says all ranks hold whole, and of all else
    a share."""
    skipped = list(_UNLOADED) if run.drafters else [*_UNLOADED, _MTP]
    if spec.tie_word_embeddings:
        skipped.append("lm_head.weight")
    whole = _replicated(spec) | {info.name for info in _left_out(spec, tensors)}
    return [
        -(-_loaded_bytes(info, tensors, run) // (1 if name in whole else run.size))
        for name, info in tensors.items()
        if not any(fnmatchcase(name, pattern) for pattern in skipped)
        and _layer_of(name, len(spec.layers)) in held
    ]


def _loaded_bytes(info: TensorInfo, tensors: Mapping[str, TensorInfo], run: Run) -> int:
    if info.type in _FLOATS:
        return prod(info.shape) * run.width
    if run.capability < _NATIVE_FP8 and info.name + "_scale_inv" in tensors:
        return info.nbytes + info.nbytes // _MARLIN_BLOCK * run.width
    return info.nbytes


def _replicated(spec: ModelSpec) -> frozenset[str]:
    whole = {
        tensor.name
        for tensor in model_tensors(spec)
        if not tensor.parts and not tensor.column_units
    }
    rules = spec.expanded_weights()
    return frozenset(name for rule in rules if rule.param in whole for name in rule.sources)


def _layer_of(name: str, count: int) -> int:
    """The language model's layer that a tensor of the checkpoint lies on or beside."""
    is_vision = "visual." in name or "vision" in name
    _, found, rest = name.partition("layers.")
    index = rest.partition(".")[0]
    if found and index.isdecimal() and not is_vision and not name.startswith("mtp."):
        return min(int(index), count - 1)
    return 0 if is_vision or "embed" in name else count - 1
