"""BERT, RoBERTa and XLM-RoBERTa (arXiv 1810.04805, 1907.11692, 1911.02116): encoders that give
vectors, or with a head the scores of a classifier or cross-encoder."""

from collections.abc import Collection, Mapping
from typing import Any

from pagoda.arch.encoder import EncoderSpec
from pagoda.arch.families.encoders import (
    attention_of,
    encoder_activation,
    encoder_attention,
    gguf_head_rules,
    gguf_pooling,
    gguf_rules,
    token_types,
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
from pagoda.arch.spec import (
    LayerSpec,
    MlpSpec,
    ModelSpec,
    PoolingSpec,
    WeightRule,
)
from pagoda.base.errors import UnsupportedModelError


def bert_from_config(config: Mapping[str, Any]) -> ModelSpec:
    return _encoder(config, "BertModel", "")


def bert_classifier_from_config(config: Mapping[str, Any]) -> ModelSpec:
    return _encoder(config, "BertForSequenceClassification", "bert.")


def roberta_from_config(config: Mapping[str, Any]) -> ModelSpec:
    return _encoder(config, "RobertaModel", "", roberta=True)


def roberta_classifier_from_config(config: Mapping[str, Any]) -> ModelSpec:
    return _encoder(config, "RobertaForSequenceClassification", "roberta.", roberta=True)


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    """A BERT or a RoBERTa, whose first positions llama.cpp's converter has cut off."""
    reader = Reader(metadata, "GGUF metadata", "bert.")
    tokenizer = Reader(metadata, "GGUF metadata", "tokenizer.ggml.")
    hidden = reader.integer("embedding_length", MAX_WIDTH)
    heads = reader.integer("attention.head_count", MAX_HEADS)
    width = reader.integer("feed_forward_length", MAX_WIDTH)
    num_positions = reader.integer("context_length", MAX_CONTEXT)
    attention = attention_of(hidden, heads, None, bias=True, reader=reader)
    layer = LayerSpec(attention, MlpSpec(width, "gelu", bias=True, gated=False), norms="sums")
    pooling = gguf_pooling(reader, tensor_names, "cls")
    rules = gguf_rules(tensor_names, bias=True, tables=True)
    return ModelSpec(
        architecture="BertForSequenceClassification" if pooling.labels else "BertModel",
        vocab_size=len(tokenizer.listed("tokens")),
        hidden_size=hidden,
        layers=(layer,) * reader.integer("block_count", MAX_LAYERS),
        norm_eps=reader.number("attention.layer_norm_epsilon", 1e-12, below=1.0),
        tie_word_embeddings=True,
        max_position=num_positions,
        dtype="float32",
        weights=(*rules, *(gguf_head_rules() if pooling.labels else ())),
        encoder=EncoderSpec(num_positions, token_types(tokenizer)),
        writes_text=False,
        pooling=pooling,
    )


def _encoder(
    config: Mapping[str, Any], architecture: str, prefix: str, *, roberta: bool = False
) -> ModelSpec:
    reader = config_reader(config)
    num_layers = reader.integer("num_hidden_layers", MAX_LAYERS)
    num_positions = reader.integer("max_position_embeddings", MAX_CONTEXT)
    padding = reader.integer("pad_token_id", MAX_VOCAB, 1 if roberta else 0, minimum=0)
    offset = padding + 1 if roberta else 0
    if num_positions <= offset:
        raise reader.error(
            "max_position_embeddings", f"is {num_positions}, and the first {offset} are for padding"
        )
    classifies = architecture.endswith("Classification")
    return ModelSpec(
        architecture=architecture,
        vocab_size=reader.integer("vocab_size", MAX_VOCAB),
        hidden_size=reader.integer("hidden_size", MAX_WIDTH),
        layers=(_layer(reader),) * num_layers,
        norm_eps=reader.number("layer_norm_eps", 1e-12, below=1.0),
        tie_word_embeddings=True,
        max_position=num_positions - offset,
        dtype=checkpoint_dtype(reader, "float32"),
        weights=_rules(prefix, _head(roberta) if classifies else {}),
        # BertModel has a layer on its first token that no embedding uses, and old files carry
        # the numbers of the positions.
        ignored_weights=(
            "*embeddings.position_ids",
            *(() if classifies else ("pooler.dense.*",)),
        ),
        encoder=EncoderSpec(num_positions, reader.integer("type_vocab_size", MAX_VOCAB, 2), offset),
        writes_text=False,
        pooling=classifier_pooling(reader, "cls") if classifies else PoolingSpec("cls"),
    )


def _layer(reader: Reader) -> LayerSpec:
    _check_plain(reader)
    attention = encoder_attention(reader, None, bias=True)
    width = reader.integer("intermediate_size", MAX_WIDTH)
    mlp = MlpSpec(width, encoder_activation(reader, "hidden_act"), bias=True, gated=False)
    return LayerSpec(attention, mlp, norms="sums")


def _check_plain(reader: Reader) -> None:
    kind = reader.text("position_embedding_type", "absolute")
    if kind != "absolute":
        raise UnsupportedModelError(
            f"config.json asks for {kind!r} positions; encoders have absolute ones here."
        )
    if reader.flag("is_decoder", False):
        raise UnsupportedModelError("A BERT that is a decoder (is_decoder) is not supported.")


def _head(roberta: bool) -> dict[str, str]:
    """The classifier's two layers: parameter to checkpoint."""
    if roberta:
        return {"dense": "classifier.dense", "classifier": "classifier.out_proj"}
    return {"dense": "bert.pooler.dense", "classifier": "classifier"}


def _rules(prefix: str, head: Mapping[str, str]) -> tuple[WeightRule, ...]:
    """Names as transformers writes them (modeling_bert.py, modeling_roberta.py)."""
    embeddings = prefix + "embeddings."
    source = prefix + "encoder.layer.{layer}."
    layer = "layers.{layer}."
    qkv = tuple(f"{source}attention.self.{name}" for name in ("query", "key", "value"))
    tables = {"embed": "word", "positions": "position", "types": "token_type"}
    return (
        *(
            WeightRule(f"{param}.weight", (f"{embeddings}{name}_embeddings.weight",))
            for param, name in tables.items()
        ),
        *linear_rules("embed_norm", (embeddings + "LayerNorm",)),
        *linear_rules(layer + "attention.qkv", qkv),
        *linear_rules(layer + "attention.output", (source + "attention.output.dense",)),
        *linear_rules(layer + "attention_norm", (source + "attention.output.LayerNorm",)),
        *linear_rules(layer + "mlp.up", (source + "intermediate.dense",)),
        *linear_rules(layer + "mlp.down", (source + "output.dense",)),
        *linear_rules(layer + "mlp_norm", (source + "output.LayerNorm",)),
        *(rule for param, name in head.items() for rule in linear_rules(param, (name,))),
    )
