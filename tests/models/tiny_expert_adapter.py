"""Tiny random adapters of experts, written as peft, vLLM and llama.cpp's converter write them, and
the models that they make. Nothing here is computed by Pagoda."""

import copy
import json
from pathlib import Path

import gguf
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from tests.models import tiny_gguf

PARAMETERS = ("gate_up_proj", "up_proj", "down_proj")
"""Of all experts in transformers 5, in its order."""
_SINGLE = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


class TinyExpertAdapter:
    """Random A [experts, rank, in] and B [experts, out, rank] beside parameters of all experts."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        rank: int = 3,
        alpha: float = 6.0,
        parameters: tuple[str, ...] = PARAMETERS,
        seed: int = 0,
        turned: bool = False,
    ):
        """`turned`: the parameters are taken for [experts, in, out]."""
        self.rank, self.alpha, self._config = rank, alpha, model.config
        self.pairs: dict[tuple[str, str], tuple[torch.Tensor, torch.Tensor]] = {}
        self._transposed: dict[str, bool] = {}
        generator = torch.Generator().manual_seed(seed)
        for name, module in model.named_modules():
            if not name.endswith("experts"):
                continue
            self._transposed[name] = getattr(module, "is_transposed", False)
            for parameter in parameters:
                weight = getattr(module, parameter, None)
                if not isinstance(weight, nn.Parameter):
                    continue
                count, out, columns = weight.shape
                if self._transposed[name] != turned:
                    out, columns = columns, out
                a = torch.randn(count, rank, columns, generator=generator) * 0.1
                b = torch.randn(count, out, rank, generator=generator) * 0.1
                self.pairs[name, parameter] = a, b
        assert self.pairs
        self._turned = turned

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def merged_into(self, model: PreTrainedModel, experts: tuple[int, ...] = ()) -> PreTrainedModel:
        """A copy of the model with the adapter in its weights, or in those of some experts."""
        merged = copy.deepcopy(model)
        with torch.no_grad():
            for (name, parameter), (a, b) in self.pairs.items():
                change = self.scale * (b @ a)  # [experts, out, in], of what A and B are
                if self._transposed[name] != self._turned:
                    change = change.transpose(1, 2)
                chosen = list(experts) or list(range(len(change)))
                getattr(merged.get_submodule(name), parameter)[chosen] += change[chosen]
        return merged

    def save_folded(self, folder: Path, **config) -> Path:
        """As peft's target_parameters: experts in the rank, a wrapper around each parameter's."""
        own = list(dict.fromkeys(parameter for _, parameter in self.pairs))
        tensors = {}
        for (name, parameter), (a, b) in self.pairs.items():
            depth = len(own) - 1 - own.index(parameter)
            before = f"base_model.model.{name}{'.base_layer' * depth}"
            tensors[f"{before}.lora_A.weight"] = a.flatten(0, 1).contiguous()
            tensors[f"{before}.lora_B.weight"] = b.permute(1, 2, 0).flatten(1).contiguous()
        targets = [f"experts.{parameter}" for parameter in own]
        return self._save(folder, tensors, target_parameters=targets, **config)

    def save_single(self, folder: Path, experts: tuple[int, ...] = (), names=_SINGLE) -> Path:
        """A module for each matrix of each expert, as older checkpoints have them."""
        tensors = {}
        for (name, parameter), (a, b) in self.pairs.items():
            parts = parameter.removesuffix("_proj").split("_")
            for expert in experts or range(len(a)):
                for part, rows in zip(parts, b[expert].chunk(len(parts)), strict=True):
                    module = f"base_model.model.{name}.{expert}.{names[part]}"
                    tensors[f"{module}.lora_A.weight"] = a[expert].clone()
                    tensors[f"{module}.lora_B.weight"] = rows.clone()
        return self._save(folder, tensors, target_modules=list(names.values()))

    def _save(self, folder: Path, tensors: dict[str, torch.Tensor], **config) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        told = {
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": self.rank, "bias": "none",
            "lora_alpha": self.alpha, "target_modules": [], **config,
        }  # fmt: skip
        (folder / "adapter_config.json").write_text(json.dumps(told))
        save_file(tensors, folder / "adapter_model.safetensors")
        return folder

    def save_gguf(self, path: Path) -> Path:
        """As convert_lora_to_gguf.py: a tensor of all experts for each matrix."""
        kind = self._config.model_type
        writer = gguf.GGUFWriter(path, tiny_gguf._ARCHS.get(kind, kind))
        writer.add_string("general.type", "adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", self.alpha)
        for (name, parameter), (a, b) in self.pairs.items():
            layer, parts = name.split("layers.")[1].split(".")[0], parameter.split("_")[:-1]
            for part, rows in zip(parts, b.chunk(len(parts), dim=1), strict=True):
                stored = f"blk.{layer}.ffn_{part}_exps.weight"
                writer.add_tensor(f"{stored}.lora_a", a.numpy())
                writer.add_tensor(f"{stored}.lora_b", rows.contiguous().numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path
