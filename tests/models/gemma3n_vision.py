"""Tiny random Gemma 3n checkpoints that see, and how pictures are read. References are
transformers', whose tower is timm's; without timm there are none."""

import json
import re
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    Gemma3nAudioConfig,
    Gemma3nConfig,
    Gemma3nForConditionalGeneration,
    Gemma3nTextConfig,
    Gemma3nVisionConfig,
    PreTrainedModel,
    SiglipImageProcessorPil,
    utils,
)
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nMultimodalEmbedder

from pagoda.arch.vision import VisionSpec
from pagoda.layers.context import LayerContext, Parallel
from pagoda.layers.mobile_net import MobileNet
from pagoda.layers.rotary import RotaryTables
from pagoda.quant.base import ShardSource
from pagoda.text.media.base import Piece
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.models import tiny
from tests.models.vision import IMAGE, VisionPrompt, seen
from tests.models.vision import prompt_of as placed

BEGIN, END = 150, 202
# Of what is embedded by the tower's embedder and by that for sound.
_FIRST, _WORDS, _AUDIO = 200, 6, 206
PREPROCESSOR = {
    "image_processor_type": "SiglipImageProcessorFast", "do_normalize": False, "do_rescale": True,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "image_seq_length": 256,
    "size": {"height": 256, "width": 256}, "resample": 2,
}  # fmt: skip
TEXT = {
    **tiny.SIZES, **tiny.GEMMA3N, "vocab_size_per_layer_input": _FIRST,
    "max_position_embeddings": 2048,
}  # fmt: skip
VISION = {"model_args": {"channel_multiplier": 0.0625}, "vocab_size": _WORDS,
          "vocab_offset": _FIRST}  # fmt: skip
AUDIO = {
    "hidden_size": 16, "vocab_size": 211 - _AUDIO, "vocab_offset": _AUDIO, "input_feat_size": 32,
    "conf_num_attention_heads": 2, "conf_num_hidden_layers": 1, "sscp_conv_channel_size": [8, 4],
}  # fmt: skip


def config() -> Gemma3nConfig:
    if not utils.is_timm_available():
        pytest.skip("transformers' tower needs timm and torchvision")
    return Gemma3nConfig(
        text_config=Gemma3nTextConfig(**TEXT),
        vision_config=Gemma3nVisionConfig(**VISION),
        audio_config=Gemma3nAudioConfig(**AUDIO),
        image_token_id=IMAGE,
        boi_token_id=BEGIN,
        eoi_token_id=END,
        boa_token_id=151,
        eoa_token_id=_AUDIO,
        audio_token_id=_AUDIO + 1,
    )


def make() -> PreTrainedModel:
    torch.manual_seed(0)
    model = Gemma3nForConditionalGeneration(config()).eval()
    tiny.randomize(model)
    return model


def save(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))


def processed_by_transformers(image: Image.Image) -> torch.Tensor:
    fields = {k: v for k, v in PREPROCESSOR.items() if k not in ("image_processor_type",)}
    found = SiglipImageProcessorPil(**fields)(images=[image], return_tensors="pt")
    return found["pixel_values"]


def processed(folder: Path, images: list[Image.Image]) -> list[Piece]:
    processor = processor_for(open_model(folder), "image")
    assert processor is not None
    return [seen(processor, image) for image in images]


def prompt_of(pieces: list[list[int] | Piece], folder: Path) -> VisionPrompt:
    """Token ids and pictures in a row, each picture between its marks."""
    marked: list[list[int] | Piece] = []
    for piece in pieces:
        marked += [piece] if isinstance(piece, list) else [[BEGIN], piece]
    prompt = placed(marked, folder)
    for item in prompt.items:
        prompt.ids[item.start + item.length - 1] = END
    return prompt


class Reference:
    """The model of transformers, which reads each picture once."""

    def __init__(self) -> None:
        self.model = make()
        self.features = cache(self._features)

    @torch.inference_mode()
    def _features(self, pixels: bytes, width: int, height: int) -> torch.Tensor:
        image = Image.frombytes("RGB", (width, height), pixels)
        values = processed_by_transformers(image)
        return self.model.get_image_features(values, return_dict=True).pooler_output

    def image(self, image: Image.Image) -> torch.Tensor:
        """[1, tokens, hidden]."""
        return self.features(image.tobytes(), *image.size)

    @torch.inference_mode()
    def logits(self, ids: list[int], images: list[Image.Image]) -> torch.Tensor:
        """fp32 [len(ids), vocab]."""
        given = {}
        if images:
            seen = torch.cat([self.image(image) for image in images])
            given["image"] = BaseModelOutputWithPooling(pooler_output=seen)
        return self.model(torch.tensor([ids]), mm_encoder_outputs=given).logits[0]


def numbers_of(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor's values, by its name alone."""
    drawn = np.random.Generator(np.random.SFC64(zlib.crc32(name.encode()))).standard_normal(shape)
    base = 1.0 if re.search("norm|bn", name) else 0.0
    return torch.from_numpy((base + 0.15 * drawn).astype(np.float32))


def tower(spec: VisionSpec, out_size: int) -> MobileNet:
    """Of a model of which there is nothing else, with `numbers_of` for its weights."""
    context = LayerContext(torch.float32, "cpu", Parallel(), RotaryTables("cpu"), None)
    made = MobileNet(context, spec, out_size)
    found = []
    for rule in spec.weights:
        path, _, param = rule.param.rpartition(".")
        layer = made.get_submodule(path.removeprefix("vision."))
        (target,) = layer.targets(param)
        if param == "weight":
            layer.create(("F32",))
        rows = numbers_of(rule.sources[0], target.shape).view(target.shape[0], -1)
        target.load(ShardSource("F32", *rows.shape, rows.view(torch.uint8).clone))
        found.append(layer)
    for layer in dict.fromkeys(found):
        layer.finalize()
    return made


@torch.inference_mode()
def embedded_by_timm(image: Image.Image) -> torch.Tensor:
    """[tokens, hidden] of timm's tower and transformers' embedder with the same weights."""
    import timm

    made = timm.create_model("mobilenetv5_300m_enc", **VISION["model_args"]).eval()
    embedder = Gemma3nMultimodalEmbedder(Gemma3nVisionConfig(**VISION), Gemma3nTextConfig(**TEXT))
    for prefix, module in (("vision_tower.timm_model", made), ("embed_vision", embedder)):
        state = {
            name: numbers_of(f"model.{prefix}.{name}", tuple(weight.shape))
            for name, weight in module.state_dict().items()
        }
        module.load_state_dict(state)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 255
    seen = made(pixels)[0].flatten(1).t()
    end = embedder(input_ids=torch.tensor([END]))
    return torch.cat((embedder(inputs_embeds=seen * seen.shape[1] ** 0.5), end))
