"""What another engine would take for the same question: `--engine vllm-0.19`, `llama.cpp`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagoda.base.errors import ConfigError
from pagoda.base.units import format_bytes
from pagoda.config.engine import EngineConfig
from pagoda.doctor.answer import Answer
from pagoda.doctor.subject import ASSUMED, Subject
from pagoda.planner.estimate import Row
from pagoda.planner.llama_cpp import plan_llama_cpp
from pagoda.planner.vllm.plan import plan_vllm
from pagoda.planner.vllm.setup import VERSIONS, VllmSetup, version_of

_LLAMA_CPP = "llama.cpp"
_LLAMA_CONTEXT = 4096


@dataclass(frozen=True)
class OtherEngine:
    name: str
    rows: tuple[Row, ...]
    fits: bool | None
    """None where it does not say."""
    lines: tuple[str, ...]
    """As its log will say, and what is to be known besides."""


def check_engine(name: str) -> None:
    """ConfigError for an engine that is not known."""
    if name != _LLAMA_CPP and not name.startswith("vllm"):
        known = ", ".join(f"vllm-{version}" for version in VERSIONS)
        raise ConfigError(f"--engine {name} is not known; write {_LLAMA_CPP} or {known}.")
    if name != _LLAMA_CPP:
        version_of(_version(name))


def other_engine(name: str, made: Answer) -> OtherEngine:
    """`name` as `check_engine` takes it."""
    return _llama_cpp(made) if name == _LLAMA_CPP else _vllm(name, made)


def _llama_cpp(made: Answer) -> OtherEngine:
    length = made.asked.model.max_model_len
    cells = length if isinstance(length, int) else _LLAMA_CONTEXT
    gguf = _is_gguf(made.subject)
    rows = plan_llama_cpp(made.subject.spec, made.subject.tensors if gguf else {}, cells)
    needed = sum(row.estimate.high for row in rows)
    lines = () if gguf else (
        "This is no GGUF: its matrices are taken to be in Q8_0; name a .gguf for its own sizes.",
    )  # fmt: skip
    hardware = made.hardware
    fits = needed <= hardware.facts.free_memory * hardware.count
    return OtherEngine(_LLAMA_CPP, tuple(rows), fits, lines)


def _is_gguf(subject: Subject) -> bool:
    return not subject.config


def _vllm(name: str, made: Answer) -> OtherEngine:
    hardware, config = made.hardware, made.config
    if hardware.facts.device != "cuda" or hardware.capability is None:
        raise ConfigError(f"--engine {name} is planned for GPUs; name some with --gpu.")
    if _is_gguf(made.subject):
        raise ConfigError(
            f"--engine {name}: what vLLM makes of a GGUF is not known here. Name the model's "
            f"safetensors folder or its config.json, or take --engine {_LLAMA_CPP}."
        )
    setup = VllmSetup(
        version=_version(name),
        total=hardware.facts.total_memory,
        capability=hardware.capability,
        tensor_parallel=config.parallel.tensor_parallel_size,
        pipeline=config.parallel.pipeline_parallel_size,
        speculative_tokens=int(made.draft.value),
        mamba_align=config.cache.enable_prefix_caching,
        **_typed(made.asked),
    )
    tensors = made.subject.tensors if made.subject.basis != ASSUMED else {}
    plan = plan_vllm(made.subject.spec, tensors, setup, made.subject.config)
    other = _other_version(name)
    logs = plan.pool is not None and plan.fits and not (other and version_of(other).is_v0)
    lines = []
    if other is not None:
        lines.append(f"planned by the rules of {plan.run.version.name}: {other} is not known here")
    lines += plan.pool.lines() if logs and plan.pool is not None else []
    lines.append(f"{made.draft.value} tokens drafted at a time: {made.draft.why}")
    return OtherEngine(name, tuple(plan.rows()), plan.fits, (*lines, *plan.notes))


def _typed(asked: EngineConfig) -> dict[str, Any]:
    """Flags that were given; the others are the version's own defaults."""
    model, cache, scheduler = asked.model, asked.cache, asked.scheduler
    default = EngineConfig()
    typed: dict[str, Any] = {
        "dtype": model.dtype,
        "quantization": "auto" if model.quantization == "none" else model.quantization,
        "kv_cache_dtype": cache.kv_cache_dtype,
        "enforce_eager": asked.device.enforce_eager,
    }
    if cache.gpu_memory_utilization != default.cache.gpu_memory_utilization:
        typed["gpu_memory_utilization"] = cache.gpu_memory_utilization
    for name, value in (
        ("max_model_len", model.max_model_len),
        ("max_num_seqs", scheduler.max_num_seqs),
        ("max_num_batched_tokens", scheduler.max_num_batched_tokens),
    ):
        if isinstance(value, int):
            typed[name] = value
    return typed


def _version(name: str) -> str:
    """`vllm` alone is the newest that is known."""
    return name.removeprefix("vllm").lstrip("-=: ") or list(VERSIONS)[-1]


def _other_version(name: str) -> str | None:
    """What was asked for, where another version's rules stand in for it."""
    asked = _version(name)
    known = version_of(asked).name
    same = asked.removeprefix("v").split(".")[:2] == known.split(".")
    return None if same else asked


def engine_lines(other: OtherEngine) -> list[str]:
    verdict = {None: "", True: ": it starts", False: ": it does not start"}[other.fits]
    out = [f"{other.name}{verdict}"]
    for row in other.rows:
        size = row.bytes
        shown = format_bytes(size) if isinstance(size, int) else _between(size)
        out.append(f"  {row.item:<14}{shown:>22}  {row.exactness:<9} {row.detail}")
    return [*out, *(f"  {line}" for line in other.lines)]


def _between(bounds: Sequence[int]) -> str:
    low, high = (format_bytes(bound) for bound in bounds)
    return low if low == high else f"{low} - {high}"


def engine_json(other: OtherEngine) -> dict[str, Any]:
    rows = [
        {
            "item": row.item, "exactness": row.exactness, "low": row.estimate.low,
            "likely": row.estimate.likely, "high": row.estimate.high, "detail": row.detail,
        }
        for row in other.rows
    ]  # fmt: skip
    return {"engine": other.name, "fits": other.fits, "memory": rows, "log": list(other.lines)}
