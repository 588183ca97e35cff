"""Tiny random Gemma 4 checkpoints that see, and how pictures are read. References are
transformers'."""

import json
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import Gemma4ImageProcessorPil, PreTrainedModel

from pagoda.core.messages import MediaItem
from pagoda.text.media.base import Piece
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.models import tiny
from tests.models.vision import VisionPrompt, seen

IMAGE = 201
"""The token of pictures; 200 begins and 202 ends one."""
MAX_TOKENS = 70
"""The fewest that transformers' processor knows."""
PREPROCESSOR = {
    "image_processor_type": "Gemma4ImageProcessor",
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "max_soft_tokens": MAX_TOKENS,
}
TEXT = {**tiny.GEMMA4, "use_bidirectional_attention": "vision", "max_position_embeddings": 512}
EXPERTS = {**tiny.GEMMA4_MOE, **TEXT}
SMALL = {
    **TEXT, **tiny.GEMMA4_E, "clipped": True, "use_bidirectional_attention": None,
    "num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": TEXT["layer_types"],
}  # fmt: skip


def make(**text) -> PreTrainedModel:
    model = tiny.make("gemma4_vision", **{**TEXT, **text})
    model.config.image_token_id = IMAGE
    return model


def save(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))


def processed_by_transformers(images: list[Image.Image]) -> dict[str, torch.Tensor]:
    """Patches behind the last one are padding, at (-1, -1)."""
    found = Gemma4ImageProcessorPil(max_soft_tokens=MAX_TOKENS)(images=images, return_tensors="pt")
    return {name: found[name] for name in ("pixel_values", "image_position_ids")}


def processed(folder: Path, images: list[Image.Image]) -> list[Piece]:
    processor = processor_for(open_model(folder), "image")
    assert processor is not None
    return [seen(processor, image) for image in images]


def prompt_of(pieces: list[list[int] | Piece], folder: Path) -> VisionPrompt:
    """Token ids and pictures in a row, each picture between its marks."""
    ids: list[int] = []
    items = []
    for piece in pieces:
        if isinstance(piece, list):
            ids += piece
            continue
        path = folder / f"{piece.content_hash}.npy"
        np.save(path, piece.values)
        ids.append(200)
        items.append(MediaItem(piece.content_hash, len(ids), piece.num_tokens, str(path)))
        ids += [IMAGE] * piece.num_tokens + [202]
    return VisionPrompt(ids, items)


@torch.inference_mode()
def reference_logits(
    model: PreTrainedModel, ids: list[int], images: list[Image.Image]
) -> torch.Tensor:
    """[len(ids), vocab], in the model's dtype."""
    if not images:
        return tiny.reference_logits(model, ids)
    kinds = torch.tensor([[int(token == IMAGE) for token in ids]])
    inputs = processed_by_transformers(images)
    inputs["pixel_values"] = inputs["pixel_values"].to(model.dtype)
    return model(torch.tensor([ids]), mm_token_type_ids=kinds, **inputs).logits[0]


def exact_logits(model: PreTrainedModel, ids: list[int], images: list[Image.Image]) -> torch.Tensor:
    """The same computed in fp64, as fp32."""
    return reference_logits(deepcopy(model).double(), ids, images).float()
