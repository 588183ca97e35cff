"""Qwen3.5 and 3.6, dense: three layers of gated delta net (arXiv 2412.06464) to one of attention
with an output gate and partly rotated heads. Images are read by Qwen3-VL's tower, whose layers add
nothing to later ones here."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.draft_head import with_config_draft_head, with_gguf_draft_head
from pagoda.arch.families.qwen_vision import (
    config_sections,
    layers_with_axes,
    vision_from_config,
    vision_from_gguf,
)
from pagoda.arch.hybrid import MAX_CONV_WIDTH, recurrent_layers, with_recurrent
from pagoda.arch.names import Traits, config_rules, linear_rules
from pagoda.arch.read import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Reader, config_reader
from pagoda.arch.recurrent import DeltaNetSpec
from pagoda.arch.spec import (
    AttentionSpec,
    ModelSpec,
    RowPiece,
    WeightRule,
)

LANGUAGE_MODEL = "model.language_model."
_ARCHITECTURE = "Qwen3_5ForCausalLM"

InputRules = Callable[[str, DeltaNetSpec], list[WeightRule]]
"""Rules of a delta net's input, by what its tensors' names begin with."""


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    return with_config_draft_head(hybrid_from_config(config, _ARCHITECTURE, "model."), config)


def conditional_from_config(config: Mapping[str, Any]) -> ModelSpec:
    spec = hybrid_from_config(config, _ARCHITECTURE, LANGUAGE_MODEL)
    spec = with_tower(spec, config, "Qwen3_5ForConditionalGeneration")
    return with_config_draft_head(spec, config)


def with_tower(spec: ModelSpec, config: Mapping[str, Any], architecture: str) -> ModelSpec:
    """The spec of a checkpoint that also has a vision tower; without `vision_config` the language
    model."""
    if config.get("vision_config") is None:
        return spec
    return replace(
        spec,
        architecture=architecture,
        layers=layers_with_axes(spec.layers, *config_sections(config_reader(config))),
        vision=vision_from_config(config, spec.hidden_size),
    )


def _config_inputs(prefix: str, spec: DeltaNetSpec) -> list[WeightRule]:
    sources = ("qkv", "qkv", "qkv", "z", "b", "a")
    return input_rules(
        tuple(f"{prefix}in_proj_{name}" for name in sources), (*qkv_pieces(spec), None, None, None)
    )


def hybrid_from_config(
    config: Mapping[str, Any],
    architecture: str,
    prefix: str,
    inputs: InputRules = _config_inputs,
) -> ModelSpec:
    """With a dense mlp in every layer."""
    # Qwen3_5TextConfig's own defaults.
    reader = config_reader({"head_dim": 256, "partial_rotary_factor": 0.25, **config})
    bias = reader.flag("attention_bias", False)
    traits = Traits(qkv_bias=bias, output_bias=bias, qk_norm=True)
    spec = spec_from_config(reader, architecture, traits)
    delta_net = DeltaNetSpec(
        num_key_heads=reader.integer("linear_num_key_heads", MAX_HEADS),
        num_value_heads=reader.integer("linear_num_value_heads", MAX_HEADS),
        key_head_dim=reader.integer("linear_key_head_dim", MAX_WIDTH),
        value_head_dim=reader.integer("linear_value_head_dim", MAX_WIDTH),
        conv_width=reader.integer("linear_conv_kernel_dim", MAX_CONV_WIDTH),
    )
    _check_heads(reader, "linear_num_value_heads", delta_net)
    rules = config_rules(traits, spec.tie_word_embeddings, prefix)
    linear = prefix + "layers.{layer}.linear_attn."
    return _hybrid(
        spec,
        delta_net,
        _config_recurrent(reader, len(spec.layers)),
        [_zero_centred(rule) for rule in rules],
        [
            *inputs(linear, delta_net),
            _conv_rule(linear + "conv1d.weight", delta_net),
            WeightRule(_DELTA_NET + "gates.rate", (linear + "A_log",), value="-exp(x)"),
            WeightRule(_DELTA_NET + "gates.bias", (linear + "dt_bias",)),
            WeightRule(_DELTA_NET + "norm.weight", (linear + "norm.weight",)),
            WeightRule(_DELTA_NET + "output.weight", (linear + "out_proj.weight",)),
        ],
        # The draft head is for who asks for it (`with_config_draft_head`); a tower without sizes is
        # for nobody.
        ("mtp.*", "model.visual.*"),
    )


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    spec = hybrid_from_gguf(metadata, tensor_names, "qwen35.", _ARCHITECTURE, gguf_inputs)
    return with_gguf_draft_head(spec, Reader(metadata, "GGUF metadata", "qwen35."), tensor_names)


def gguf_inputs(prefix: str, spec: DeltaNetSpec) -> list[WeightRule]:
    names = ("attn_qkv", "attn_qkv", "attn_qkv", "attn_gate", "ssm_beta", "ssm_alpha")
    sources = tuple(prefix + name for name in names)
    return input_rules(sources, (*qkv_pieces(spec), None, None, None))


def hybrid_from_gguf(
    metadata: Mapping[str, Any],
    tensor_names: Collection[str],
    prefix: str,
    architecture: str,
    inputs: InputRules,
    *,
    tiled: bool = True,
) -> ModelSpec:
    """As `hybrid_from_config`; `prefix` is that of the metadata."""
    whole = Reader(metadata, "GGUF metadata", prefix)
    # The layers of draft heads lie behind the others (`with_gguf_draft_head`).
    drafting = whole.integer("nextn_predict_layers", MAX_LAYERS, 0, minimum=0)
    count = whole.integer("block_count", MAX_LAYERS)
    if drafting >= count:
        raise whole.error("nextn_predict_layers", f"is {drafting} of {count} layers")
    reader = Reader({**metadata, prefix + "block_count": count - drafting}, "GGUF metadata", prefix)
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    traits = Traits(qk_norm=True)
    # What llama.cpp names attn_qkv here is a delta net's; attention's q, k and v lie apart.
    names = [name for name in tensor_names if not name.endswith(".attn_qkv.weight")]
    spec = spec_from_gguf(reader, tokenizer, architecture, traits, names)
    heads = reader.integer("ssm.time_step_rank", MAX_HEADS)
    inner = reader.integer("ssm.inner_size", MAX_WIDTH)
    if inner % heads:
        raise reader.error("ssm.inner_size", f"is {inner}, which {heads} heads cannot share")
    delta_net = DeltaNetSpec(
        num_key_heads=reader.integer("ssm.group_count", MAX_HEADS),
        num_value_heads=heads,
        key_head_dim=reader.integer("ssm.state_size", MAX_WIDTH),
        value_head_dim=inner // heads,
        conv_width=reader.integer("ssm.conv_kernel", MAX_CONV_WIDTH),
        tiled=tiled,
    )
    _check_heads(reader, "ssm.time_step_rank", delta_net)
    every = reader.integer("full_attention_interval", MAX_LAYERS, 4)
    if "clip.projector_type" in metadata:
        spec = replace(
            spec,
            architecture=architecture.replace("ForCausalLM", "ForConditionalGeneration"),
            layers=layers_with_axes(spec.layers, reader, "rope.dimension_sections"),
            vision=vision_from_gguf(metadata, spec.hidden_size),
        )
    layer = "blk.{layer}."
    return _hybrid(
        spec,
        delta_net,
        [(index + 1) % every != 0 for index in range(len(spec.layers))],
        [
            replace(rule, sources=(layer + "post_attention_norm.weight",))
            if rule.param.endswith(".mlp_norm.weight")
            else rule
            for rule in spec.weights
        ],
        [
            *inputs(layer, delta_net),
            _conv_rule(layer + "ssm_conv1d.weight", delta_net),
            WeightRule(_DELTA_NET + "gates.rate", (layer + "ssm_a",)),
            WeightRule(_DELTA_NET + "gates.bias", (layer + "ssm_dt.bias",)),
            WeightRule(_DELTA_NET + "norm.weight", (layer + "ssm_norm.weight",)),
            WeightRule(_DELTA_NET + "output.weight", (layer + "ssm_out.weight",)),
        ],
        tuple(f"blk.{index}.*" for index in range(count - drafting, count)),
    )


_DELTA_NET = "layers.{layer}.delta_net."


def input_rules(sources: tuple[str, ...], pieces: tuple[RowPiece | None, ...]) -> list[WeightRule]:
    """Rules for q, k, v, the output gate z, the writing strength b and the decay a: linear layers
    without `.weight`, and which of their rows each one is."""
    return [
        replace(rule, pieces=pieces) for rule in linear_rules(_DELTA_NET + "input", sources, False)
    ]


def qkv_pieces(spec: DeltaNetSpec) -> tuple[RowPiece, RowPiece, RowPiece]:
    """q, k and v of one matrix."""
    keys = spec.num_key_heads * spec.key_head_dim
    values = spec.num_value_heads * spec.value_head_dim
    rows = 2 * keys + values
    return RowPiece(rows, 0, keys), RowPiece(rows, keys, keys), RowPiece(rows, 2 * keys, values)


def _conv_rule(source: str, spec: DeltaNetSpec) -> WeightRule:
    return WeightRule(_DELTA_NET + "conv.weight", (source,) * 3, pieces=qkv_pieces(spec))


def _hybrid(
    spec: ModelSpec,
    delta_net: DeltaNetSpec,
    recurrent: list[bool],
    dense_rules: Iterable[WeightRule],
    delta_rules: Iterable[WeightRule],
    ignored: tuple[str, ...],
) -> ModelSpec:
    """`spec`, a dense decoder's, with delta nets in some layers and output gates in the others."""
    head_dim = spec.attentions[0].head_dim
    gated = replace(
        spec,
        layers=tuple(
            replace(layer, mixer=replace(layer.mixer, output_gate=True))
            for layer in spec.layers
            if isinstance(layer.mixer, AttentionSpec)
        ),
        weights=tuple(_with_gate(rule, head_dim) for rule in dense_rules),
        ignored_weights=spec.ignored_weights + ignored,
    )
    return with_recurrent(gated, delta_net, recurrent, delta_rules)


