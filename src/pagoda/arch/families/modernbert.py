"""ModernBERT (arXiv 2412.13663): an encoder whose positions turn, whose feed-forward part is gated,
and which sees the whole text in every third layer, else what is near."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pagoda.arch.encoder import EncoderSpec
from pagoda.arch.families.encoders import (
    attention_of,
    encoder_activation,
    encoder_attention,
    gguf_pooling,
)
from pagoda.arch.heads import classifier_pooling
from pagoda.arch.names import linear_rules
from pagoda.arch.read import (
    MAX_CONTEXT,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    Reader,
    checkpoint_dtype,
    config_reader,
)
from pagoda.arch.rope import rope_from_config
from pagoda.arch.spec import (
    AttentionSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    PoolingSpec,
    RopeSpec,
    WeightRule,
)
from pagoda.base.errors import UnsupportedModelError

_NAME, _CLASSIFIER = "ModernBertModel", "ModernBertForSequenceClassification"
_WIDE, _NEAR = "full_attention", "sliding_attention"
_THETA, _LOCAL = 160_000.0, 10_000.0
_PERIOD, _SEEN = 3, 128


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    return _from_config(config, _NAME, "")


def masked_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """A model that guesses masked words, as the base models are published: without that head."""
    return _from_config(config, _NAME, "model.")


def classifier_from_config(config: Mapping[str, Any]) -> ModelSpec:
    return _from_config(config, _CLASSIFIER, "model.")


class _Sizes(NamedTuple):
    vocab: int
    hidden: int
    max_position: int
    norm_eps: float
    dtype: str


def _from_config(config: Mapping[str, Any], architecture: str, prefix: str) -> ModelSpec:
    reader = config_reader(config)
    for field in ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"):
        if reader.flag(field, False):
            raise UnsupportedModelError(
                f"config.json: {field} is true; no published ModernBERT has these biases, and this "
                "program's has none. Choose a model without."
            )
    sizes = _Sizes(
        reader.integer("vocab_size", MAX_VOCAB),
        reader.integer("hidden_size", MAX_WIDTH),
        reader.integer("max_position_embeddings", MAX_CONTEXT),
        reader.number("norm_eps", 1e-5, below=1.0),
        checkpoint_dtype(reader, "float32"),
    )
    mlp = MlpSpec(
        reader.integer("intermediate_size", MAX_WIDTH),
        encoder_activation(reader, "hidden_activation"),
    )
    attentions = _attentions(reader, sizes.max_position)
    classifies = architecture == _CLASSIFIER
    pooling = _classifier(reader) if classifies else PoolingSpec("cls")
    rules = _config_rules(prefix, len(attentions), classifies)
    # What guesses masked words stands on a model that is no classifier.
    ignored = () if classifies else ("head.*", "decoder.*")
    spec = _spec(architecture, attentions, mlp, sizes, rules, pooling)
    return replace(spec, ignored_weights=ignored)


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", "modern-bert.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    sizes = _Sizes(
        len(tokenizer.listed("tokens")),
        reader.integer("embedding_length", MAX_WIDTH),
        reader.integer("context_length", MAX_CONTEXT),
        reader.number("attention.layer_norm_epsilon", 1e-5, below=1.0),
        "float32",
    )
    mlp = MlpSpec(
        reader.integer("feed_forward_length", MAX_WIDTH),
        encoder_activation(reader, "hidden_activation"),
    )
    attentions = _gguf_attentions(reader, sizes.hidden)
    pooling = gguf_pooling(reader, tensor_names, "cls")
    architecture = _CLASSIFIER if pooling.labels else _NAME
    rules = _gguf_rules(len(attentions), bool(pooling.labels))
    return _spec(architecture, attentions, mlp, sizes, rules, pooling)


def _spec(
    architecture: str,
    attentions: tuple[AttentionSpec, ...],
    mlp: MlpSpec,
    sizes: _Sizes,
    rules: tuple[WeightRule, ...],
    pooling: PoolingSpec,
) -> ModelSpec:
    layers = tuple(
        LayerSpec(attention, mlp, norms="before" if index else "mlp")
        for index, attention in enumerate(attentions)
    )
    return ModelSpec(
        architecture=architecture,
        vocab_size=sizes.vocab,
        hidden_size=sizes.hidden,
        layers=layers,
        norm_eps=sizes.norm_eps,
        tie_word_embeddings=True,
        max_position=sizes.max_position,
        dtype=sizes.dtype,
        weights=rules,
        encoder=EncoderSpec(norm_bias=False, final_norm=True, head="normed", head_bias=False),
        writes_text=False,
        pooling=pooling,
    )


def _attentions(reader: Reader, max_position: int) -> tuple[AttentionSpec, ...]:
    """By transformers 5's lists and sections, or by the fields that were before these."""
    count = reader.integer("num_hidden_layers", MAX_LAYERS)
    period = reader.integer("global_attn_every_n_layers", MAX_LAYERS, _PERIOD)
    kinds = reader.listed("layer_types") or [
        _NEAR if index % period else _WIDE for index in range(count)
    ]
    if len(kinds) != count or not set(kinds) <= {_NEAR, _WIDE}:
        raise reader.error("layer_types", f"must say {_NEAR} or {_WIDE} of each of {count} layers")
    window = reader.integer("local_attention", MAX_CONTEXT, _SEEN) // 2 + 1
    rope, local_rope = (
        _rope(reader, *fields, max_position)
        for fields in ((_WIDE, "global_rope_theta", _THETA), (_NEAR, "local_rope_theta", _LOCAL))
    )
    wide = encoder_attention(reader, rope, bias=False)
    near = encoder_attention(reader, local_rope, bias=False, window=window)
    return tuple(near if kind == _NEAR else wide for kind in kinds)


