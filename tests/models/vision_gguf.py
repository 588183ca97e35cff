"""A tiny Qwen3-VL, Qwen2-VL or Qwen2.5-VL, or the tower of a Qwen3.5, as llama.cpp's converter
writes it, model and tower in files of their own (conversion/qwen3vl.py, conversion/qwenvl.py).
Names are the gguf package's; nothing of Pagoda takes part."""

from math import isqrt
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel

_TOWER = "model.visual."
_TEXT = "model.language_model."


def write_model(path: Path, model: PreTrainedModel) -> None:
    """The language model, in fp32."""
    config = model.config.text_config
    older = model.config.model_type != "qwen3_vl"
    writer = gguf.GGUFWriter(path, "qwen2vl" if older else "qwen3vl")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_sections([*config.rope_parameters["mrope_section"], 0])
    if not older:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_num_deepstack_layers(len(model.config.vision_config.deepstack_visual_indexes))
    kind = gguf.MODEL_ARCH.QWEN2VL if older else gguf.MODEL_ARCH.QWEN3VL
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if not name.startswith(_TOWER):
            stored = names.get_name(name.replace(_TEXT, "model."), (".weight", ".bias"))
            assert stored is not None, name
            writer.add_tensor(stored, weight.numpy())
    _finish(writer)


def write_tower(path: Path, model: PreTrainedModel, mean: list, std: list) -> None:
    """The vision tower, matrices in fp16; `model` gets the weights that the file then holds."""
    config = model.config.vision_config
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(gguf.VisionProjectorType.QWEN3VL)
    writer.add_vision_use_gelu(True)
    writer.add_vision_projection_dim(config.out_hidden_size)
    writer.add_vision_image_size(isqrt(config.num_position_embeddings) * config.patch_size)
    writer.add_vision_patch_size(config.patch_size)
    writer.add_vision_embedding_length(config.hidden_size)
    writer.add_vision_feed_forward_length(config.intermediate_size)
    writer.add_vision_block_count(config.depth)
    writer.add_vision_head_count(config.num_heads)
    writer.add_vision_image_mean(mean)
    writer.add_vision_image_std(std)
    writer.add_vision_spatial_merge_size(config.spatial_merge_size)
    writer.add_vision_attention_layernorm_eps(1e-6)
    deepstack = getattr(config, "deepstack_visual_indexes", [])
    writer.add_vision_is_deepstack_layers([i in deepstack for i in range(config.depth)])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, config.depth)
    for name, weight in model.state_dict().items():
        if name.startswith(_TOWER):
            kind = np.float32 if weight.dim() == 1 or "pos_embed" in name else np.float16
            weight.copy_(torch.from_numpy(weight.numpy().astype(kind)))
            for stored, values in _parts(name.removeprefix(_TOWER), weight, names, deepstack):
                writer.add_tensor(stored, np.ascontiguousarray(values.numpy().astype(kind)))
    _finish(writer)


def write_qwen2_tower(path: Path, model: PreTrainedModel, settings: dict) -> None:
    """As `write_tower`, of a Qwen2-VL or Qwen2.5-VL with such a preprocessor_config.json."""
    config, gated = model.config.vision_config, model.config.model_type == "qwen2_5_vl"
    width = config.hidden_size if gated else config.embed_dim
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_clip_has_vision_encoder(True)
    writer.add_vision_projection_dim(model.config.text_config.hidden_size)
    writer.add_vision_image_size(560)
    writer.add_vision_patch_size(config.patch_size)
    writer.add_vision_embedding_length(width)
    # Of Qwen2-VL this is what the converter takes for the MLP's width.
    writer.add_vision_feed_forward_length(config.intermediate_size if gated else config.hidden_size)
    writer.add_vision_block_count(config.depth)
    writer.add_vision_head_count(config.num_heads)
    writer.add_vision_image_mean(settings["image_mean"])
    writer.add_vision_image_std(settings["image_std"])
    kinds = gguf.VisionProjectorType
    writer.add_clip_projector_type(kinds.QWEN25VL if gated else kinds.QWEN2VL)
    if gated:
        writer.add_vision_use_silu(True)
        writer.add_vision_n_wa_pattern(config.fullatt_block_indexes[0] + 1)
    writer.add_vision_attention_layernorm_eps(1e-6)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, config.depth)
    for name, weight in model.state_dict().items():
        if name.startswith(_TOWER):
            kind = np.float32 if weight.dim() == 1 else np.float16
            weight.copy_(torch.from_numpy(weight.numpy().astype(kind)))
            for stored, values in _qwen2_parts(name.removeprefix(_TOWER), weight, names):
                writer.add_tensor(stored, np.ascontiguousarray(values.numpy().astype(kind)))
    _finish(writer)


def _qwen2_parts(
    name: str, weight: torch.Tensor, names: gguf.TensorNameMap
) -> list[tuple[str, torch.Tensor]]:
    if name == "patch_embed.proj.weight":
        return _parts(name, weight, names, [])
    parts = {name: weight}
    if ".qkv." in name:
        thirds = zip("qkv", weight.chunk(3), strict=True)
        parts = {name.replace("qkv", letter): third for letter, third in thirds}
    found = []
    for part, values in parts.items():
        stored = names.get_name("visual." + part, (".weight", ".bias"))
        assert stored is not None, part
        found.append((stored, values))
    return found


def _parts(
    name: str, weight: torch.Tensor, names: gguf.TensorNameMap, deepstack: list[int]
) -> list[tuple[str, torch.Tensor]]:
    kind = name.rpartition(".")[2]
    if name == "patch_embed.proj.weight":
        return [
            ("v.patch_embd.weight", weight[:, :, 0]),
            ("v.patch_embd.weight.1", weight[:, :, 1]),
        ]
    if name.startswith("deepstack_merger_list."):
        index, part = name.split(".")[1:3]
        short = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}[part]
        return [(f"v.deepstack.{deepstack[int(index)]}.{short}.{kind}", weight)]
    if name.startswith("merger."):
        short = {"norm": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}
        return [(f"{short[name.split('.')[1]]}.{kind}", weight)]
    stored = names.get_name("visual." + name, (".weight", ".bias"))
    assert stored is not None, name
    return [(stored, weight)]


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
