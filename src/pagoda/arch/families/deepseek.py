"""DeepSeek V2, V2-Lite, V3, V3.1 and R1 (arXiv 2405.04434, 2412.19437), and what has their layers:
Kimi K2, Moonlight, GLM-4.7-Flash and, dense, Youtu-LLM. In multi-head latent attention keys and
values of all heads are made of one vector per token, which alone is cached; experts are chosen by a
softmax in V2 and by a sigmoid and a correction since then."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config, spec_from_gguf
from pagoda.arch.draft_head import (
    with_gguf_draft_head,
    with_nextn_draft_head,
    without_gguf_draft_heads,
)
from pagoda.arch.grouped_moe import (
    SIGMOID,
    SOFTMAX,
    first_sparse,
    with_config_experts,
    with_gguf_experts,
)
from pagoda.arch.latent import LatentSpec
from pagoda.arch.names import LATENT_CONFIG, LATENT_GGUF, LatentNames, Traits, latent_rules
from pagoda.arch.read import MAX_WIDTH, Reader, config_reader
from pagoda.arch.rope import yarn_magnitude
from pagoda.arch.spec import AttentionSpec, ModelSpec
from pagoda.base.errors import UnsupportedModelError

_V2, _V3 = "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"
_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"


def v2_from_config(config: Mapping[str, Any]) -> ModelSpec:
    spec, reader = latent_from_config(config, _V2)
    _refuse(
        reader,
        scoring_func=("softmax",),
        topk_method=("greedy", "group_limited_greedy"),
        norm_topk_prob=(False,),
        mlp_bias=(False,),
    )
    layers = range(first_sparse(reader, 0), len(spec.layers))
    grouped = reader.text("topk_method", "greedy") != "greedy"
    return with_config_experts(
        spec, reader, layers, corrected=False, grouped=grouped, renormalize=False
    )


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    return with_sigmoids(*latent_from_config(config, _V3), first=3)


def glm_from_config(config: Mapping[str, Any]) -> ModelSpec:
    config = {"rms_norm_eps": 1e-5, **config}
    return with_sigmoids(*latent_from_config(config, "Glm4MoeLiteForCausalLM"), first=1)


def youtu_from_config(config: Mapping[str, Any]) -> ModelSpec:
    return latent_from_config(config, "YoutuForCausalLM")[0]


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    spec, reader = latent_from_gguf(metadata, tensor_names, "deepseek2.", _V3)
    return with_gguf_parts(spec, reader, tensor_names)


def latent_from_gguf(
    metadata: Mapping[str, Any], tensor_names: Collection[str], prefix: str, architecture: str
) -> tuple[ModelSpec, Reader]:
    """The model as if all layers were dense; `prefix` is that of the metadata."""
    metadata, heads_of = without_gguf_draft_heads(metadata, prefix)
    reader = Reader(metadata, "GGUF metadata", prefix)
    if reader.raw("attention.temperature_scale"):
        raise UnsupportedModelError(
            "The GGUF scales queries by their position (attention.temperature_scale), as Mistral "
            "Large 3, which is not supported; DeepSeek's models do not."
        )
    rope_dim = reader.integer("rope.dimension_count", MAX_WIDTH)
    # Older files give heads' own sizes, newer ones those of the one KV head and these beside them.
    key = reader.integer("attention.key_length_mla", MAX_WIDTH, reader.raw("attention.key_length"))
    value = reader.integer(
        "attention.value_length_mla", MAX_WIDTH, reader.raw("attention.value_length")
    )
    if key <= rope_dim:
        raise reader.error("rope.dimension_count", f"is {rope_dim}, but keys have {key}")
    latent = LatentSpec(
        reader.integer("attention.kv_lora_rank", MAX_WIDTH),
        rope_dim,
        key - rope_dim,
        value,
        _query_rank(reader, "attention.q_lora_rank"),
    )
    # Heads as far as they are rotated; cosines and sines are not stretched by YaRN.
    sizes = {
        "attention.key_length": rope_dim,
        "attention.value_length": rope_dim,
        "attention.head_count_kv": reader.raw("attention.head_count"),
        _LOG_MULTIPLIER: 1.0 if reader.raw(_LOG_MULTIPLIER) else None,
    }
    rotated = {**metadata, **{prefix + name: size for name, size in sizes.items()}}
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    plain = Reader(rotated, "GGUF metadata", prefix)
    spec = spec_from_gguf(plain, tokenizer, architecture, Traits(), tensor_names)
    joined = "blk.0.attn_kv_b.weight" in tensor_names and (
        "blk.0.attn_k_b.weight" not in tensor_names
    )
    spec = _with_latents(spec, latent, LATENT_GGUF, _gguf_stretch(reader, spec), joined=joined)
    ignored = (*heads_of, *(() if joined else ("blk.*.attn_kv_b.weight",)))
    return replace(spec, ignored_weights=(*spec.ignored_weights, *ignored)), reader


def with_gguf_parts(spec: ModelSpec, reader: Reader, tensor_names: Collection[str]) -> ModelSpec:
    """With the experts and the draft head that the file has."""
    if reader.has("expert_count"):
        corrected = any("exp_probs_b" in name for name in tensor_names)
        spec = with_gguf_experts(spec, reader, SIGMOID if corrected else SOFTMAX)
    return with_gguf_draft_head(spec, reader, tensor_names)


def latent_from_config(
    config: Mapping[str, Any], architecture: str, *, sparse: bool = False
) -> tuple[ModelSpec, Reader]:
    """The model as if all layers were dense, and without the indexers of a `sparse` one."""
    reader = config_reader(config)
    _refuse(reader, attention_bias=(False,), rope_interleave=(True,), moe_layer_freq=(1,))
    if reader.has("index_topk") and not sparse:
        raise UnsupportedModelError(
            f"config.json: index_topk says that attention sees tokens that an indexer chooses, "
            f"which {architecture} does not have. DeepSeek V3.2 is a DeepseekV32ForCausalLM, "
            f"GLM-5 a GlmMoeDsaForCausalLM; both are supported."
        )
    latent = LatentSpec(
        reader.integer("kv_lora_rank", MAX_WIDTH),
        reader.integer("qk_rope_head_dim", MAX_WIDTH),
        reader.integer("qk_nope_head_dim", MAX_WIDTH),
        reader.integer("v_head_dim", MAX_WIDTH),
        _query_rank(reader, "q_lora_rank"),
    )
    # Heads as far as they are rotated.
    sizes = {"head_dim": latent.rope_dim, "num_key_value_heads": None}
    plain = config_reader({**config, **sizes})
    spec = spec_from_config(plain, architecture, Traits())
    section = reader.section("rope_parameters") or reader.section("rope_scaling")
    stretch = 1.0
    if section is not None and section.raw("mscale_all_dim") and section.has("factor"):
        stretch = yarn_magnitude(section.number("factor"), section.number("mscale_all_dim"))
    return _with_latents(spec, latent, LATENT_CONFIG, stretch, joined=True), reader


def with_sigmoids(spec: ModelSpec, reader: Reader, first: int) -> ModelSpec:
    """With experts that are chosen as in V3, behind `first` dense layers unless the file says it,
    and with its draft head."""
    _refuse(reader, scoring_func=("sigmoid",), topk_method=("noaux_tc",))
    kinds = reader.listed("mlp_layer_types")
    if kinds:
        first = next((i for i, kind in enumerate(kinds) if kind != "dense"), len(kinds))
        if list(kinds) != ["dense"] * first + ["sparse"] * (len(spec.layers) - first):
            raise UnsupportedModelError(
                "config.json: mlp_layer_types has dense layers behind sparse ones, which no "
                "published model with this attention has."
            )
    layers = range(first_sparse(reader, first), len(spec.layers))
    return with_nextn_draft_head(with_config_experts(spec, reader, layers), reader)


def _with_latents(
    spec: ModelSpec, latent: LatentSpec, names: LatentNames, stretch: float, *, joined: bool
) -> ModelSpec:
    """`stretch`: how much YaRN raises the scale of keys, and as much that of queries."""
    layers = []
    for layer in spec.layers:
        mixer = layer.mixer
        assert isinstance(mixer, AttentionSpec)
        if mixer.rope is None or mixer.rope.rotary_dim != latent.rope_dim:
            raise UnsupportedModelError(
                "The rotated part of each head is rotated in part (partial_rotary_factor), which "
                "DeepSeek's models do not have; they are supported."
            )
        mixer = replace(
            mixer,
            num_kv_heads=1,
            head_dim=latent.rank + latent.rope_dim,
            scale=latent.query_dim**-0.5 * stretch**2,
            values_are_keys=True,
            latent=latent,
        )
        layers.append(replace(layer, mixer=mixer))
    kept = [rule for rule in spec.weights if ".attention.qkv." not in rule.param]
    rules = latent_rules(names, latent, spec.attentions[0].num_heads, joined=joined)
    return replace(spec, layers=tuple(layers), weights=(*kept, *rules))


def _gguf_stretch(reader: Reader, spec: ModelSpec) -> float:
    """The converter writes a tenth of what config.json says, and llama.cpp undoes it for these
    models (ggml-org/llama.cpp#17945)."""
    rope = spec.attentions[0].rope
    if rope is None or rope.scaling is None or not reader.raw(_LOG_MULTIPLIER):
        return 1.0
    return yarn_magnitude(rope.scaling.factor, reader.number(_LOG_MULTIPLIER) / 0.1)


def _query_rank(reader: Reader, name: str) -> int | None:
    return reader.integer(name, MAX_WIDTH) if reader.has(name) else None


def _refuse(reader: Reader, **known: tuple[object, ...]) -> None:
    """UnsupportedModelError where a field has another value than those that are known."""
    for name, values in known.items():
        value = reader.raw(name)
        if value is not None and value not in values:
            words = " or ".join(map(repr, values))
            raise UnsupportedModelError(
                f"config.json: {name} is {value!r}; known is {words}, as published models have it."
            )
