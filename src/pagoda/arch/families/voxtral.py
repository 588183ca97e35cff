"""Voxtral (arXiv 2507.13264): Llama behind Whisper's encoder, of whose outputs four are a token."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config
from pagoda.arch.families.whisper_encoder import encoder_spec
from pagoda.arch.names import Traits, config_rules, linear_rules
from pagoda.arch.read import MAX_WIDTH, Reader, config_reader
from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import UnsupportedModelError

# configuration_voxtral.py: checkpoints may leave these out.
_TEXT = {
    "vocab_size": 131072,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 30,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e8,
    "head_dim": 128,
    "tie_word_embeddings": False,
}
_TOWER = {
    "hidden_size": 1280,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "intermediate_size": 5120,
    "num_mel_bins": 128,
}
_WHISPER = {
    "d_model": "hidden_size",
    "encoder_layers": "num_hidden_layers",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size",
}
"""What Whisper's own files call it."""


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    text = {**_TEXT, **(config.get("text_config") or {})}
    if text.get("model_type", "llama") not in ("llama", "mistral"):
        raise UnsupportedModelError(
            f"config.json: text_config.model_type is {text['model_type']!r}, and known is Voxtral "
            "with a Llama as its decoder, such as mistralai/Voxtral-Mini-3B-2507."
        )
    # The outer part says of other things that they are tied.
    reader = config_reader({**config, "text_config": text, "tie_word_embeddings": False})
    spec = spec_from_config(reader, "VoxtralForConditionalGeneration", Traits())
    outer = Reader(config, "config.json")
    if outer.text("projector_hidden_act", "gelu") != "gelu":
        raise outer.error("projector_hidden_act", "must be gelu, which is what is known here")
    given = {**_TOWER, **(config.get("audio_config") or {})}
    given |= {whisper: given[name] for whisper, name in _WHISPER.items() if whisper not in given}
    tower_reader = Reader(given, "config.json: audio_config")
    tower = encoder_spec(tower_reader, "audio_tower.")
    wide = tower_reader.integer("encoder_ffn_dim", MAX_WIDTH)
    if wide % tower.hidden_size or tower.num_positions % (wide // tower.hidden_size):
        raise tower_reader.error(
            "intermediate_size",
            f"is {wide}: no whole number of outputs with {tower.hidden_size} elements, or of a "
            f"window's {tower.num_positions} outputs, is a token",
        )
    projection = [
        *linear_rules("audio.projection.up", ("multi_modal_projector.linear_1",), bias=False),
        *linear_rules("audio.projection.down", ("multi_modal_projector.linear_2",), bias=False),
    ]
    tied = spec.tie_word_embeddings
    head = "language_model.lm_head.weight"
    return replace(
        spec,
        weights=config_rules(Traits(), tied, "language_model.model.", head),
        ignored_weights=(*spec.ignored_weights, *((head,) if tied else ())),
        audio=replace(
            tower,
            stacked=wide // tower.hidden_size,
            deep=True,
            weights=(*tower.weights, *projection),
        ),
    )
