"""EmbeddingGemma (arXiv 2509.20354): Gemma 3's layers as an encoder, whose windows reach both ways,
and linear layers between the mean of a text's states and its vector."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.encoder import EncoderSpec
from pagoda.arch.families.encoders import gguf_pooling
from pagoda.arch.families.gemma3 import text_from_config, text_from_gguf
from pagoda.arch.heads import with_config_head
from pagoda.arch.names import linear_rules
from pagoda.arch.read import MAX_WIDTH, Reader, config_reader
from pagoda.arch.spec import AttentionSpec, DenseSpec, ModelSpec, PoolingSpec, WeightRule
from pagoda.base.errors import UnsupportedModelError

_NAME, _ARCH = "Gemma3TextModel", "gemma-embedding."
# llama.cpp's names of sentence-transformers' 2_Dense and 3_Dense.
_DENSE = ("dense_2", "dense_3")
# Sizes that its vectors were trained to be cut to.
_DIMENSIONS = (128, 256, 512, 768)


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    if config.get("use_bidirectional_attention") is not True:
        raise UnsupportedModelError(
            f"config.json: use_bidirectional_attention of a {_NAME} is not true. Known is "
            "EmbeddingGemma, where it is; take Gemma3ForCausalLM for text."
        )
    spec = text_from_config({**config, "use_bidirectional_attention": None}, _NAME, "")
    spec = with_config_head(spec, _NAME, config_reader(config), ())
    return _encoder(spec, PoolingSpec("mean", dimensions=_DIMENSIONS))


def from_gguf(metadata: Mapping[str, Any], tensor_names: Collection[str]) -> ModelSpec:
    reader = Reader(metadata, "GGUF metadata", _ARCH)
    dense, rules = _gguf_dense(reader, tensor_names)
    pooling = gguf_pooling(reader, tensor_names, "mean")
    pooling = replace(pooling, dimensions=_DIMENSIONS, dense=dense)
    spec = replace(text_from_gguf(metadata, tensor_names, _ARCH), architecture=_NAME)
    spec = _encoder(spec, pooling)
    return replace(spec, weights=(*spec.weights, *rules))


def _gguf_dense(
    reader: Reader, tensor_names: Collection[str]
) -> tuple[tuple[DenseSpec, ...], list[WeightRule]]:
    found: list[DenseSpec] = []
    rules: list[WeightRule] = []
    for name in _DENSE:
        if f"{name}.weight" not in tensor_names:
            continue
        width, out = (reader.integer(f"{name}_feat_{end}", MAX_WIDTH) for end in ("in", "out"))
        rules += linear_rules(f"projections.{len(found)}", (name,), False)
        found.append(DenseSpec(width, out, bias=False, activation="identity"))
    return tuple(found), rules


def _encoder(spec: ModelSpec, pooling: PoolingSpec) -> ModelSpec:
    """`spec` of Gemma 3's text model, whose `window` counts both directions."""
    layers = []
    for layer in spec.layers:
        mixer = layer.mixer
        assert isinstance(mixer, AttentionSpec)
        window = None if mixer.window is None else mixer.window // 2 + 1
        layers.append(replace(layer, mixer=replace(mixer, kind="encoder", window=window)))
    return replace(
        spec,
        layers=tuple(layers),
        tie_word_embeddings=True,
        logit_cap=None,
        writes_text=False,
        encoder=EncoderSpec(embed_norm=False, norm_bias=False, rms_norms=True, final_norm=True),
        pooling=pooling,
    )