def _rope(reader: Reader, kind: str, old: str, theta: float, max_position: int) -> RopeSpec:
    hidden = reader.integer("hidden_size", MAX_WIDTH)
    head_dim = hidden // reader.integer("num_attention_heads", MAX_HEADS)
    sections = reader.section("rope_parameters")
    fields: dict[str, Any] = {"rope_theta": reader.number(old, theta, above=1.0)}
    if sections is not None and sections.has(kind):
        fields["rope_parameters"] = sections.raw(kind)
    return rope_from_config(Reader(fields, "config.json"), head_dim, max_position)


def _gguf_attentions(reader: Reader, hidden: int) -> tuple[AttentionSpec, ...]:
    heads = reader.integer("attention.head_count", MAX_HEADS)
    theta = reader.number("rope.freq_base", 10_000.0, above=1.0)
    local = reader.number("rope.freq_base_swa", theta, above=1.0)
    seen = reader.integer("attention.sliding_window", MAX_CONTEXT, 0, minimum=0)
    period = reader.integer("attention.sliding_window_pattern", MAX_LAYERS, _PERIOD)
    size = hidden // heads
    wide = attention_of(hidden, heads, RopeSpec(theta, size), bias=False, reader=reader)
    near = wide
    if seen:
        near = replace(wide, rope=RopeSpec(local, size), window=seen // 2 + 1)
    count = reader.integer("block_count", MAX_LAYERS)
    return tuple(near if index % period else wide for index in range(count))


def _classifier(reader: Reader) -> PoolingSpec:
    if reader.text("classifier_activation", "gelu") != "gelu":
        raise UnsupportedModelError(
            f"config.json: classifier_activation is {reader.raw('classifier_activation')!r}; a "
            "ModernBERT's classifier has gelu here."
        )
    method = reader.text("classifier_pooling", "cls")
    if method not in ("cls", "mean"):
        raise reader.error("classifier_pooling", f"is {method!r}, neither 'cls' nor 'mean'")
    return classifier_pooling(reader, "cls" if method == "cls" else "mean")


def _config_rules(prefix: str, num_layers: int, classifies: bool) -> tuple[WeightRule, ...]:
    """Names as transformers writes them (modeling_modernbert.py)."""
    tables = {"embed": "embeddings.tok_embeddings", "embed_norm": "embeddings.norm",
              "norm": "final_norm"}  # fmt: skip
    layer = {"attention_norm": "attn_norm", "attention.qkv": "attn.Wqkv",
             "attention.output": "attn.Wo", "mlp_norm": "mlp_norm", "mlp.gate_up": "mlp.Wi",
             "mlp.down": "mlp.Wo"}  # fmt: skip
    found = _rules(tables, layer, prefix, "layers.{layer}.", num_layers)
    if not classifies:
        return found
    head = {"dense": "head.dense", "head_norm": "head.norm", "classifier": "classifier"}
    return (*found, *_head_rules(head))


def _gguf_rules(num_layers: int, classifies: bool) -> tuple[WeightRule, ...]:
    """Names as llama.cpp writes them (gguf-py/gguf/constants.py, TENSOR_NAMES)."""
    tables = {"embed": "token_embd", "embed_norm": "token_embd_norm", "norm": "output_norm"}
    layer = {"attention_norm": "attn_norm", "attention.qkv": "attn_qkv",
             "attention.output": "attn_output", "mlp_norm": "ffn_norm", "mlp.gate_up": "ffn_up",
             "mlp.down": "ffn_down"}  # fmt: skip
    found = _rules(tables, layer, "", "blk.{layer}.", num_layers)
    head = {"dense": "cls", "head_norm": "cls.norm", "classifier": "cls.output"}
    return (*found, *_head_rules(head)) if classifies else found


def _rules(
    tables: Mapping[str, str], layer: Mapping[str, str], prefix: str, part: str, num_layers: int
) -> tuple[WeightRule, ...]:
    rules = [WeightRule(f"{name}.weight", (f"{prefix}{source}.weight",))
             for name, source in tables.items()]  # fmt: skip
    for name, source in layer.items():
        # The embeddings' norm is the first layer's, too.
        layers = tuple(range(1, num_layers)) if name == "attention_norm" else None
        sources = (f"{prefix}{part}{source}.weight",)
        rules.append(WeightRule(f"layers.{{layer}}.{name}.weight", sources, layers=layers))
    return tuple(rules)


def _head_rules(names: Mapping[str, str]) -> tuple[WeightRule, ...]:
    return (
        *linear_rules("dense", (names["dense"],), False),
        WeightRule("head_norm.weight", (names["head_norm"] + ".weight",)),
        *linear_rules("classifier", (names["classifier"],)),
    )
