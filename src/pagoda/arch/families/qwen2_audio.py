"""Qwen2-Audio (arXiv 2407.10759): Qwen2 behind Whisper's encoder, whose outputs are averaged two
by two."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pagoda.arch.dense import spec_from_config
from pagoda.arch.families.whisper_encoder import encoder_spec
from pagoda.arch.names import Traits, config_rules, linear_rules
from pagoda.arch.read import Reader, config_reader
from pagoda.arch.spec import ModelSpec

_TRAITS = Traits(qkv_bias=True)
# configuration_qwen2.py and configuration_qwen2_audio.py: published checkpoints leave these out.
_TEXT = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "tie_word_embeddings": False,
}
_TOWER = {
    "d_model": 1280,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "num_mel_bins": 128,
}


def from_config(config: Mapping[str, Any]) -> ModelSpec:
    # The outer part says of other things that they are tied.
    reader = config_reader({**_TEXT, **config, "tie_word_embeddings": False})
    spec = spec_from_config(reader, "Qwen2AudioForConditionalGeneration", _TRAITS)
    tied = spec.tie_word_embeddings
    tower = encoder_spec(
        Reader({**_TOWER, **(config.get("audio_config") or {})}, "config.json: audio_config"),
        "audio_tower.",
    )
    projection = linear_rules("audio.projection", ("multi_modal_projector.linear",))
    head = "language_model.lm_head.weight"
    return replace(
        spec,
        weights=config_rules(_TRAITS, tied, "language_model.model.", head),
        ignored_weights=(*spec.ignored_weights, *((head,) if tied else ())),
        audio=replace(tower, pooled=True, projected=True, weights=(*tower.weights, *projection)),
    )
