"""A GPU that is made up, and models that a CPU computes in no time."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from pagoda.base.facts import DeviceFacts
from pagoda.bench.gpus.models import GpuModel
from pagoda.runtime import device as devices
from pagoda.runtime.device import CpuDevice

_GIB = 1 << 30
_SIZES = {
    "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "intermediate_size": 128, "moe_intermediate_size": 128, "vocab_size": 512, "num_experts": 4,
    "num_local_experts": 4, "num_experts_per_tok": 2, "top_k_experts": 2, "global_head_dim": 64,
    "num_global_key_value_heads": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 32, "linear_value_head_dim": 32, "num_hidden_layers": 2,
    "full_attention_interval": 2,
}  # fmt: skip


class PlayedGpu(CpuDevice):
    """It runs ahead, and captures steps by computing them again."""

    name = "cuda"
    runs_ahead = True

    def facts(self) -> DeviceFacts:
        return DeviceFacts("cuda", 8 * _GIB, 7 * _GIB, 1, name="Played", capability=90)

    def memory_used(self) -> int:
        return 0

    def peak_of(self, work: Any) -> int:
        work()
        return 64 << 20

    def graph_maker(self) -> Any:
        return lambda: lambda work: SimpleNamespace(replay=work)

    def set_threads(self, count: int, **options: object) -> None:
        pass


def make_gpu() -> None:
    """Whoever asks for a device in this process gets that."""
    torch.set_num_threads(1)
    devices.make_device = lambda name, index=0: PlayedGpu()


def small(model: GpuModel) -> GpuModel:
    """The same architecture in a few thousand weights, none of them quantized."""
    config = {name: _SIZES.get(name, value) for name, value in model.config.items()}
    config.pop("quantization_config", None)
    if "layer_types" in config:
        config["layer_types"] = ["sliding_attention", "full_attention"]
    if "mrope_section" in config.get("rope_parameters", {}):
        config["rope_parameters"] = {**config["rope_parameters"], "mrope_section": [2, 1, 1]}
    return replace(model, config=config)
