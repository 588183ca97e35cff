"""`bench gpu`: models of real sizes and random weights, each beside what the GPU allows at best.

Each contender runs in a process of its own, so that one's memory is gone before the next begins.
The ceilings are measured on the device: how fast it copies, and how fast it multiplies.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagoda.arch.registry import spec_for
from pagoda.base.errors import PagodaError
from pagoda.bench.gpus.models import GpuModel
from pagoda.config.engine import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from pagoda.core.kvcache.spec import kv_groups
from pagoda.planner.attention import own_attention
from pagoda.planner.devices.speed import step_bytes, step_operations
from pagoda.planner.memory.assumed import dummy_of
from pagoda.planner.memory.weights import HeldWeight, held_weights
from pagoda.planner.resolved import DType
from pagoda.weights.formats import PUBLISHED

if TYPE_CHECKING:
    from pagoda.bench.inprocess import BenchEngine
    from pagoda.runtime.device import Device

BATCHES = (1, 16, 64, 256)
PROMPT = 2048
# Decode steps behind short prompts: about `_CONTEXT` tokens of context on average.
_SHORT, _TOKENS = 32, 128
_CONTEXT = _SHORT + _TOKENS // 2
_PROMPT_REPEATS = 5
_TRANSFORMERS_BATCH = 16
_COPY_BYTES = 256 << 20  # several times what a cache holds
_MATRIX = 8192
_PROBE_SECONDS = 0.5


@dataclass
class Ceilings:
    copy: float
    """Bytes per second, read and written ones together."""
    matmul: float
    """Multiplications and additions per second, in the models' dtype."""


@dataclass
class Measured:
    """One model; speeds in tokens per second."""

    model: str
    dtype: str = ""
    ready: float = 0.0
    """Seconds from the first import to the first step, random weights being made left out."""
    decode: dict[int, float] = field(default_factory=dict)
    """By requests at once."""
    decode_best: dict[int, float] = field(default_factory=dict)
    """As the bytes of a step and `Ceilings.copy` allow."""
    prefill: float = 0.0
    prefill_best: float = 0.0
    transformers: float | None = None
    """`generate` of 16 at once."""
    note: str = ""
    """Why something is missing."""


def usual_type(device: "Device") -> DType:
    """The type of activations, where nothing else is asked for."""
    return "bfloat16" if device.facts().supports_bf16 else "float16"


def measure_ceilings(device: "Device", dtype: DType) -> Ceilings:
    import torch

    where, kind = device.torch_device, device.dtype(dtype)
    source, target = torch.empty(2, _COPY_BYTES, dtype=torch.uint8, device=where)
    copying = _seconds(device, lambda: target.copy_(source))
    a, b = (torch.randn(_MATRIX, _MATRIX, device=where).to(kind) for _ in range(2))
    multiplying = _seconds(device, lambda: torch.mm(a, b))
    return Ceilings(2 * _COPY_BYTES / copying, 2 * _MATRIX**3 / multiplying)


def measure_model(model: GpuModel, device: "Device") -> Measured:
    """In this process; PagodaError where it does not fit."""
    from pagoda.bench.inprocess import BenchEngine

    ceilings = measure_ceilings(device, usual_type(device))
    with tempfile.TemporaryDirectory(prefix="pagoda-bench-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(model.config))
        engine = BenchEngine.start(engine_config(folder))
    phases = {row["name"]: row for row in engine.ready.ledger if row["kind"] == "phase"}
    chosen = {row["name"]: row for row in engine.ready.ledger if row["kind"] == "choice"}
    dtype = str(chosen["dtype"]["value"])
    made = phases["load weights"]["seconds"]
    result = Measured(model.name, dtype, sum(row["seconds"] for row in phases.values()) - made)
    engine.finish_captures()
    for batch in BATCHES:
        result.decode[batch] = _decode_speed(engine, batch)
    result.prefill = max(_prefill_speed(engine) for _ in range(_PROMPT_REPEATS))
    engine.close()
    memory = {row["name"]: row for row in engine.ready.ledger if row["kind"] == "memory"}
    weights = int(memory["weights"]["measured"])
    _add_best(result, model, ceilings, device.facts().packed_storages, weights)
    return result


def engine_config(folder: str) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(folder, load_format="dummy", max_model_len=PROMPT + 64),
        cache=CacheConfig(enable_prefix_caching=False),
        scheduler=SchedulerConfig(
            max_num_seqs=max(BATCHES), max_num_batched_tokens=4 * PROMPT, max_step_ms=0
        ),
        # The rooflines are of the GPU's own memory.
        device=DeviceConfig(device="cuda", cpu_offload_gb=0.0),
    )


