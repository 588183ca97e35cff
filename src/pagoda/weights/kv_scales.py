"""Scales of an fp8 KV cache, as quantized checkpoints publish them.

compressed-tensors writes `self_attn.k_scale`, for all heads or one per KV head; ModelOpt
`self_attn.k_proj.k_scale`; AutoFP8 `self_attn.kv_scale` for both, or `k_proj.output_scale`; and
vLLM's own names have `self_attn.attn.k_scale`.
"""

import re

_SCALE = re.compile(r".*\.(?:k_scale|v_scale|kv_scale|k_proj\.output_scale|v_proj\.output_scale)")


def is_kv_scale(name: str) -> bool:
    """Whether a checkpoint's tensor is a scale of keys, of values or of both."""
    return _SCALE.fullmatch(name) is not None


def names_of(attention: str, part: str) -> list[str]:
    """What the scale of `k` or of `v` of a layer's attention may be called, the first name that is
    there being right."""
    ends = (
        f"{part}_scale", f"attn.{part}_scale", f"{part}_proj.{part}_scale",
        f"qkv_proj.{part}_scale", "kv_scale", "attn.kv_scale", f"{part}_proj.output_scale",
    )  # fmt: skip
    return [f"{attention}.{end}" for end in ends]
