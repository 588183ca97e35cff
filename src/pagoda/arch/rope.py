"""How rotary embeddings are described in config.json and in GGUF metadata."""

import math
from collections.abc import Collection

from pagoda.arch.read import MAX_CONTEXT, MAX_WIDTH, Reader
from pagoda.arch.spec import RopeScaling, RopeSpec
from pagoda.base.errors import UnsupportedModelError

FACTORS_TENSOR = "rope_freqs.weight"
_SHORT_TENSOR, _LONG_TENSOR = "rope_factors_short.weight", "rope_factors_long.weight"


def rope_from_config(reader: Reader, head_dim: int, max_position: int) -> RopeSpec:
    """Read `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling`."""
    section = reader.section("rope_parameters") or reader.section("rope_scaling")
    holder = section if section is not None and section.has("rope_theta") else reader
    theta = holder.number("rope_theta", 10000.0, above=1.0)
    holder = section if section is not None and section.has("partial_rotary_factor") else reader
    share = holder.number("partial_rotary_factor", 1.0, below=1.0 + 1e-9)
    rotary_dim = _rotary_dim(reader, int(head_dim * share), head_dim)
    # Phi-3 states the trained length beside the section.
    trained = reader.integer("original_max_position_embeddings", MAX_CONTEXT, max_position)
    scaling = None
    if section is not None:
        scaling = _scaling_from_config(section, trained, max_position, rotary_dim)
    return RopeSpec(theta, rotary_dim, scaling)


def _scaling_from_config(
    section: Reader, trained: int, max_position: int, rotary_dim: int
) -> RopeScaling | None:
    kind = section.text("rope_type", section.raw("type") or "default")
    # "mrope" says that positions have several coordinates, and nothing of how they scale.
    if kind in ("default", "mrope"):
        return None
    original = section.integer("original_max_position_embeddings", MAX_CONTEXT, trained)
    match kind:
        case "linear":
            return RopeScaling("linear", section.number("factor"), max_position)
        case "dynamic":
            return RopeScaling("dynamic", section.number("factor"), max_position)
        case "llama3":
            return RopeScaling(
                kind="llama3",
                factor=section.number("factor"),
                original_max_position=original,
                low_freq_factor=section.number("low_freq_factor"),
                high_freq_factor=section.number("high_freq_factor"),
            )
        case "yarn":
            return _yarn_from_config(section, original, max_position)
        case "longrope" | "su":
            return _longrope_from_config(section, original, max_position, rotary_dim // 2)
    raise UnsupportedModelError(
        f"config.json asks for rotary scaling of type {kind!r}; "
        "known are linear, dynamic, llama3, yarn and longrope."
    )


def _yarn_from_config(section: Reader, original: int, max_position: int) -> RopeScaling:
    factor = section.number("factor", max_position / original)
    attention = yarn_magnitude(factor)
    if section.raw("mscale") and section.raw("mscale_all_dim"):
        attention = yarn_magnitude(factor, section.number("mscale")) / yarn_magnitude(
            factor, section.number("mscale_all_dim")
        )
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position=original,
        beta_fast=section.number("beta_fast", 32.0),
        beta_slow=section.number("beta_slow", 1.0),
        truncate=section.flag("truncate", True),
        attention_factor=section.number("attention_factor", attention),
    )


def _longrope_from_config(
    section: Reader, original: int, max_position: int, count: int
) -> RopeScaling:
    factor = section.number("factor", max_position / original)
    return RopeScaling(
        kind="longrope",
        factor=factor,
        original_max_position=original,
        attention_factor=section.number("attention_factor", longrope_magnitude(factor, original)),
        short_factors=section.numbers("short_factor", count),
        long_factors=section.numbers("long_factor", count),
    )


def rope_from_gguf(
    reader: Reader, head_dim: int, max_position: int, tensor_names: Collection[str]
) -> RopeSpec:
    """Read `rope.*`; the divisors of Llama 3's scaling and of longrope are tensors."""
    theta = reader.number("rope.freq_base", 10000.0, above=1.0)
    dimensions = reader.integer("rope.dimension_count", MAX_WIDTH, head_dim)
    rotary_dim = _rotary_dim(reader, dimensions, head_dim)
    if _LONG_TENSOR in tensor_names:
        scaling = _longrope_from_gguf(reader, max_position)
        return RopeSpec(theta, rotary_dim, scaling, _SHORT_TENSOR, _LONG_TENSOR)
    factors = FACTORS_TENSOR if FACTORS_TENSOR in tensor_names else None
    return RopeSpec(theta, rotary_dim, _scaling_from_gguf(reader, max_position), factors)


def _scaling_from_gguf(reader: Reader, max_position: int) -> RopeScaling | None:
    # llama.cpp: without a type, a factor (or its older name) means linear; 0 means none.
    kind = reader.text("rope.scaling.type", "linear")
    name = "rope.scaling.factor" if reader.raw("rope.scaling.factor") else "rope.scale_linear"
    if kind == "none" or not reader.raw(name):
        return None
    factor = reader.number(name)
    if kind == "linear":
        return None if factor == 1.0 else RopeScaling("linear", factor, max_position)
    if kind != "yarn":
        raise UnsupportedModelError(
            f"The GGUF asks for rotary scaling of type {kind!r}; known are linear and yarn."
        )
    magnitude = yarn_magnitude(factor)
    if reader.raw("rope.scaling.yarn_log_multiplier"):
        magnitude /= yarn_magnitude(factor, reader.number("rope.scaling.yarn_log_multiplier"))
    own = reader.number("rope.scaling.yarn_attn_factor", magnitude)
    original = reader.integer("rope.scaling.original_context_length", MAX_CONTEXT, max_position)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position=original,
        beta_fast=reader.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=reader.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=own * reader.number("rope.scaling.attn_factor", 1.0),
    )


def _longrope_from_gguf(reader: Reader, max_position: int) -> RopeScaling:
    original = reader.integer("rope.scaling.original_context_length", MAX_CONTEXT, max_position)
    return RopeScaling(
        kind="longrope",
        factor=max_position / original,
        original_max_position=original,
        attention_factor=reader.number("rope.scaling.attn_factor", 1.0),
    )


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """How much YaRN raises the attention logits' scale (arXiv 2309.00071, section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def longrope_magnitude(factor: float, original: int) -> float:
    """How much LongRoPE raises the attention logits' scale (arXiv 2402.13753; facts
    from microsoft/LongRoPE)."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))


def scaled_max_position(max_position: int, scaling: RopeScaling | None) -> int:
    """The context after scaling; Llama 3 and longrope state the scaled one already."""
    if scaling is None or scaling.kind in ("llama3", "longrope"):
        return max_position
    stretched = int(scaling.original_max_position * scaling.factor)
    return min(max(max_position, stretched), MAX_CONTEXT)


def _rotary_dim(reader: Reader, rotary_dim: int, head_dim: int) -> int:
    # At least 4, because dynamic scaling divides by rotary_dim - 2.
    if rotary_dim % 2 or not 4 <= rotary_dim <= head_dim:
        raise reader.error(
            "rotary dimension", f"must be even and between 4 and {head_dim}, not {rotary_dim}"
        )
    return rotary_dim