def transformers_speed(model: GpuModel, device: "Device") -> float:
    """Tokens per second of `generate`, 16 requests at once, greedy; in this process."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = model.plain_config
    kind = device.dtype(usual_type(device))
    with torch.device(device.torch_device):
        made = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # as theirs is
            AutoConfig.for_model(**config), dtype=kind
        )
        theirs = made.eval()
    ids = torch.randint(100, (_TRANSFORMERS_BATCH, _SHORT), device=device.torch_device)

    def generate(count: int) -> float:
        device.synchronize()
        begun = time.perf_counter()
        theirs.generate(ids, min_new_tokens=count, max_new_tokens=count, do_sample=False)
        device.synchronize()
        return time.perf_counter() - begun

    generate(8)
    # The prompt's part falls out of the difference.
    seconds = generate(_TOKENS) - generate(8)
    return _TRANSFORMERS_BATCH * (_TOKENS - 8) / seconds


def run_apart(what: str, name: str) -> dict[str, Any]:
    """`what` (`pagoda` or `transformers`) measures a model in a new process; its JSON, or
    {"error": why}."""
    command = [sys.executable, "-m", "pagoda", "bench", "gpu", "--worker", what, name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    try:
        result = json.loads(lines[-1])
    except (IndexError, ValueError):
        return {"error": f"its process ended with status {done.returncode}"}
    return result if isinstance(result, dict) else {"error": "it answered nonsense"}


def worker(what: str, model: GpuModel, device: "Device") -> dict[str, Any]:
    """What `run_apart` gets from its process."""
    try:
        if what == "transformers":
            return {"transformers": transformers_speed(model, device)}
        return asdict(measure_model(model, device))
    except (PagodaError, RuntimeError, ImportError, ValueError, KeyError) as error:
        return {"error": " ".join(str(error).split())[:200] or type(error).__name__}


def measure_all(
    models: tuple[GpuModel, ...],
    apart: Callable[[str, str], dict[str, Any]] = run_apart,
    beside_transformers: bool = True,
) -> Iterator[Measured]:
    """One after the other."""
    for model in models:
        found = apart("pagoda", model.name)
        if "error" in found:
            result = Measured(model.name, note=found["error"])
        else:
            for name in ("decode", "decode_best"):  # JSON's keys are texts
                found[name] = {int(batch): speed for batch, speed in found[name].items()}
            result = Measured(**found)
        if beside_transformers and not result.note and find_spec("transformers") is not None:
            theirs = apart("transformers", model.name)
            result.transformers = theirs.get("transformers")
            result.note = f"transformers: {theirs['error']}" if "error" in theirs else ""
        yield result


def _add_best(
    result: Measured, model: GpuModel, ceilings: Ceilings, kept: frozenset[str], weights: int
) -> None:
    """`kept`: storage formats that the device keeps; `weights`: bytes of all, as measured."""
    spec = spec_for(model.config, {}, ())
    held = held_weights(spec, dummy_of(spec, model.config).tensors, result.dtype, kept)
    read = _as_large(held, weights)
    groups = kv_groups(spec, own_attention("cuda").layout, result.dtype)
    for batch in BATCHES:
        nbytes = step_bytes(spec, read, groups, batch, _CONTEXT)
        multiplied = step_operations(spec, held, batch, batch)
        step = max(nbytes / ceilings.copy, multiplied / ceilings.matmul)
        result.decode_best[batch] = batch / step
    result.prefill_best = PROMPT * ceilings.matmul / step_operations(spec, held, PROMPT, 1)


def _as_large(held: list[HeldWeight], weights: int) -> list[HeldWeight]:
    """With what is quantized as large as it is on the device, where columns of a group share a
    scale; planned is one for each block of 32."""
    quantized = sum(part.nbytes for part in held if part.storage in PUBLISHED)
    if not quantized:
        return held
    others = sum(part.nbytes for part in held) - quantized
    share = (weights - others) / quantized
    return [
        replace(part, elements=part.elements * share) if part.storage in PUBLISHED else part
        for part in held
    ]


def _decode_speed(engine: "BenchEngine", batch: int) -> float:
    """The second of two runs: the first compiles and captures."""
    speed = 0.0
    for _ in range(2):
        prompts = [engine.random_prompt(_SHORT) for _ in range(batch)]
        seconds, tokens = engine.run_decode(prompts, [_TOKENS] * batch)
        speed = tokens / seconds
    return speed


def _prefill_speed(engine: "BenchEngine") -> float:
    return PROMPT / engine.run([engine.random_prompt(PROMPT)], [1])


def _seconds(device: "Device", work: Callable[[], object]) -> float:
    """Seconds of one call, on average over half a second."""
    work()
    device.synchronize()
    begun, calls = time.perf_counter(), 0
    while time.perf_counter() - begun < _PROBE_SECONDS:
        for _ in range(10):
            work()
        device.synchronize()
        calls += 10
    return (time.perf_counter() - begun) / calls
