"""Sizes of Mamba-2's layers, and where checkpoints have their weights."""

from collections.abc import Collection
from math import inf

from pagoda.arch.hybrid import MAX_CONV_WIDTH
from pagoda.arch.names import linear_rules
from pagoda.arch.read import MAX_HEADS, MAX_WIDTH, Reader
from pagoda.arch.recurrent import Mamba2Spec
from pagoda.arch.spec import WeightRule
from pagoda.base.errors import UnsupportedModelError

# As Python's JSON writes it, and as transformers 5 does.
_UNBOUNDED = (inf, {"__float__": "Infinity"})
_PARAM = "layers.{layer}.mamba2."
_GGUF = "blk.{layer}.ssm_"


def mamba2_from_config(reader: Reader, hidden_size: int, norm_eps: float) -> Mamba2Spec:
    """By the names that Granite 4 and Bamba have for its sizes."""
    check_steps(reader)
    heads = reader.integer("mamba_n_heads", MAX_HEADS, 128)
    inner = reader.integer("mamba_expand", 64, 2) * hidden_size
    if inner % heads:
        raise reader.error("mamba_n_heads", f"is {heads}, which {inner} features cannot share")
    stated = reader.raw("mamba_d_head")
    if stated not in (None, "auto", inner // heads):
        raise reader.error("mamba_d_head", f"is {stated!r}, but {heads} heads have {inner}")
    return Mamba2Spec(
        num_heads=heads,
        head_dim=inner // heads,
        state_size=reader.integer("mamba_d_state", MAX_WIDTH, 256),
        num_groups=groups_of(reader, "mamba_n_groups", heads, 1),
        conv_width=reader.integer("mamba_d_conv", MAX_CONV_WIDTH, 4, minimum=2),
        norm_eps=norm_eps,
        conv_bias=reader.flag("mamba_conv_bias", True),
        bias=reader.flag("mamba_proj_bias", False),
    )


def check_steps(reader: Reader) -> None:
    """UnsupportedModelError where config.json bounds the step sizes."""
    limits = reader.listed("time_step_limit")
    if limits and (len(limits) != 2 or limits[0] != 0 or limits[1] not in _UNBOUNDED):
        raise UnsupportedModelError(
            f"config.json: time_step_limit is {list(limits)}; step sizes without bounds are "
            "supported."
        )


def groups_of(reader: Reader, name: str, heads: int, default: int) -> int:
    groups = reader.integer(name, heads, default)
    if heads % groups:
        raise reader.error(name, f"is {groups}, which {heads} heads cannot share")
    return groups


def mamba2_from_gguf(reader: Reader, tensor_names: Collection[str]) -> Mamba2Spec:
    heads = reader.integer("ssm.time_step_rank", MAX_HEADS)
    inner = reader.integer("ssm.inner_size", MAX_HEADS * MAX_WIDTH)
    if inner % heads:
        raise reader.error("ssm.inner_size", f"is {inner}, which {heads} heads cannot share")
    return Mamba2Spec(
        num_heads=heads,
        head_dim=inner // heads,
        state_size=reader.integer("ssm.state_size", MAX_WIDTH),
        num_groups=groups_of(reader, "ssm.group_count", heads, 1),
        conv_width=reader.integer("ssm.conv_kernel", MAX_CONV_WIDTH, minimum=2),
        norm_eps=reader.number("attention.layer_norm_rms_epsilon", below=1.0),
        conv_bias=any(name.endswith(".ssm_conv1d.bias") for name in tensor_names),
    )


def mamba2_rules(spec: Mamba2Spec, source: str) -> list[WeightRule]:
    """`source` is what stands before `in_proj`."""
    names = ("in_proj", "conv1d", "dt_bias", "D", "norm.weight", "out_proj")
    rate = WeightRule(_PARAM + "gates.rate", (source + "A_log",), value="-exp(x)")
    return [rate, *_rules(spec, *(source + name for name in names))]


def mamba2_gguf_rules(spec: Mamba2Spec) -> list[WeightRule]:
    """Names as llama.cpp writes them (conversion/mamba.py), which has the rates themselves."""
    names = ("in", "conv1d", "dt.bias", "d", "norm.weight", "out")
    rate = WeightRule(_PARAM + "gates.rate", (_GGUF + "a",))
    return [rate, *_rules(spec, *(_GGUF + name for name in names))]


def _rules(
    spec: Mamba2Spec, inputs: str, conv: str, bias: str, skip: str, norm: str, output: str
) -> list[WeightRule]:
    return [
        *linear_rules(_PARAM + "input", (inputs,), spec.bias),
        *linear_rules(_PARAM + "conv", (conv,), spec.conv_bias),
        WeightRule(_PARAM + "gates.bias", (bias,)),
        WeightRule(_PARAM + "gates.skip", (skip,)),
        WeightRule(_PARAM + "norm.weight", (norm,), folded=True),  # a row for each group
        *linear_rules(_PARAM + "output", (output,), spec.bias),
    ]
