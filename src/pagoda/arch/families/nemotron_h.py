"""Nemotron-H, Nemotron Nano 2 and Nemotron 3 Nano (arXiv 2504.03624, 2508.14444, 2512.20848):
blocks of Mamba-2, of attention without rotation, and of layers or experts without gates."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pagoda.arch.blocks import Block, with_blocks
from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.grouped_moe import CONFIG_GROUPS, GGUF_GROUPS, expert_groups
from pagoda.arch.hybrid import MAX_CONV_WIDTH, attention_metadata
from pagoda.arch.mamba2 import (
    check_steps,
    groups_of,
    mamba2_from_gguf,
    mamba2_gguf_rules,
    mamba2_rules,
)
from pagoda.arch.moe import MAX_EXPERTS, correction_rules
from pagoda.arch.names import Traits, linear_rules, renamed, with_pairs_side_by_side
from pagoda.arch.read import MAX_HEADS, MAX_WIDTH, Reader, config_reader
from pagoda.arch.recurrent import Mamba2Spec
from pagoda.arch.spec import (
    AttentionSpec,
    ExpertTensors,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    SharedExpert,
    WeightRule,
)
from pagoda.base.errors import UnsupportedModelError

_NAME = "NemotronHForCausalLM"
_MAMBA, _ATTENTION, _MLP, _EXPERTS = "M", "*", "-", "E"
_KINDS = {
    "linear_attention": _MAMBA, "mamba": _MAMBA, "full_attention": _ATTENTION,
    "attention": _ATTENTION, "mlp": _MLP, "moe": _EXPERTS,
}  # fmt: skip
"""Names of kinds of blocks in newer files, and their letters in older ones."""
_ACTIVATIONS = {"mlp_hidden_act": "relu2", "mamba_hidden_act": "silu"}
_OWN_NAMES = {"model.embed_tokens.": "backbone.embeddings.", "model.norm.": "backbone.norm_f."}


@dataclass(frozen=True)
class _Names:
    """Where a checkpoint has a block's weights, whatever its kind; matrices without `.weight`."""

    norm: str
    q: str
    k: str
    v: str
    output: str
    up: str
    down: str
    router: str
    correction: str
    experts: ExpertTensors
    experts_up: str
    experts_down: str
    shared_up: str
    shared_down: str


_BLOCK = "backbone.layers.{layer}."
_MIXER = _BLOCK + "mixer."
_CONFIG = _Names(
    norm=_BLOCK + "norm",
    q=_MIXER + "q_proj",
    k=_MIXER + "k_proj",
    v=_MIXER + "v_proj",
    output=_MIXER + "o_proj",
    up=_MIXER + "up_proj",
    down=_MIXER + "down_proj",
    router=_MIXER + "gate",
    correction=_MIXER + "gate.e_score_correction_bias",
    experts=ExpertTensors(0, "single"),
    experts_up=_MIXER + "experts.{expert}.up_proj",
    experts_down=_MIXER + "experts.{expert}.down_proj",
    shared_up=_MIXER + "shared_experts.up_proj",
    shared_down=_MIXER + "shared_experts.down_proj",
)
"""As published; transformers (modeling_nemotron_h.py) saves them so, too."""
_GGUF = _Names(
    norm="blk.{layer}.attn_norm",
    q="blk.{layer}.attn_q",
    k="blk.{layer}.attn_k",
    v="blk.{layer}.attn_v",
    output="blk.{layer}.attn_output",
    up="blk.{layer}.ffn_up",
    down="blk.{layer}.ffn_down",
    router="blk.{layer}.ffn_gate_inp",
    correction="blk.{layer}.exp_probs_b.bias",
    experts=ExpertTensors(0, "stacked"),
    experts_up="blk.{layer}.ffn_up_exps",
    experts_down="blk.{layer}.ffn_down_exps",
    shared_up="blk.{layer}.ffn_up_shexp",
    shared_down="blk.{layer}.ffn_down_shexp",
)
"""As llama.cpp writes them (conversion/nemotron.py)."""


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    given = config_reader(config)
    check_steps(given)
    _check(given)
    kinds = _kinds(given)
    eps = given.number("layer_norm_epsilon", 1e-5, below=1.0)
    changed = {
        "num_hidden_layers": len(kinds),
        "head_dim": given.raw("head_dim") or given.raw("attention_head_dim"),
        "rms_norm_eps": eps,
        "tie_word_embeddings": False,  # whatever the file says, transformers ties nothing here
    }
    reader = config_reader({**config, **changed})
    spec = spec_from_config(reader, _NAME, Traits(), unrotated=range(len(kinds)))
    mamba = _mamba(reader, eps)
    parts = {
        _MAMBA: Block(mamba, tuple(mamba2_rules(mamba, _MIXER))),
        _ATTENTION: _attention(spec, _CONFIG),
        _MLP: _mlp(
            reader.integer("intermediate_size", MAX_WIDTH), reader.flag("mlp_bias", False), _CONFIG
        ),
    }
    if _EXPERTS in kinds:
        parts[_EXPERTS] = _mixture(_experts_from_config(reader), _CONFIG)
    spec = replace(spec, weights=renamed(spec.weights, _OWN_NAMES))
    spec = with_blocks(spec, [parts[kind] for kind in kinds], _CONFIG.norm + ".weight")
    # What guesses tokens in some of these files has blocks of its own.
    return replace(spec, ignored_weights=(*spec.ignored_weights, "mtp.*"))


