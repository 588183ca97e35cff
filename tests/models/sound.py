"""Tiny random checkpoints of models that hear, made by transformers, and sounds."""

import json
from pathlib import Path

import numpy as np
import torch
from transformers import (
    PreTrainedModel,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    VoxtralConfig,
    VoxtralForConditionalGeneration,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from pagoda.core.messages import MediaItem
from pagoda.layers.watched import Watched
from pagoda.runtime.media import MediaEncoder, RequestMedia
from pagoda.text.media.base import Piece, Processor
from tests.models import tiny
from tests.models.driver import Driver

SOUND = 201
"""The token of sounds; 200 begins and 202 ends one."""
RATE = 16_000
MELS = 8
EXTRACTOR = {"feature_size": MELS, "chunk_length": 1, "sampling_rate": RATE}
"""Windows of a second, so that models are small."""
TOWER = {
    "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48,
    "num_mel_bins": MELS, "max_source_positions": 50,
}  # fmt: skip
TEXT = {
    "vocab_size": 211, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


def qwen2_audio() -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen2AudioConfig(audio_config=TOWER, text_config=TEXT, audio_token_index=SOUND)
    model = Qwen2AudioForConditionalGeneration(config).eval()
    tiny.randomize(model)
    return model


# Of a window 50 tokens are heard, and 40 written.
DECODER = {
    "vocab_size": 260, "decoder_layers": 3, "decoder_attention_heads": 2, "decoder_ffn_dim": 40,
    "max_target_positions": 40, "decoder_start_token_id": 202, "bos_token_id": 201,
    "eos_token_id": 201, "pad_token_id": 201, "begin_suppress_tokens": None,
}  # fmt: skip
HEARD = TOWER["max_source_positions"]


def whisper() -> PreTrainedModel:
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(WhisperConfig(**TOWER, **DECODER)).eval()
    tiny.randomize(model)
    return model


VOXTRAL_EXTRACTOR = {**EXTRACTOR, "chunk_length": 2}
"""100 outputs to a window, of which four at a time are a token."""
VOXTRAL_WINDOW = 25


def voxtral(vocab_size: int = 211, sound_token: int = SOUND) -> PreTrainedModel:
    torch.manual_seed(0)
    tower = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 128, "num_mel_bins": MELS, "max_source_positions": 100,
    }  # fmt: skip
    text = {**TEXT, "vocab_size": vocab_size, "model_type": "llama", "head_dim": 16}
    config = VoxtralConfig(audio_config=tower, text_config=text, audio_token_id=sound_token)
    model = VoxtralForConditionalGeneration(config).eval()
    tiny.randomize(model)
    return model


def voxtral_features(samples: np.ndarray) -> torch.Tensor:
    """By transformers, fp32 [windows, MELS, frames], as VoxtralProcessor cuts them."""
    extractor = WhisperFeatureExtractor(**VOXTRAL_EXTRACTOR)
    found = extractor(
        samples, sampling_rate=RATE, padding=True, truncation=False, return_tensors="pt",
        pad_to_multiple_of=2 * RATE,
    )["input_features"]  # fmt: skip
    return found.reshape(MELS, -1, 200).transpose(0, 1)


def save(model: PreTrainedModel, folder: Path, extractor: dict[str, object] | None = None) -> None:
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(extractor or EXTRACTOR))


def sound(seconds: float, seed: int = 0) -> np.ndarray:
    """A tone that rises, in noise that swells; fp32 at 16 kHz."""
    count = round(seconds * RATE)
    time = np.arange(count) / RATE
    noise = np.random.default_rng(seed).standard_normal(count) * np.linspace(0, 0.2, count)
    return (0.5 * np.sin(2 * np.pi * (200 + 300 * time) * time) + noise).astype(np.float32)


def extracted(samples: np.ndarray) -> dict[str, torch.Tensor]:
    """By transformers: the whole window's frames, and which of them are sound."""
    found = WhisperFeatureExtractor(**EXTRACTOR)(
        samples, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True
    )
    return {
        "input_features": found["input_features"],
        "feature_attention_mask": found["attention_mask"],
    }


def heard(processor: Processor, samples: np.ndarray) -> Piece:
    (piece,) = processor.process(samples).pieces
    return piece


def placed(piece: Piece, start: int, folder: Path) -> MediaItem:
    path = folder / f"{piece.content_hash}.npy"
    np.save(path, piece.values)
    return MediaItem(
        piece.content_hash, start, piece.num_tokens, str(path), piece.grid, encoder="audio"
    )


class HearingDriver(Driver):
    """Gives the batch what the runner gives it for sounds."""

    def __init__(self, model, processor):
        super().__init__(model, num_blocks=200)
        self.encoder = MediaEncoder(lambda: model.encoders, {"audio": processor}, 1 << 24)
        self.media: dict[str, RequestMedia] = {}
        self.watches: dict[str, list[tuple[int, int]]] = {}
        """Layers and heads that requests want to see."""
        self.watched: Watched | None = None
        """What the last step found of them."""

    def _batch(self, tokens):
        batch = super()._batch(tokens)
        parts, row = [], 0
        if self.watches:
            owners = [i for i, ids in enumerate(tokens.values()) for _ in ids]
            heads = {i: self.watches.get(req, []) for i, req in enumerate(tokens)}
            batch.watched = self.watched = Watched(heads, self.integers(owners))
        for index, (req, ids) in enumerate(tokens.items()):
            if req in self.media:
                start = self.lens[req] - len(ids)
                parts += self.media[req].rows(index, start, self.lens[req], row)
            row += len(ids)
        if parts:
            encoded = {p.item.content_hash: self.encoder.encoded(p.item) for p in parts}
            self.encoder.fill(batch, parts, encoded)
        return batch
