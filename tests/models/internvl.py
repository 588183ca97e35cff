"""Tiny random InternVL checkpoints, and how pictures are read. References are transformers'."""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from PIL import Image
from transformers import (
    GotOcr2ImageProcessorPil,
    InternVLConfig,
    InternVLForConditionalGeneration,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from pagoda.text.media.base import Medium
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.models import tiny, tiny_gguf
from tests.models.vision import IMAGE, VisionPrompt
from tests.models.vision import prompt_of as placed

TOKENS, MAX_TILES = 4, 6
_SIDE = 56
PREPROCESSOR = {
    "image_processor_type": "GotOcr2ImageProcessorFast", "image_mean": [0.5, 0.4, 0.6],
    "image_std": [0.5, 0.3, 0.4], "size": {"height": _SIDE, "width": _SIDE}, "min_patches": 1,
    "max_patches": MAX_TILES, "crop_to_patches": False,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": [_SIDE, _SIDE], "patch_size": [14, 14], "attention_bias": True,
}  # fmt: skip


def make(text: str = "qwen2", vision: dict | None = None, **changes) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {**tiny.SIZES, "model_type": text, "head_dim": 16, "max_position_embeddings": 512}
    config = InternVLConfig(
        text_config={**sizes, **changes},
        vision_config={**VISION, **(vision or {})},
        image_token_id=IMAGE,
        image_seq_length=TOKENS,
        tie_word_embeddings=False,
    )
    model = InternVLForConditionalGeneration(config).eval()
    tiny.randomize(model)
    return model


def save(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    processor = {"processor_class": "InternVLProcessor", "image_seq_length": TOKENS}
    (folder / "processor_config.json").write_text(json.dumps(processor))


def processed_by_transformers(images: list[Image.Image]) -> dict[str, torch.Tensor]:
    fields = {name: value for name, value in PREPROCESSOR.items() if "type" not in name}
    processor = GotOcr2ImageProcessorPil(**fields)
    # As InternVLProcessor calls it.
    return processor(images=images, crop_to_patches=True, return_tensors="pt")


def seen(folder: Path, image: Image.Image) -> Medium:
    processor = processor_for(open_model(folder), "image")
    assert processor is not None
    return processor.process(np.asarray(image)[None])


def prompt_of(pieces: list[list[int] | Medium], folder: Path) -> VisionPrompt:
    """Token ids and pictures in a row, each picture's tiles between two tokens."""
    marked: list = []
    for piece in pieces:
        marked += [piece] if isinstance(piece, list) else [[200], *piece.pieces, [202]]
    return placed(marked, folder)


@torch.inference_mode()
def reference_logits(
    model: PreTrainedModel, ids: list[int], images: list[Image.Image]
) -> torch.Tensor:
    """fp32 [len(ids), vocab]."""
    inputs = {}
    if images:
        inputs["pixel_values"] = processed_by_transformers(images)["pixel_values"]
    return model(torch.tensor([ids]), **inputs).logits[0]


def write_model(path: Path, model: PreTrainedModel) -> None:
    """The language model as a GGUF in fp32, as llama.cpp's converter writes it."""
    config = model.config.text_config
    kind = Qwen2ForCausalLM if config.model_type == "qwen2" else Qwen3ForCausalLM
    text = kind(config)
    text.model.load_state_dict(model.model.language_model.state_dict())
    text.lm_head.load_state_dict(model.lm_head.state_dict())
    tiny_gguf.write(path, text, lambda name: tiny_gguf.Storage.F32)


_NAMES = {
    "embeddings.cls_token": "v.class_embd",
    "embeddings.position_embeddings": "v.position_embd.weight",
    "embeddings.patch_embeddings.projection": "v.patch_embd", "layernorm": "v.post_ln",
    "multi_modal_projector.layer_norm": "mm.model.mlp.0",
    "multi_modal_projector.linear_1": "mm.model.mlp.1",
    "multi_modal_projector.linear_2": "mm.model.mlp.3",
}  # fmt: skip
_BLOCK = {
    "attention.q_proj": "attn_q", "attention.k_proj": "attn_k", "attention.v_proj": "attn_v",
    "attention.q_norm": "attn_q_norm", "attention.k_norm": "attn_k_norm",
    "attention.projection_layer": "attn_out", "layernorm_before": "ln1", "layernorm_after": "ln2",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "lambda_1": "ls1.weight", "lambda_2": "ls2.weight",
}  # fmt: skip


def write_tower(path: Path, model: PreTrainedModel) -> None:
    """The tower, in fp32 (conversion/intern_vision.py)."""
    config = model.config.vision_config
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(gguf.VisionProjectorType.INTERNVL)
    writer.add_vision_projection_dim(model.config.text_config.hidden_size)
    writer.add_vision_image_size(_SIDE)
    writer.add_vision_patch_size(14)
    writer.add_vision_embedding_length(config.hidden_size)
    writer.add_vision_feed_forward_length(config.intermediate_size)
    writer.add_vision_block_count(config.num_hidden_layers)
    writer.add_vision_head_count(config.num_attention_heads)
    writer.add_vision_image_mean(PREPROCESSOR["image_mean"])
    writer.add_vision_image_std(PREPROCESSOR["image_std"])
    writer.add_vision_attention_layernorm_eps(config.layer_norm_eps)
    writer.add_vision_use_gelu(True)
    writer.add_vision_projector_scale_factor(2)
    writer.add_vision_preproc_min_tiles(1)
    writer.add_vision_preproc_max_tiles(MAX_TILES)
    for name, weight in model.state_dict().items():
        name = name.removeprefix("model.").removeprefix("vision_tower.")
        layer, _, part = name.removeprefix("encoder.layer.").partition(".")
        stem, _, kind = name.rpartition(".")
        if name.startswith("encoder.layer."):
            stem, _, kind = part.rpartition(".")
            stored = _BLOCK[part] if part in _BLOCK else f"{_BLOCK[stem]}.{kind}"
            writer.add_tensor(f"v.blk.{layer}.{stored}", weight.numpy())
        elif name in _NAMES:
            writer.add_tensor(_NAMES[name], weight.numpy())
        elif stem in _NAMES:
            writer.add_tensor(f"{_NAMES[stem]}.{kind}", weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