def _check(reader: Reader) -> None:
    """UnsupportedModelError for what the published models do not have."""
    for name, known in _ACTIVATIONS.items():
        if reader.text(name, known) != known:
            raise UnsupportedModelError(
                f"config.json: {name} is {reader.raw(name)!r}; {_NAME} has {known} here."
            )
    if reader.has("moe_latent_size"):
        raise UnsupportedModelError(
            "This Nemotron's experts read and write fewer features than its blocks do "
            "(moe_latent_size), which is not supported; those of Nemotron 3 Nano are."
        )


def _kinds(reader: Reader) -> str:
    """A letter for each block."""
    name = "hybrid_override_pattern"
    if reader.has(name):
        found = reader.text(name)
    else:
        name = "layers_block_type"
        found = "".join(_KINDS.get(kind, "?") for kind in reader.texts(name))
    if not found or set(found) - set(_KINDS.values()):
        letters = " ".join(dict.fromkeys(_KINDS.values()))
        raise reader.error(name, f"must name {', '.join(_KINDS)}, or have the letters {letters}")
    return found


def _mamba(reader: Reader, eps: float) -> Mamba2Spec:
    heads = reader.integer("mamba_num_heads", MAX_HEADS, 128)
    return Mamba2Spec(
        num_heads=heads,
        head_dim=reader.integer("mamba_head_dim", MAX_WIDTH, 64),
        state_size=reader.integer("ssm_state_size", MAX_WIDTH, 128),
        num_groups=groups_of(reader, "n_groups", heads, 8),
        conv_width=reader.integer("conv_kernel", MAX_CONV_WIDTH, 4, minimum=2),
        norm_eps=eps,
        conv_bias=reader.flag("use_conv_bias", True),
        bias=reader.flag("use_bias", False),
    )


def _experts_from_config(reader: Reader) -> MoeSpec:
    if reader.flag("mlp_bias", False):
        raise UnsupportedModelError(
            "config.json: mlp_bias is true; this class's experts have no biases here, as those of "
            "Nemotron 3 Nano."
        )
    count = reader.integer("n_routed_experts", MAX_EXPERTS)
    top_k = reader.integer("num_experts_per_tok", count)
    return _experts(
        count,
        top_k,
        reader.integer("moe_intermediate_size", MAX_WIDTH),
        reader.integer("moe_shared_expert_intermediate_size", MAX_WIDTH),
        expert_groups(reader, CONFIG_GROUPS, count, top_k),
        reader.flag("norm_topk_prob", True),
        reader.number("routed_scaling_factor", 1.0),
    )


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    return _from_gguf(metadata, tensor_names, "nemotron_h.")


def moe_from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    return _from_gguf(metadata, tensor_names, "nemotron_h_moe.")


