"""Models of which kernels are compiled without their weights, in true sizes and of few layers."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

from pagoda.arch.registry import spec_for
from pagoda.core.kvcache.spec import GroupSpec, kv_groups
from pagoda.kernels.triton.products import matrix
from pagoda.layers.loading import WeightedLayer
from pagoda.models.base import Model
from pagoda.models.loader import build_model
from pagoda.planner.attention import own_attention
from pagoda.planner.memory.assumed import Dummy, dummy_of
from pagoda.runtime.steps.program import StepLimits
from pagoda.weights.checkpoint import TensorInfo

LIMITS = StepLimits(max_tokens=2048, max_reqs=64, max_samples=64, max_model_len=32768)
_CATALOGUE = Path(__file__).parent.parent / "src/pagoda/doctor/catalogue.json"
_FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


class Known(NamedTuple):
    config: str
    """Its name in the doctor's catalogue."""
    changes: dict[str, Any]
    """Of the config: one layer of each kind is enough."""
    storage_of: Callable[[str], str] | None = None
    """Of a matrix by its name, where config.json does not say so."""


def _q4_k_m(name: str) -> str:
    """As llama.cpp's mix has it: of half the layers two matrices have more bits."""
    more = name.startswith(("model.layers.0.self_attn.v", "model.layers.0.mlp.down", "lm_head"))
    return "Q6_K" if more else "Q4_K"


MODELS = {
    "Llama-3.1-8B Q4_K_M": Known("meta-llama/Llama-3.1-8B", {"num_hidden_layers": 2}, _q4_k_m),
    "gpt-oss-20b MXFP4": Known(
        "openai/gpt-oss-20b",
        {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "Qwen3-30B-A3B FP8": Known(
        "Qwen/Qwen3-30B-A3B", {"num_hidden_layers": 1, "quantization_config": _FP8}
    ),
}


def weightless_model(known: Known) -> tuple[Model, list[GroupSpec]]:
    """The model on tensors without memory, and the groups of its cache."""
    config = _config(known.config) | known.changes
    spec = spec_for(config, {}, ())
    dummy = dummy_of(spec, config)
    if known.storage_of is not None:
        names = {source for rule in spec.expanded_weights() for source in rule.sources}
        dummy = Dummy(
            {name: TensorInfo(name, (), known.storage_of(name), 0)
             for name in names if not name.endswith("norm.weight")}
        )  # fmt: skip
    attention = own_attention("cuda")
    model = build_model(
        spec, dummy, dtype=torch.bfloat16, device="meta", packed=True, attention=attention
    )
    with _alike_in(dummy.group):
        for layer in model.modules():
            if isinstance(layer, WeightedLayer):
                layer.finalize()
    model.context.rotary.grow_on("meta")
    return model, kv_groups(spec, attention.layout)


def _config(name: str) -> dict[str, Any]:
    catalogue = json.loads(_CATALOGUE.read_text())
    config: dict[str, Any] | str = catalogue[name]
    return catalogue[config] if isinstance(config, str) else config


@contextmanager
def _alike_in(group: int) -> Iterator[None]:
    """Scales without memory are those of groups of `group` columns, where there are such."""
    block = matrix.FORMATS["FP8"].block_elements

    def alike(tensor: torch.Tensor, merged: int) -> bool:
        return merged * block == group

    with mock.patch.object(matrix, "_alike", alike):
        yield
