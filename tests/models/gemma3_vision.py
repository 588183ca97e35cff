"""Tiny random Gemma 3 checkpoints that see, and how pictures are read. References are
transformers'."""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import Gemma3ForCausalLM, Gemma3ImageProcessorPil, PreTrainedModel

from pagoda.text.media.base import Piece
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.models import tiny, tiny_gguf
from tests.models.vision import IMAGE, VisionPrompt, seen
from tests.models.vision import prompt_of as placed

TOKENS = 4
_SIDE = 56
PREPROCESSOR = {
    "image_processor_type": "Gemma3ImageProcessor", "do_pan_and_scan": None,
    "image_mean": [0.5, 0.4, 0.6], "image_std": [0.5, 0.3, 0.4], "image_seq_length": TOKENS,
    "size": {"height": _SIDE, "width": _SIDE}, "resample": 2,
}  # fmt: skip
TEXT = {**tiny.GEMMA3, "max_position_embeddings": 512}


def make(**text) -> PreTrainedModel:
    model = tiny.make("gemma3_vision", **{**TEXT, **text})
    model.config.image_token_id = IMAGE
    return model


def save(model: PreTrainedModel, folder: Path, *, as_published: bool = True) -> None:
    """As the hub has it, or as transformers 5 writes it."""
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    if as_published:
        path = folder / "model.safetensors"
        tensors = {
            name.replace("vision_tower.", "vision_tower.vision_model."): weight
            for name, weight in load_file(path).items()
        }
        save_file(tensors, path, {"format": "pt"})


def processed_by_transformers(images: list[Image.Image]) -> dict[str, torch.Tensor]:
    fields = {k: v for k, v in PREPROCESSOR.items() if k not in ("image_processor_type",)}
    found = Gemma3ImageProcessorPil(**fields)(images=images, return_tensors="pt")
    return {"pixel_values": found["pixel_values"]}


def processed(folder: Path, images: list[Image.Image]) -> list[Piece]:
    processor = processor_for(open_model(folder), "image")
    assert processor is not None
    return [seen(processor, image) for image in images]


def prompt_of(pieces: list[list[int] | Piece], folder: Path) -> VisionPrompt:
    """Token ids and pictures in a row, each picture between its marks."""
    marked: list[list[int] | Piece] = []
    for piece in pieces:
        marked += [piece] if isinstance(piece, list) else [[200], piece, [202]]
    return placed(marked, folder)


@torch.inference_mode()
def reference_logits(
    model: PreTrainedModel, ids: list[int], images: list[Image.Image]
) -> torch.Tensor:
    """fp32 [len(ids), vocab]."""
    if not images:
        return tiny.reference_logits(model, ids)
    kinds = torch.tensor([[int(token == IMAGE) for token in ids]])
    inputs = processed_by_transformers(images)
    return model(torch.tensor([ids]), token_type_ids=kinds, **inputs).logits[0]


def write_model(path: Path, model: PreTrainedModel) -> None:
    """The language model as a GGUF in fp32, as llama.cpp's converter writes it."""
    text = Gemma3ForCausalLM(model.config.text_config)
    text.model.load_state_dict(model.model.language_model.state_dict())
    tiny_gguf.write(path, text, lambda name: tiny_gguf.Storage.F32)


_BLOCK = {
    "layer_norm1": "ln1", "layer_norm2": "ln2", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_out",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
}  # fmt: skip
_OTHERS = {
    "vision_tower.embeddings.patch_embedding": "v.patch_embd",
    "vision_tower.embeddings.position_embedding": "v.position_embd",
    "vision_tower.post_layernorm": "v.post_ln",
    "multi_modal_projector.mm_soft_emb_norm": "mm.soft_emb_norm",
}


def write_tower(path: Path, model: PreTrainedModel, *, swapped: bool = False) -> None:
    """The tower, with the projection in fp16, which `model` then has too (conversion/gemma.py);
    `swapped`: as in files of early 2025."""
    config = model.config.vision_config
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(gguf.VisionProjectorType.GEMMA3)
    writer.add_vision_projection_dim(model.config.text_config.hidden_size)
    writer.add_vision_image_size(config.image_size)
    writer.add_vision_patch_size(config.patch_size)
    writer.add_vision_embedding_length(config.hidden_size)
    writer.add_vision_feed_forward_length(config.intermediate_size)
    writer.add_vision_block_count(config.num_hidden_layers)
    writer.add_vision_head_count(config.num_attention_heads)
    writer.add_vision_image_mean(PREPROCESSOR["image_mean"])
    writer.add_vision_image_std(PREPROCESSOR["image_std"])
    writer.add_vision_attention_layernorm_eps(config.layer_norm_eps)
    writer.add_vision_use_gelu(True)
    writer.add_vision_projector_scale_factor(2)
    names = dict(_BLOCK)
    if swapped:
        names |= {"mlp.fc1": "ffn_down", "mlp.fc2": "ffn_up"}
    for name, weight in model.state_dict().items():
        name = name.removeprefix("model.")
        stem, _, kind = name.rpartition(".")
        if name == "multi_modal_projector.mm_input_projection_weight":
            values = weight.numpy().astype(np.float16)
            weight.copy_(torch.from_numpy(values))
            writer.add_tensor("mm.input_projection.weight", values)
        elif ".layers." in name and name.startswith("vision_tower."):
            layer, _, stem = stem.partition(".layers.")[2].partition(".")
            writer.add_tensor(f"v.blk.{layer}.{names[stem]}.{kind}", weight.numpy())
        elif stem in _OTHERS:
            one = 1 if stem.endswith("soft_emb_norm") else 0
            writer.add_tensor(f"{_OTHERS[stem]}.{kind}", weight.numpy() + np.float32(one))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
