"""Gemma 4: layers with a window between global ones, whose heads are wider and turn in part.
In 26B-A4B and 31B their values are their keys, and the former has experts beside each mlp; in E2B
and E4B layers have inputs of their own, and the last ones borrow keys and values."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.families.gemma import (
    CONFIG_NORMS,
    GGUF_NORMS,
    LAYER,
    embedding_scale,
    final_cap,
    gguf_pattern,
    layer_kinds,
    refuse_encoders,
    refuse_other_activations,
    rope_section,
    seeing,
    with_norms,
)
from pagoda.arch.families.gemma4_vision import vision_from_config, vision_from_gguf
from pagoda.arch.families.gemma_small import (
    borrowed,
    config_input_rules,
    config_inputs,
    gguf_input_rules,
    gguf_inputs,
    without_borrowed,
)
from pagoda.arch.moe import MAX_EXPERTS, expert_rules, gguf_rules
from pagoda.arch.names import Traits, config_rules
from pagoda.arch.read import MAX_CONTEXT, MAX_HEADS, MAX_WIDTH, Reader, config_reader
from pagoda.arch.spec import (
    AttentionSpec,
    ExpertTensors,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    RopeSpec,
    WeightRule,
)
from pagoda.base.errors import UnsupportedModelError

_NAME, _SEEING = "Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"
# Sound is not read yet.
_AUDIO = ("model.audio_tower.*", "model.embed_audio.*")
_GGUF_AUDIO = ("a.*", "mm.a.*")


@dataclass(frozen=True)
class _Sizes:
    """What differs between the layers with a window and the global ones."""

    kv_heads: int
    head_dim: int
    rope: RopeSpec
    values_are_keys: bool = False
    window: int | None = None
    borrows: int = 0


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    return _from_config(config, "model.")


def conditional_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """The spec of a checkpoint that may have towers for pictures and, left out here, sound."""
    spec = _from_config(config, "model.language_model.")
    spec = replace(spec, ignored_weights=(*spec.ignored_weights, *_AUDIO))
    both_ways = config_reader(config).raw("use_bidirectional_attention") == "vision"
    if config.get("vision_config") is None:
        return spec
    return seeing(spec, _SEEING, vision_from_config(config, both_ways), wide=False)


def _from_config(config: Mapping[str, Any], prefix: str) -> ModelSpec:
    reader = config_reader({"tie_word_embeddings": True, **config})
    _refuse_other_kinds(reader)
    traits = Traits(qkv_bias=reader.flag("attention_bias", False), qk_norm=True)
    traits = replace(traits, output_bias=traits.qkv_bias)
    spec = spec_from_config(reader, _NAME, traits)
    kinds = layer_kinds(reader, len(spec.layers))
    sizes = {kind: _config_sizes(reader, kind, kinds) for kind in dict.fromkeys(kinds)}
    borrows = borrowed(reader, "num_kv_shared_layers", kinds)
    experts = _config_experts(reader)
    inputs = config_inputs(reader)
    rules = config_rules(traits, spec.tie_word_embeddings, prefix)
    layer = prefix + "layers.{layer}."
    names = {name: f"{layer}{source}.weight" for name, source in _CONFIG_NORMS.items()}
    spec = replace(_with_wide_mlps(spec, reader, borrows), layer_inputs=inputs)
    return _assembled(
        spec,
        [replace(sizes[kind], borrows=back) for kind, back in zip(kinds, borrows, strict=True)],
        experts,
        (
            *rules,
            *config_input_rules(inputs, prefix),
            WeightRule(LAYER + "scale.weight", (layer + "layer_scalar",)),
            *(() if experts is None else _config_expert_rules(experts, layer)),
        ),
        names,
        final_cap(reader),
    )


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "gemma4.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    if "blk.0.attn_qkv.weight" in tensor_names:
        raise UnsupportedModelError(
            "The GGUF keeps q, k and v of Gemma 4 in one tensor, which is not supported; take a "
            "file that was converted without --fuse-qkv."
        )
    spec = spec_from_gguf(reader, tokenizer, _NAME, Traits(qk_norm=True), tensor_names)
    pattern = gguf_pattern(reader, len(spec.layers))
    borrows = borrowed(reader, "attention.shared_kv_layers", pattern)
    inputs = gguf_inputs(reader, spec.vocab_size)
    spec = replace(spec, layer_inputs=inputs)
    sizes = []
    for index, (local, back) in enumerate(zip(pattern, borrows, strict=True)):
        shared = not back and f"blk.{index}.attn_v.weight" not in tensor_names
        sizes.append(replace(_gguf_sizes(reader, spec, index, local, shared), borrows=back))
    experts = _gguf_experts(reader)
    names = {name: f"blk.{{layer}}.{source}.weight" for name, source in _GGUF_NORMS.items()}
    spec = _assembled(
        spec,
        sizes,
        experts,
        (
            *spec.weights,
            *gguf_input_rules(inputs),
            WeightRule(LAYER + "scale.weight", ("blk.{layer}.layer_output_scale.weight",)),
            *(() if experts is None else _gguf_expert_rules(experts, tensor_names)),
        ),
        names,
        final_cap(reader),
    )
    if "clip.vision.projection_dim" not in metadata:
        return spec
    # Small models look at pictures as they look at text.
    both_ways = inputs is None
    vision = vision_from_gguf(metadata, tensor_names, spec.hidden_size, both_ways)
    spec = replace(spec, ignored_weights=(*spec.ignored_weights, *_GGUF_AUDIO))
    return seeing(spec, _SEEING, vision, wide=False)


_CONFIG_NORMS = {
    **CONFIG_NORMS,
    "mlp_result_norm": "post_feedforward_layernorm_1",
    "experts_norm": "pre_feedforward_layernorm_2",
    "experts_result_norm": "post_feedforward_layernorm_2",
}
_GGUF_NORMS = {
    **GGUF_NORMS,
    "mlp_result_norm": "post_ffw_norm_1",
    "experts_norm": "pre_ffw_norm_2",
    "experts_result_norm": "post_ffw_norm_2",
}
_EXPERT_NORMS = ("mlp_result_norm", "experts_norm", "experts_result_norm")


def _assembled(
    spec: ModelSpec,
    sizes: list[_Sizes],
    experts: MoeSpec | None,
    rules: tuple[WeightRule, ...],
    norms: Mapping[str, str],
    logit_cap: float | None,
) -> ModelSpec:
    """`spec`, a dense decoder's, with these layers; `norms` names the tensors of theirs."""
    own = {
        name: source
        for name, source in norms.items()
        if experts is not None or name not in _EXPERT_NORMS
    }
    weights, unused = without_borrowed(
        [part for rule in with_norms(rules, own) for part in _without_values(rule, sizes)],
        [kind.borrows for kind in sizes],
    )
    return replace(
        spec,
        layers=tuple(
            _layer(layer, kind, experts) for layer, kind in zip(spec.layers, sizes, strict=True)
        ),
        weights=weights,
        ignored_weights=(*spec.ignored_weights, *unused),
        embedding_scale=embedding_scale(spec),
        logit_cap=logit_cap,
    )


