"""Tiny random checkpoints of the Qwen models that see, and pictures, and how both are read.
References are transformers'."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file
from transformers import (
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from pagoda.core.messages import MediaItem
from pagoda.layers.batch import ForwardBatch
from pagoda.models.base import CausalLM
from pagoda.runtime.media import MediaEncoder, RequestMedia
from pagoda.text.media.base import Medium, Piece, Processor
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.models import tiny
from tests.models.driver import Driver

IMAGE = 201
"""The token of pictures; 200 begins and 202 ends one."""
VIDEO = 203
PREPROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.4, 0.6],
    "image_std": [0.5, 0.3, 0.4],
    "size": {"shortest_edge": 4096, "longest_edge": 65536},
}
TEXT = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 500.0, "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    },
}  # fmt: skip
# Of Qwen2-VL and Qwen2.5-VL, with the fields of published checkpoints.
QWEN2_PREPROCESSOR = {
    **PREPROCESSOR, "patch_size": 14, "min_pixels": 3136, "max_pixels": 50176,
}  # fmt: skip
del QWEN2_PREPROCESSOR["size"]
QWEN2 = {
    # Its defaults are beyond the tiny vocabulary.
    "bos_token_id": None,
    "eos_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 3, 3]},
}
QWEN2_TOWER = {"depth": 3, "embed_dim": 32, "hidden_size": 64, "num_heads": 2}
QWEN2_5_TOWER = {
    "depth": 4, "hidden_size": 32, "intermediate_size": 44, "num_heads": 2, "out_hidden_size": 64,
    "window_size": 84, "fullatt_block_indexes": [1, 3], "tokens_per_second": 2,
}  # fmt: skip
HYBRID = {
    **tiny.QWEN3_5,
    "rope_parameters": {
        **TEXT["rope_parameters"], "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1],
    },
}  # fmt: skip
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
VISION = {
    "depth": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 25,
    "deepstack_visual_indexes": [1, 2],
}


FAMILIES = {
    "qwen2_vl": (Qwen2VLConfig, Qwen2VLForConditionalGeneration, QWEN2),
    "qwen2_5_vl": (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, QWEN2),
    "qwen3_vl": (Qwen3VLConfig, Qwen3VLForConditionalGeneration, {}),
    "qwen3_vl_moe": (Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration, EXPERTS),
    "qwen3_5": (Qwen3_5Config, Qwen3_5ForConditionalGeneration, HYBRID),
    "qwen3_5_moe": (
        Qwen3_5MoeConfig,
        Qwen3_5MoeForConditionalGeneration,
        {**HYBRID, **tiny.QWEN3_5_MOE},
    ),
}


def make(
    text: dict | None = None,
    vision: dict | None = None,
    family: str = "qwen3_vl",
    **changes,
) -> PreTrainedModel:
    """As `tiny.make`; fresh random numbers of a vision tower are small, and so are these made
    larger."""
    torch.manual_seed(0)
    config_class, model_class, sizes = FAMILIES[family]
    tower = dict({"qwen2_vl": QWEN2_TOWER, "qwen2_5_vl": QWEN2_5_TOWER}.get(family, VISION))
    if family.startswith("qwen3_5"):
        del tower["deepstack_visual_indexes"]
    config = config_class(
        text_config={**TEXT, **sizes, **(text or {})},
        vision_config={**tower, **(vision or {})},
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=200,
        vision_end_token_id=202,
        **changes,
    )
    model = model_class(config).eval()
    tiny.randomize(model)
    return model


def settings_of(model: PreTrainedModel) -> dict:
    """What its preprocessor_config.json says."""
    older = isinstance(model, Qwen2VLForConditionalGeneration | Qwen2_5_VLForConditionalGeneration)
    return QWEN2_PREPROCESSOR if older else PREPROCESSOR


def save(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder)
    if isinstance(model, Qwen3VLMoeForConditionalGeneration):
        _lay_experts_as_the_hub(folder / "model.safetensors")
    write_settings(folder, settings_of(model))


def write_settings(folder: Path, settings: dict) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def _lay_experts_as_the_hub(path: Path) -> None:
    """On their side, [experts, columns, rows]: transformers reads both, and writes its own."""
    tensors = load_file(path)
    for name, weight in tensors.items():
        if ".experts." in name:
            tensors[name] = weight.transpose(1, 2).contiguous()
    save_file(tensors, path, {"format": "pt"})


def picture(kind: str, width: int, height: int) -> Image.Image:
    """A gradient, noise or letters."""
    if kind == "noise":
        values = np.random.default_rng(width * height).integers(0, 256, (height, width, 3))
        return Image.fromarray(values.astype(np.uint8))
    rows, columns = np.mgrid[0:height, 0:width]
    values = np.stack([rows * 255 // height, columns * 255 // width, (rows + columns) % 256], -1)
    image = Image.fromarray(values.astype(np.uint8))
    if kind == "letters":
        ImageDraw.Draw(image).multiline_text((3, 3), "Pagoda\n0123\nxyz", fill=(255, 0, 0))
    return image


def processed_by_transformers(
    images: list[Image.Image], settings: dict = PREPROCESSOR
) -> dict[str, torch.Tensor]:
    fields = {name: value for name, value in settings.items() if name != "image_processor_type"}
    processor = Qwen2VLImageProcessorPil(**fields)
    return processor(images=images, return_tensors="pt")


def processed(folder: Path, images: list[Image.Image]) -> list[Piece]:
    processor = processor_for(open_model(folder), "image")
    return [seen(processor, image) for image in images]


def seen(processor: Processor, image: Image.Image) -> Piece:
    (piece,) = processor.process(np.asarray(image)[None]).pieces
    return piece


def prompt_of(pieces: list[list[int] | Piece | Medium], folder: Path) -> "VisionPrompt":
    """Token ids, pictures and videos in a row."""
    ids: list[int] = []
    items = []
    for piece in flat(pieces):
        if isinstance(piece, list):
            ids += piece
            continue
        token = IMAGE
        if isinstance(piece, Frame):
            piece, token = piece.piece, VIDEO
        path = folder / f"{piece.content_hash}.npy"
        np.save(path, piece.values)
        length = piece.num_tokens
        items.append(
            MediaItem(
                piece.content_hash, len(ids), length, str(path), piece.grid,
                seconds_on=piece.seconds_on,
            )
        )  # fmt: skip
        ids += [token] * length
    return VisionPrompt(ids, items)


@dataclass
class Frame:
    piece: Piece


def flat(pieces: list) -> Iterator[list[int] | Piece | Frame]:
    """Videos become frames, each behind some tokens in the place of its time, or in one run."""
    for piece in pieces:
        if not isinstance(piece, Medium):
            yield piece
            continue
        if len(piece.pieces) > 1 and piece.pieces[1].seconds_on is not None:
            yield from ([200], *map(Frame, piece.pieces), [202])
            continue
        for number, frame in enumerate(piece.pieces):
            yield from ([150 + number, 7, 8, 200], Frame(frame), [202])


class VisionPrompt:
    def __init__(self, ids: list[int], items: list[MediaItem]):
        self.ids = ids
        self.items = items


@torch.inference_mode()
def reference_logits(
    model: PreTrainedModel, ids: list[int], images: list[Image.Image]
) -> torch.Tensor:
    """fp32 [len(ids), vocab]."""
    if not images:
        return tiny.reference_logits(model, ids)
    kinds = torch.tensor([[int(token == IMAGE) for token in ids]])
    model.model.rope_deltas = None  # kept from the call before
    inputs = processed_by_transformers(images, settings_of(model))
    return model(torch.tensor([ids]), mm_token_type_ids=kinds, **inputs).logits[0]


class VisionDriver(Driver):
    """Gives the batch what the runner gives it for pictures."""

    def __init__(self, model: CausalLM, processor: Processor):
        super().__init__(model, num_blocks=200)
        both_ways = model.spec.vision.both_ways
        self.encoder = MediaEncoder(
            lambda: model.encoders, {"image": processor}, 1 << 24, both_ways=both_ways
        )
        self.media: dict[str, RequestMedia] = {}

    def add(self, req: str, prompt: VisionPrompt) -> None:
        if prompt.items:
            rate = self.model.spec.vision.tokens_per_second
            self.media[req] = RequestMedia(prompt.items, len(prompt.ids), rate)

    def _batch(self, tokens: dict[str, list[int]]) -> ForwardBatch:
        batch = super()._batch(tokens)
        plain = batch.positions
        batch.positions = plain.repeat(3, 1)
        parts, row = [], 0
        for index, (req, ids) in enumerate(tokens.items()):
            end = self.lens[req]
            if req in self.media:
                media = self.media[req]
                coordinates = media.positions(end - len(ids), end)
                batch.positions[:, row : row + len(ids)] = torch.from_numpy(coordinates)
                parts += media.rows(index, end - len(ids), end, row)
            row += len(ids)
        if all(part.item.grid is None for part in parts):
            assert (batch.positions == batch.positions[0]).all()
            batch.positions = batch.positions[0]
        if parts:
            encoded = {p.item.content_hash: self.encoder.encoded(p.item) for p in parts}
            self.encoder.fill(batch, parts, encoded)
        return batch