def _from_gguf(
    metadata: Mapping[str, Any], tensor_names: Collection[str], prefix: str
) -> ModelSpec:
    given = Reader(metadata, "GGUF metadata", prefix)
    _check(given)
    if given.integer("nextn_predict_layers", 64, 0, minimum=0):
        raise UnsupportedModelError(
            "This GGUF has blocks that guess tokens (nextn_predict_layers), which are not "
            "supported in this architecture; take one that was converted with --no-mtp."
        )
    widths = given.listed("feed_forward_length")
    width = max((size for size in widths if isinstance(size, int)), default=0)
    read = attention_metadata(metadata, prefix)
    read[prefix + "feed_forward_length"] = [size or width for size in widths]
    reader = Reader(read, "GGUF metadata", prefix)
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    unrotated = range(len(widths))
    spec = spec_from_gguf(
        reader, tokenizer, _NAME, Traits(), tensor_names, interleaved=True, unrotated=unrotated
    )
    kinds = _gguf_kinds(given, widths, tensor_names)
    mamba = mamba2_from_gguf(reader, tensor_names)
    bias = any(name.endswith(".ffn_up.bias") for name in tensor_names)
    parts = {
        _MAMBA: Block(mamba, tuple(mamba2_gguf_rules(mamba))),
        _ATTENTION: _attention(spec, _GGUF),
        _MLP: _mlp(width, bias, _GGUF),
    }
    if _EXPERTS in kinds:
        parts[_EXPERTS] = _mixture(_experts_from_gguf(reader), _GGUF)
    return with_blocks(spec, [parts[kind] for kind in kinds], _GGUF.norm + ".weight")


def _gguf_kinds(given: Reader, widths: Sequence[Any], tensor_names: Collection[str]) -> str:
    """A letter for each block: attention has KV heads, what feeds forward a width."""
    heads = given.listed("attention.head_count_kv")
    if len(heads) != len(widths):
        raise given.error("feed_forward_length", f"lists {len(widths)} blocks, not {len(heads)}")
    kinds = ""
    for index, (kv_heads, width) in enumerate(zip(heads, widths, strict=True)):
        fed = _EXPERTS if f"blk.{index}.ffn_gate_inp.weight" in tensor_names else _MLP
        kinds += _ATTENTION if kv_heads else fed if width else _MAMBA
    return kinds


def _experts_from_gguf(reader: Reader) -> MoeSpec:
    count = reader.integer("expert_count", MAX_EXPERTS)
    top_k = reader.integer("expert_used_count", count)
    return _experts(
        count,
        top_k,
        reader.integer("expert_feed_forward_length", MAX_WIDTH),
        reader.integer("expert_shared_feed_forward_length", MAX_WIDTH),
        expert_groups(reader, GGUF_GROUPS, count, top_k),
        reader.flag("expert_weights_norm", False),
        reader.number("expert_weights_scale", 1.0),
    )


def _experts(
    count: int,
    top_k: int,
    size: int,
    shared: int,
    groups: tuple[int, int],
    renormalize: bool,
    scale: float,
) -> MoeSpec:
    return MoeSpec(
        num_experts=count,
        top_k=top_k,
        intermediate_size=size,
        scoring="sigmoid",
        corrected=True,
        groups=groups[0],
        top_groups=groups[1],
        renormalize=renormalize,
        scale=scale,
        activation="relu2",
        gated=False,
        shared=SharedExpert(shared),
    )


def _attention(spec: ModelSpec, names: _Names) -> Block:
    """Rows of queries and keys have the order of the checkpoint's others, for what is trained
    beside them: llama.cpp puts halves side by side though nothing turns."""
    attention: AttentionSpec = spec.attentions[0]
    param, size = "layers.{layer}.attention.", attention.head_dim
    qkv = tuple(linear_rules(param + "qkv", (names.q, names.k, names.v), bias=False))
    if names is _GGUF:
        qkv = with_pairs_side_by_side(qkv, size, size)
    return Block(attention, (*qkv, *linear_rules(param + "output", (names.output,), bias=False)))


def _mlp(width: int, bias: bool, names: _Names) -> Block:
    up = linear_rules("layers.{layer}.mlp.up", (names.up,), bias)
    down = linear_rules("layers.{layer}.mlp.down", (names.down,), bias)
    return Block(MlpSpec(width, "relu2", bias, gated=False), (*up, *down))


def _mixture(experts: MoeSpec, names: _Names) -> Block:
    stored = replace(names.experts, count=experts.num_experts)
    matrices = {"gate_up": names.experts_up, "down": names.experts_down}
    others = {
        "router": names.router, "shared.up": names.shared_up, "shared.down": names.shared_down
    }  # fmt: skip

    def rule(param: str, source: str) -> WeightRule:
        return WeightRule(f"layers.{{layer}}.mlp.{param}.weight", (source + ".weight",))

    return Block(
        experts,
        (
            *(replace(rule(*name), experts=stored) for name in matrices.items()),
            *(rule(*name) for name in others.items()),
            *correction_rules(names.correction),
        ),
    )