def _layer(layer: LayerSpec, sizes: _Sizes, experts: MoeSpec | None) -> LayerSpec:
    assert isinstance(layer.mixer, AttentionSpec) and isinstance(layer.mlp, MlpSpec)
    mixer = replace(
        layer.mixer,
        kind="full" if sizes.window is None else "sliding",
        num_kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        scale=1.0,
        rope=sizes.rope,
        window=sizes.window,
        value_norm=True,
        values_are_keys=sizes.values_are_keys,
        borrows=sizes.borrows,
    )
    mlp = replace(layer.mlp, activation="gelu_tanh")
    return LayerSpec(mixer, mlp, experts, sandwiched=True, scaled=True)


def _without_values(rule: WeightRule, sizes: list[_Sizes]) -> list[WeightRule]:
    """The rule of q, k and v for the layers that have these, and one for the others."""
    if not rule.param.startswith(LAYER + "attention.qkv."):
        return [rule]
    q, k, _ = rule.sources
    shared = tuple(index for index, own in enumerate(sizes) if own.values_are_keys)
    apart = tuple(index for index in range(len(sizes)) if index not in shared)
    return [replace(rule, layers=apart), replace(rule, sources=(q, k), layers=shared)]


def _refuse_other_kinds(reader: Reader) -> None:
    refuse_encoders(reader, "Gemma 4")
    refuse_other_activations(reader, _NAME)


def _with_wide_mlps(spec: ModelSpec, reader: Reader, borrows: list[int]) -> ModelSpec:
    """With mlps of twice the width, where layers that borrow keys and values have such."""
    if not reader.flag("use_double_wide_mlp", False):
        return spec
    layers = []
    for layer, back in zip(spec.layers, borrows, strict=True):
        assert isinstance(layer.mlp, MlpSpec)
        width = layer.mlp.intermediate_size * (2 if back else 1)
        layers.append(replace(layer, mlp=replace(layer.mlp, intermediate_size=width)))
    return replace(spec, layers=tuple(layers))


