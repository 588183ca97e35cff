"""Tiny random adapters, written as peft and llama.cpp's converter write them, and the models that
they make: W + scale * B A in transformers' own weights. Nothing here is computed by Pagoda."""

import copy
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from tests.models import tiny_gguf

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class TinyAdapter:
    """Random A and B beside the linear layers of a model whose names end so."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        rank: int = 4,
        alpha: float = 12.0,
        rslora: bool = False,
        targets: Sequence[str] = TARGETS,
        seed: int = 0,
    ):
        self.rank, self.alpha, self.rslora, self.targets = rank, alpha, rslora, list(targets)
        self._config = model.config
        generator = torch.Generator().manual_seed(seed)
        self.pairs: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Linear) and name.rpartition(".")[2] in targets:
                out, columns = layer.weight.shape
                a = torch.randn(rank, columns, generator=generator) * 0.1
                self.pairs[name] = a, torch.randn(out, rank, generator=generator) * 0.1

    @property
    def scale(self) -> float:
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def merged_into(self, model: PreTrainedModel, factor: float = 1.0) -> PreTrainedModel:
        """A copy of the model with the adapter in its weights."""
        merged = copy.deepcopy(model)
        with torch.no_grad():
            for name, (a, b) in self.pairs.items():
                merged.get_submodule(name).weight += factor * self.scale * (b @ a)
        return merged

    def save_peft(self, folder: Path, **config) -> Path:
        """The files of peft's save_pretrained."""
        folder.mkdir(parents=True, exist_ok=True)
        told = {
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": self.rank, "bias": "none",
            "lora_alpha": self.alpha, "use_rslora": self.rslora, "target_modules": self.targets,
            "modules_to_save": None, "use_dora": False, "fan_in_fan_out": False,
            "init_lora_weights": True, "inference_mode": True, **config,
        }  # fmt: skip
        (folder / "adapter_config.json").write_text(json.dumps(told))
        tensors = {}
        for name, (a, b) in self.pairs.items():
            tensors[f"base_model.model.{name}.lora_A.weight"] = a
            tensors[f"base_model.model.{name}.lora_B.weight"] = b
        save_file(tensors, folder / "adapter_model.safetensors")
        return folder

    def save_gguf(self, path: Path, **metadata: str) -> Path:
        """As convert_lora_to_gguf.py: the model's names, and rows of B where the converter puts
        those of the weight."""
        kind = self._config.model_type
        writer = gguf.GGUFWriter(path, tiny_gguf._ARCHS.get(kind, kind))
        for key, value in {"general.type": "adapter", "adapter.type": "lora", **metadata}.items():
            writer.add_string(key, value)
        writer.add_float32("adapter.lora.alpha", self.alpha)
        for name, a, b in self._stored():
            writer.add_tensor(f"{name}.lora_a", a)
            writer.add_tensor(f"{name}.lora_b", b)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _stored(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        arch = tiny_gguf._ARCHS.get(self._config.model_type, self._config.model_type)
        for module, (a, b) in self.pairs.items():
            name, rows = f"{module}.weight", b.numpy()
            heads = tiny_gguf._permuted_heads(name, self._config)
            rows = tiny_gguf._permute(rows, heads) if heads else rows
            stored = tiny_gguf._stored_name(name, self._config, arch)
            yield stored, a.numpy(), np.ascontiguousarray(rows)
