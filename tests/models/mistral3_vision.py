"""Tiny random Mistral Small 3.1 checkpoints, and how pictures are read. References are
transformers'."""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from PIL import Image
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Ministral3ForCausalLM,
    PixtralImageProcessorPil,
    PreTrainedModel,
)

from pagoda.text.media.base import Piece
from tests.models import tiny, tiny_gguf
from tests.models.vision import IMAGE, VisionPrompt
from tests.models.vision import prompt_of as placed

BREAK, END = 202, 203
# Where they differ, what transformers' processor says is what it takes: 4 for 16.
PREPROCESSOR = {
    "image_processor_type": "PixtralImageProcessor", "image_mean": [0.5, 0.4, 0.6],
    "image_std": [0.5, 0.3, 0.4], "patch_size": {"height": 16, "width": 16},
    "size": {"longest_edge": 60},
}  # fmt: skip
PROCESSOR = {"processor_class": "PixtralProcessor", "patch_size": 4, "spatial_merge_size": 2}
_UNIT = 8


def make(**text) -> PreTrainedModel:
    model = tiny.make("mistral3", **{"max_position_embeddings": 512, **text})
    model.config.image_token_id = IMAGE
    return model


def save(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    (folder / "processor_config.json").write_text(json.dumps(PROCESSOR))


def processed_by_transformers(images: list[Image.Image]) -> dict[str, torch.Tensor]:
    fields = {name: value for name, value in PREPROCESSOR.items() if "type" not in name}
    processor = PixtralImageProcessorPil(**fields)
    found = processor(images=images, patch_size=_UNIT, return_tensors="pt")
    return {name: found[name] for name in ("pixel_values", "image_sizes")}


def prompt_of(pieces: list[list[int] | Piece], folder: Path) -> VisionPrompt:
    """Token ids and pictures in a row, each picture with the tokens between and behind its rows."""
    marked: list[list[int] | Piece] = []
    for piece in pieces:
        marked += [piece] if isinstance(piece, list) else [piece, [END]]
    prompt = placed(marked, folder)
    pictures = [piece for piece in pieces if isinstance(piece, Piece)]
    for item, piece in zip(prompt.items, pictures, strict=True):
        assert piece.row is not None
        item.row = piece.row
        for place in range(item.start + item.row, item.start + item.length, item.row + 1):
            prompt.ids[place] = BREAK
    return prompt


@torch.inference_mode()
def reference_logits(
    model: PreTrainedModel, ids: list[int], images: list[Image.Image]
) -> torch.Tensor:
    """fp32 [len(ids), vocab]."""
    inputs = processed_by_transformers(images) if images else {}
    return model(torch.tensor([ids]), **inputs).logits[0]


def write_model(path: Path, model: PreTrainedModel, architecture: str) -> None:
    """The language model as a GGUF in fp32, as llama.cpp writes it or, if `llama`, did."""
    config = model.config.text_config
    if architecture == "llama":
        names = (*tiny.SIZES, "head_dim", "rope_parameters")
        same = {name: getattr(config, name) for name in names}
        text: PreTrainedModel = LlamaForCausalLM(LlamaConfig(**same))
    else:
        text = Ministral3ForCausalLM(config)
    text.model.load_state_dict(model.model.language_model.state_dict())
    text.lm_head.load_state_dict(model.lm_head.state_dict())
    tiny_gguf.write(path, text, lambda name: tiny_gguf.Storage.F32)


def write_tower(path: Path, model: PreTrainedModel) -> None:
    """The tower, in fp32 (conversion/llava.py)."""
    config = model.config.vision_config
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(gguf.VisionProjectorType.PIXTRAL)
    writer.add_vision_projection_dim(model.config.text_config.hidden_size)
    writer.add_vision_image_size(60)
    writer.add_vision_patch_size(config.patch_size)
    writer.add_vision_embedding_length(config.hidden_size)
    writer.add_vision_feed_forward_length(config.intermediate_size)
    writer.add_vision_block_count(config.num_hidden_layers)
    writer.add_vision_head_count(config.num_attention_heads)
    writer.add_vision_image_mean(PREPROCESSOR["image_mean"])
    writer.add_vision_image_std(PREPROCESSOR["image_std"])
    writer.add_vision_attention_layernorm_eps(1e-5)
    writer.add_vision_use_gelu(True)
    writer.add_vision_spatial_merge_size(model.config.spatial_merge_size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, max(config.num_hidden_layers, 3))
    for name, weight in model.state_dict().items():
        name = name.removeprefix("model.")
        if name.startswith(("vision_tower.", "multi_modal_projector.")):
            if ".q_proj." in name or ".k_proj." in name:
                weight = _side_by_side(weight, config.num_attention_heads)
            stored = names.get_name(name, (".weight", ".bias"))
            assert stored is not None, name
            writer.add_tensor(stored, np.ascontiguousarray(weight.numpy()))
        elif name == "language_model.embed_tokens.weight":
            writer.add_tensor("v.token_embd.img_break", weight[BREAK].numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _side_by_side(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows of each head's rotary pairs beside each other."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
