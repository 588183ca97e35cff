"""Tiny random Phi-4-multimodal checkpoints, and how pictures are read. References are
transformers'."""

import importlib
import json
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import Phi4MultimodalConfig, Phi4MultimodalForCausalLM, PreTrainedModel
from transformers.image_utils import SizeDict

from tests.models import tiny
from tests.models.vision import IMAGE

SIDE, MAX_TILES = 56, 6
PREPROCESSOR = {
    "image_processor_type": "Phi4MultimodalImageProcessorFast", "image_mean": [0.5, 0.4, 0.6],
    "image_std": [0.5, 0.3, 0.4], "size": {"height": SIDE, "width": SIDE}, "dynamic_hd": MAX_TILES,
}  # fmt: skip
_VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
    "image_size": SIDE, "crop_size": SIDE, "image_token_id": IMAGE,
}  # fmt: skip
_AUDIO = {
    "hidden_size": 32, "intermediate_size": 48, "num_blocks": 1, "num_attention_heads": 2,
    "ext_pw_out_channel": 32, "depthwise_separable_out_channel": 32, "nemo_conv_channels": 16,
}  # fmt: skip
# Of a checkpoint for Microsoft's own code.
_PUBLISHED = {
    "img_projection_up": "img_projection.0", "img_projection_down": "img_projection.2",
    "global_img_feature_extensor": "glb_GN", "sub_img_feature_extensor": "sub_GN",
}  # fmt: skip
ADAPTED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


def make(**vision) -> PreTrainedModel:
    torch.manual_seed(0)
    config = Phi4MultimodalConfig(
        **{**tiny.SIZES, "tie_word_embeddings": True, "max_position_embeddings": 512},
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        vision_config={**_VISION, **vision},
        audio_config=_AUDIO,
        eos_token_id=[2, 3],
        # With sdpa the tower's attention is causal where no patch of a picture is masked, and sees
        # both ways where one is: its class says is_causal, which eager attention does not read.
        attn_implementation="eager",
    )
    model = Phi4MultimodalForCausalLM(config).eval()
    tiny.randomize(model)
    return model


def save(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))


def save_as_published(model: PreTrainedModel, folder: Path) -> None:
    """As Microsoft's own code has it: other names, and adapters (of zeros) within."""
    save(model, folder)
    config = json.loads((folder / "config.json").read_text())
    layer = {"hd_transform_order": "sub_glb", "use_hd_transform": True, "crop_size": SIDE}
    told = {"architectures": ["Phi4MMForCausalLM"], "embd_layer": {"image_embd_layer": layer}}
    (folder / "config.json").write_text(json.dumps({**config, **told}))
    tensors = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        for own, published in _PUBLISHED.items():
            name = name.replace(f"image_embed.{own}", f"image_embed.{published}")
        stem = name.removesuffix(".weight")
        if name.startswith("model.layers.") and stem.endswith(ADAPTED):
            name = stem + ".base_layer.weight"
            for kind in ("vision", "speech"):
                tensors[f"{stem}.lora_A.{kind}.weight"] = torch.zeros(4, weight.shape[1])
                tensors[f"{stem}.lora_B.{kind}.weight"] = torch.zeros(weight.shape[0], 4)
        tensors[name] = weight
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


@cache
def _processor_class() -> type:
    """transformers' image processor, which imports torchvision. Of its functions it calls two
    itself: `resize`, which computes uint8 as PIL does, and `pad`."""
    functional = ModuleType("torchvision.transforms.v2.functional")
    functional.resize = _resize
    functional.pad = lambda image, sides, fill: F.pad(
        image, (sides[0], sides[2], sides[1], sides[3]), value=fill[0]
    )
    v2 = ModuleType("torchvision.transforms.v2")
    v2.functional = functional
    played = {
        "torchvision": ModuleType("torchvision"),
        "torchvision.transforms": ModuleType("torchvision.transforms"),
        v2.__name__: v2,
        functional.__name__: functional,
    }
    # Before torchvision is played: this module imports more of it, where it is there.
    importlib.import_module("transformers.image_processing_backends")
    sys.modules.update(played)
    try:
        found: Any = importlib.import_module(
            "transformers.models.phi4_multimodal.image_processing_phi4_multimodal"
        )
    finally:
        for name in played:
            del sys.modules[name]

    class Processor(found.Phi4MultimodalImageProcessor):
        def __init__(self) -> None:
            pass

        def rescale_and_normalize(self, image, do_rescale, factor, do_normalize, mean, std):
            mean, std = (torch.tensor(three)[:, None, None] for three in (mean, std))
            return (image.float() * factor - mean) / std

        def resize(self, image, size, resample, antialias):
            wanted = (size.height, size.width)
            return F.interpolate(image[None], wanted, mode="bicubic", align_corners=False)[0]

    return Processor


def _resize(image: torch.Tensor, size: list[int]) -> torch.Tensor:
    resized = Image.fromarray(image.permute(1, 2, 0).numpy()).resize(
        (size[1], size[0]), Image.Resampling.BILINEAR
    )
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


def processed_by_transformers(
    images: list[Image.Image], settings: dict[str, Any] = PREPROCESSOR
) -> dict[str, Any]:
    pixels = [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in images]
    return _processor_class()()._preprocess(
        pixels, do_resize=True, size=SizeDict(**settings["size"]), resample=None, do_rescale=True,
        rescale_factor=1 / 255, do_normalize=True, image_mean=settings["image_mean"],
        image_std=settings["image_std"], patch_size=14, dynamic_hd=settings["dynamic_hd"],
        return_tensors=None,
    )  # fmt: skip


def inputs(images: list[Image.Image]) -> dict[str, torch.Tensor]:
    found = processed_by_transformers(images)
    return {name: value for name, value in found.items() if name != "num_img_tokens"}


@torch.inference_mode()
def reference_logits(
    model: PreTrainedModel, ids: list[int], images: list[Image.Image]
) -> torch.Tensor:
    """fp32 [len(ids), vocab]."""
    return model(torch.tensor([ids]), **(inputs(images) if images else {})).logits[0]