def _with_gate(rule: WeightRule, head_dim: int) -> WeightRule:
    """q's matrix alternates with the gate's, head by head."""
    if not rule.param.startswith("layers.{layer}.attention.qkv."):
        return rule
    q, gate = RowPiece(2 * head_dim, 0, head_dim), RowPiece(2 * head_dim, head_dim, head_dim)
    return replace(rule, sources=(*rule.sources, rule.sources[0]), pieces=(q, None, None, gate))


def _zero_centred(rule: WeightRule) -> WeightRule:
    """Weights of RMSNorm are stored less 1, but for those in delta nets."""
    return replace(rule, value="1 + x") if rule.param.endswith("norm.weight") else rule


def _config_recurrent(reader: Reader, num_layers: int) -> list[bool]:
    """Which layers are delta nets: by `layer_types`, else all but every fourth."""
    if not reader.has("layer_types"):
        every = reader.integer("full_attention_interval", MAX_LAYERS, 4)
        return [(index + 1) % every != 0 for index in range(num_layers)]
    kinds = {"full_attention": False, "linear_attention": True}
    return recurrent_layers(reader, num_layers, kinds)


def _check_heads(reader: Reader, name: str, spec: DeltaNetSpec) -> None:
    if spec.num_value_heads % spec.num_key_heads:
        raise reader.error(
            name,
            f"is {spec.num_value_heads}, which {spec.num_key_heads} key heads cannot share equally",
        )