def _config_sizes(reader: Reader, kind: str, kinds: tuple[str, ...]) -> _Sizes:
    """Sizes of the layers of one kind; transformers 5 saves those that differ layer by layer."""
    heads = reader.integer("num_attention_heads", MAX_HEADS)
    kv_heads = reader.integer("num_key_value_heads", MAX_HEADS)
    head_dim = reader.integer("head_dim", MAX_WIDTH)
    window, shared = None, False
    if kind == "sliding_attention":
        window = reader.integer("sliding_window", MAX_CONTEXT)
    else:
        shared = reader.flag("attention_k_eq_v", False)
        own = _saved_layer(reader, kinds.index(kind))
        if own is None:
            head_dim = reader.integer("global_head_dim", MAX_WIDTH, 512)
            if shared:
                kv_heads = reader.integer("num_global_key_value_heads", MAX_HEADS, kv_heads)
        else:
            head_dim = own.integer("head_dim", MAX_WIDTH, head_dim)
            kv_heads = own.integer("num_key_value_heads", MAX_HEADS, kv_heads)
    if heads % kv_heads:
        raise reader.error(
            "num_key_value_heads", f"gives {kv_heads}, which {heads} heads cannot share equally"
        )
    return _Sizes(kv_heads, head_dim, _config_rope(reader, kind, head_dim), shared, window)


def _saved_layer(reader: Reader, index: int) -> Reader | None:
    layers = reader.section("per_layer_config")
    return None if layers is None else layers.section(str(index)) or Reader({}, "config.json")


def _config_rope(reader: Reader, kind: str, head_dim: int) -> RopeSpec:
    section = rope_section(reader, kind)
    theta = section.number("rope_theta", 10000.0, above=1.0)
    rope_type = section.text("rope_type", "default")
    if rope_type == "default":
        return RopeSpec(theta, head_dim)
    if rope_type != "proportional" or section.number("factor", 1.0) != 1.0:
        raise UnsupportedModelError(
            f"config.json asks for rotary scaling of type {rope_type!r}; in Gemma 4 known are "
            "default, and proportional without a factor."
        )
    share = section.number("partial_rotary_factor", 1.0, below=1.0 + 1e-9)
    return RopeSpec(theta, head_dim, num_turning=int(share * head_dim // 2))


def _gguf_sizes(reader: Reader, spec: ModelSpec, index: int, local: bool, shared: bool) -> _Sizes:
    mixer = spec.layers[index].mixer
    assert isinstance(mixer, AttentionSpec) and mixer.rope is not None
    if not local:
        return _Sizes(mixer.num_kv_heads, mixer.head_dim, mixer.rope, shared)
    head_dim = reader.integer("attention.key_length_swa", MAX_WIDTH)
    turning = reader.integer("rope.dimension_count_swa", MAX_WIDTH, head_dim)
    if turning != head_dim:
        raise reader.error("rope.dimension_count_swa", f"is {turning}, but heads have {head_dim}")
    theta = reader.number("rope.freq_base_swa", 10000.0, above=1.0)
    window = reader.integer("attention.sliding_window", MAX_CONTEXT)
    return _Sizes(mixer.num_kv_heads, head_dim, RopeSpec(theta, head_dim), shared, window)


def _config_experts(reader: Reader) -> MoeSpec | None:
    if not reader.flag("enable_moe_block", False):
        return None
    count = reader.integer("num_experts", MAX_EXPERTS)
    top_k = reader.integer("top_k_experts", count)
    return _experts(count, top_k, reader.integer("moe_intermediate_size", MAX_WIDTH))


def _gguf_experts(reader: Reader) -> MoeSpec | None:
    if not reader.raw("expert_count"):
        return None
    count = reader.integer("expert_count", MAX_EXPERTS)
    top_k = reader.integer("expert_used_count", count)
    return _experts(count, top_k, reader.integer("expert_feed_forward_length", MAX_WIDTH))


def _experts(count: int, top_k: int, size: int) -> MoeSpec:
    return MoeSpec(count, top_k, size, renormalize=True, expert_scales=True, activation="gelu_tanh")


def _config_expert_rules(experts: MoeSpec, layer: str) -> list[WeightRule]:
    param = LAYER + "experts."
    return [
        WeightRule(LAYER + "router_norm.weight", (layer + "router.scale",)),
        WeightRule(param + "router.weight", (layer + "router.proj.weight",)),
        WeightRule(param + "scales.weight", (layer + "router.per_expert_scale",)),
        *expert_rules(experts, "stacked", layer, param),
    ]


def _gguf_expert_rules(experts: MoeSpec, tensor_names: Collection[str]) -> list[WeightRule]:
    stored = ExpertTensors(experts.num_experts, "stacked", parts=2)
    layer, mlp, param = "blk.{layer}.ffn_", LAYER + "mlp.", LAYER + "experts."
    rules = [replace(rule, param=rule.param.replace(mlp, param)) for rule in gguf_rules(experts)]
    if "blk.0.ffn_gate_up_exps.weight" in tensor_names:
        whole = WeightRule(param + "gate_up.weight", (layer + "gate_up_exps.weight",),
                           experts=stored)  # fmt: skip
        rules = [whole if rule.param == whole.param else rule for rule in rules]
    return [
        *rules,
        WeightRule(LAYER + "router_norm.weight", (layer + "gate_inp.scale",)),
        WeightRule(param + "scales.weight", (layer + "down_exps.scale",)),
    ]
