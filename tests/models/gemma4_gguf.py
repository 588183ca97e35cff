"""A tiny Gemma 4 that sees, as llama.cpp's converter writes it, in a file for the model and one for
the tower (conversion/gemma.py). Names are the gguf package's; nothing of Pagoda takes part."""

from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import Gemma4ForCausalLM, PreTrainedModel

from tests.models import tiny_gguf

_TOWER, _EMBEDDER = "model.vision_tower.", "model.embed_vision."


def write_model(path: Path, model: PreTrainedModel) -> None:
    """The language model, in fp32."""
    text = Gemma4ForCausalLM(model.config.text_config)
    text.model.load_state_dict(model.model.language_model.state_dict())
    tiny_gguf.write(path, text, lambda name: tiny_gguf.Storage.F32)


def write_tower(path: Path, model: PreTrainedModel) -> None:
    """Matrices in fp16; `model` gets the weights that the file then holds."""
    config, hidden = model.config.vision_config, model.config.text_config.hidden_size
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_vision_projector_type(gguf.VisionProjectorType.GEMMA4V)
    writer.add_vision_projection_dim(hidden)
    writer.add_vision_image_size(224)
    writer.add_vision_patch_size(config.patch_size)
    writer.add_vision_embedding_length(config.hidden_size)
    writer.add_vision_feed_forward_length(config.intermediate_size)
    writer.add_vision_block_count(config.num_hidden_layers)
    writer.add_vision_head_count(config.num_attention_heads)
    writer.add_vision_image_mean([0.0, 0.0, 0.0])
    writer.add_vision_image_std([1.0, 1.0, 1.0])
    writer.add_vision_attention_layernorm_eps(config.rms_norm_eps)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if not name.startswith((_TOWER, _EMBEDDER)):
            continue
        plain = weight.dim() < 2 or name.endswith("position_embedding_table")
        kind = np.float32 if plain else np.float16
        values = weight.numpy().astype(kind)
        weight.copy_(torch.from_numpy(values))
        if name.endswith("input_proj.weight"):
            size = config.patch_size
            values = values.reshape(-1, size, size, 3).transpose(0, 3, 1, 2)
        mapped = name.replace(_TOWER + "encoder.", "vision_model.model.")
        mapped = mapped.replace(".linear.weight", ".weight")
        mapped += ".weight" if name.endswith("position_embedding_table") else ""
        bounds = (".input_min", ".input_max", ".output_min", ".output_max")
        stored = names.get_name(mapped, (".weight", ".bias", *bounds))
        values = values[None] if values.ndim == 0 else values
        assert stored is not None, mapped
        writer.add_tensor(stored, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
