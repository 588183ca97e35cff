"""Prints, as JSON, what some steps of tiny models launch, and what is found ahead of them: names of
kernels and what Triton compiles them for. To be run by itself: where tests run, kernels are
interpreted."""

import json
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import driver
from triton.runtime.jit import JITFunction, create_function_from_signature

from pagoda.core.kvcache.spec import GroupSpec, KVLayout, kv_groups
from pagoda.kernels import ops, packing
from pagoda.kernels.attention import select
from pagoda.kernels.triton import ops as triton_ops
from pagoda.models.base import CausalLM
from pagoda.planner.attention import AttentionChoice
from pagoda.runtime.cache_memory import CacheMemory
from pagoda.runtime.device import CpuDevice
from pagoda.runtime.steps.program import StepLimits
from pagoda.runtime.triton.needed import needed
from pagoda.runtime.triton.weightless import weightless
from tests.models import tiny
from tests.models.driver import Driver
from tools.triton_start import PlayedDriver

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt_oss": tiny.GPT_OSS,
    "qwen3_5_moe": tiny.QWEN3_5_MOE,
}
LIMITS = StepLimits(max_tokens=64, max_reqs=4, max_samples=4, max_model_len=256)
BACKEND = CUDABackend(GPUTarget("cuda", 90, 32))
BLOCK = 64


def main() -> None:
    driver.set_active(PlayedDriver(90))
    found = {}
    for family, sizes in FAMILIES.items():
        model = load(family, sizes)
        groups = kv_groups(model.spec, model.context.attention.layout)
        launches = needed(weightless(model), groups, LIMITS)
        ahead = [told(one.kernel, one.args, one.options) for one in launches]
        found[family] = {"launched": sorted(steps(model, groups)), "ahead": ahead}
    print(json.dumps(found))


def load(family: str, sizes: dict[str, Any]) -> CausalLM:
    """On a CPU, the tensors of which take Triton's forms."""
    with tempfile.TemporaryDirectory() as folder:
        tiny.make(family, **sizes).save_pretrained(folder)
        with mock.patch.object(select, "native_form", lambda device, dtype: triton_ops):
            attention = AttentionChoice(KVLayout("tokens", BLOCK), "native")
            return tiny.load(Path(folder), dtype=torch.bfloat16, attention=attention)


def steps(model: CausalLM, groups: list[GroupSpec]) -> set[str]:
    """What a prompt, one beside a stream, and two streams launch."""
    launched: set[str] = set()

    def catch(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        launched.add(told(kernel, args, options))

    with (
        mock.patch.object(ops, "form", lambda x: triton_ops),
        mock.patch.object(packing, "on_gpu", lambda operand: True),
        mock.patch.object(JITFunction, "run", catch),
    ):
        played = Driver(model, block_size=BLOCK)
        played.caches = CacheMemory(groups, 64, CpuDevice()).layers  # as an engine lays them out
        for step in ({"a": [1] * 5}, {"a": [1], "b": [1] * 40}, {"a": [1], "b": [1]}):
            for logits in played.step(step).values():
                ops.first_max(logits[-1:].clone())
    return launched


def told(kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> str:
    bind = create_function_from_signature(kernel.signature, kernel.params, BACKEND)
    _, special, chosen = bind(*args, **options)
    name = f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.__name__.strip('_')}"
    return f"{name} {special!r} {sorted(chosen.items())!r}"


if __name__ == "__main__":
    main()
