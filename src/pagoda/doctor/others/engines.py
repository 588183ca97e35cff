"""What another engine would take for the same question: `--engine vllm-0.19`, `llama.cpp`."""

from bisect import bisect_right

from pagoda.base.errors import ConfigError
from pagoda.base.units import format_bytes
from pagoda.base.words import say
from pagoda.doctor.answer import Answer
from pagoda.doctor.command import quoted
from pagoda.doctor.others.answer import OtherEngine
from pagoda.doctor.others.vllm import vllm_engine
from pagoda.doctor.others.vllm_start import version_named
from pagoda.doctor.remedies.search import Remedy
from pagoda.planner.estimate import Row
from pagoda.planner.llama_cpp import plan_llama_cpp
from pagoda.planner.vllm.setup import VERSIONS, version_of

_LLAMA_CPP = "llama.cpp"
_LLAMA_CONTEXT = 4096


def check_engine(name: str) -> None:
    """ConfigError for an engine that is not known."""
    if name != _LLAMA_CPP and not name.startswith("vllm"):
        known = ", ".join(f"vllm-{version}" for version in VERSIONS)
        raise ConfigError(f"--engine {name} is not known; write {_LLAMA_CPP} or {known}.")
    if name != _LLAMA_CPP:
        version_of(version_named(name))


def other_engine(name: str, made: Answer) -> OtherEngine:
    """`name` as `check_engine` takes it; ConfigError for what that engine cannot do."""
    if name == _LLAMA_CPP:
        return _llama_cpp(made)
    hardware = made.hardware
    if hardware.facts.device != "cuda" or hardware.capability is None:
        raise ConfigError(f"--engine {name} is planned for GPUs; name some with --gpu.")
    if _is_gguf(made):
        raise ConfigError(
            f"--engine {name}: what vLLM makes of a GGUF is not known here. Name the model's "
            f"safetensors folder or its config.json, or take --engine {_LLAMA_CPP}."
        )
    return vllm_engine(name, made)


def _is_gguf(made: Answer) -> bool:
    return not made.subject.config


def _llama_cpp(made: Answer) -> OtherEngine:
    length = made.asked.model.max_model_len
    cells = length if isinstance(length, int) else _LLAMA_CONTEXT
    if made.users is not None:  # it divides the cells among requests
        cells = made.users.users.count * made.users.users.tokens
    rows, room = _llama_rows(made, cells), made.hardware.facts.free_memory * made.hardware.count
    needed = _high(rows)
    fits = needed <= room
    gguf = _is_gguf(made)
    lines = () if gguf else (
        say(
            "This is no GGUF: its matrices are taken to be in Q8_0; name a .gguf for its own sizes."
        ),
    )  # fmt: skip
    problem = "" if fits else say(
        "It needs {size}, and {room} are free.",
        size=format_bytes(needed), room=format_bytes(room),
    )  # fmt: skip
    most = bisect_right(range(1, cells), room, key=lambda count: _high(_llama_rows(made, count)))
    shorter = [Remedy(f"-c {most}", _llama_command(made, most))] if gguf and most else []
    return OtherEngine(
        _LLAMA_CPP, tuple(rows), fits, lines, problem,
        command=_llama_command(made, cells) if gguf and fits else "",
        remedies=() if fits else tuple(shorter),
        findings=made.findings,
        numbers={"max_model_len": cells},
    )  # fmt: skip


def _high(rows: list[Row]) -> int:
    return sum(row.estimate.high for row in rows)


def _llama_rows(made: Answer, cells: int) -> list[Row]:
    return plan_llama_cpp(made.subject.spec, made.subject.tensors if _is_gguf(made) else {}, cells)


def _llama_command(made: Answer, cells: int) -> str:
    words = ["llama-server", "-m", str(made.subject.file), "-c", str(cells)]
    if made.users is not None:
        words += ["-np", str(made.users.users.count)]
    return quoted([*words, *(["-ngl", "99"] if made.hardware.facts.device == "cuda" else [])])
