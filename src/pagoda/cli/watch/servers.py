"""What the servers of this machine do: their metrics, and what Linux says of their processes."""

import contextlib
import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from pagoda.base import runfile
from pagoda.base.words import say

_SECONDS = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class ModelLoad:
    """One model's, its replicas' together."""

    running: float = 0
    waiting: float = 0
    kv_usage: float = 0
    """0 to 1, of the fullest replica."""
    prompt_tokens: float = 0
    """Since its engine's start, as all that is counted."""
    generated_tokens: float = 0


@dataclass
class ServerLoad:
    port: int
    pid: int
    at: float
    """When it was looked at, as time.monotonic() tells it."""
    memory: int
    """Bytes that its processes hold in RAM; pages that several share count for each."""
    cpu_seconds: float
    """That its processes have computed."""
    up_seconds: float
    models: dict[str, ModelLoad] = field(default_factory=dict)
    problem: str = ""
    """Why the models are not known, or not all of them serve."""


def servers() -> list[ServerLoad]:
    """Those of this user, by their ports."""
    loads = []
    for entry in runfile.running():
        processes = _tree(entry.pid)
        load = ServerLoad(
            entry.port, entry.pid, time.monotonic(), sum(map(_memory, processes)),
            sum(map(_cpu_seconds, processes)), max(0.0, _uptime() - entry.started / _TICKS),
        )  # fmt: skip
        try:
            reply = _get(entry.port, "/metrics").raise_for_status()
            load.models = _models(reply.text)
            load.problem = _trouble(_get(entry.port, "/health"))
        except httpx.HTTPStatusError as error:
            load.problem = say("answers {status}", status=error.response.status_code)
        except httpx.TimeoutException:
            load.problem = say("says nothing for {seconds:g} s", seconds=_SECONDS)
        except httpx.HTTPError:
            load.problem = say("speaks no plain HTTP here")
        loads.append(load)
    return loads


def _get(port: int, path: str) -> httpx.Response:
    # trust_env: a proxy of this user's knows another 127.0.0.1.
    return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=_SECONDS, trust_env=False)


def _trouble(health: httpx.Response) -> str:
    """What `/health` says is in the way; empty where all is well."""
    if health.is_success:
        return ""
    try:
        found = msgspec.json.decode(health.content, type=_Health)
    except msgspec.MsgspecError:
        return say("answers {status}", status=health.status_code)
    why = found.cause if found.progress is None else found.progress.phase
    return f"{found.status}: {why}" if why else found.status


class _Progress(msgspec.Struct):
    phase: str


class _Health(msgspec.Struct):
    status: str
    cause: str | None = None
    progress: _Progress | None = None


_READ = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generated_tokens",
}


def _models(text: str) -> dict[str, ModelLoad]:
    models: dict[str, ModelLoad] = defaultdict(ModelLoad)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.labels.get("model_name")
            if name is None:
                continue
            if sample.name == "vllm:kv_cache_usage_perc":
                models[name].kv_usage = max(models[name].kv_usage, sample.value)
            elif what := _READ.get(sample.name):
                load = models[name]
                setattr(load, what, getattr(load, what) + sample.value)
    return dict(models)


def _tree(pid: int) -> list[int]:
    """A process and all below it."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            children[int(stat[1])].append(int(entry.name))
    found = [pid]
    for each in found:
        found += children[each]
    return found


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on; none where there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _memory(pid: int) -> int:
    stat = _stat(pid)
    return int(stat[21]) * _PAGE if stat else 0


def _cpu_seconds(pid: int) -> float:
    stat = _stat(pid)
    return (int(stat[11]) + int(stat[12])) / _TICKS if stat else 0.0


def _uptime() -> float:
    """Seconds since the machine started."""
    return float(Path("/proc/uptime").read_text().split()[0])
