"""What engines lose to others on the same cores, and what a server adds to one."""

import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from pagoda.base.errors import PagodaError
from pagoda.base.machine import cpu_seconds
from pagoda.bench.client import LoadClient, Prompt
from pagoda.bench.serverprocess import ServerProcess
from pagoda.bench.sse import ServerError
from pagoda.bench.stats import RequestRecord
from pagoda.planner.devices.step_table import Beside, Served, StepTable

if TYPE_CHECKING:
    from pagoda.bench.inprocess import BenchEngine

# What is timed beside neighbours: means of a second each, for the system lets engines take turns.
_DECODES, _DECODING, _PROMPTS, _PROMPT = 96, 2, 10, 64
_ROUNDS = 3
# What is asked of a server: requests of one token, and replies of many.
_REQUESTS, _REPLIES, _REPLY, _LENGTH = 12, 3, 64, 64
# Before a request: whoever comes to a server finds its threads asleep and its caches cold.
_PAUSE_SECONDS = 0.2


def beside(engine: "BenchEngine", config: Path, engines: int) -> list[Beside]:
    """Time an engine while 1 to `engines` - 1 others compute, and while they stand still.
    `config`: a file with an EngineConfig as JSON, that of the others."""
    with _neighbours(config, engines - 1) as others:
        rounds = [_round(engine, others) for _ in range(_ROUNDS)]
    found = []
    for place in range(1, engines):
        # The least of each: what else runs on the machine only adds.
        decodes, prompts = (
            min(times[place][kind] for times in rounds) / min(times[0][kind] for times in rounds)
            for kind in (0, 1)
        )
        found.append(Beside(place + 1, decodes, prompts))
    return found


def _round(engine: "BenchEngine", others: Sequence[int]) -> list[tuple[float, float]]:
    """Seconds of a decode and of a prompt, beside none, one, ... of them."""
    times = [_time(engine)]
    for other in others:
        os.kill(other, signal.SIGCONT)
        times.append(_time(engine))
    for other in others:
        os.kill(other, signal.SIGSTOP)
    return times


def _time(engine: "BenchEngine") -> tuple[float, float]:
    prompts = [engine.random_prompt(_PROMPT) for _ in range(_DECODING)]
    seconds, tokens = engine.run_decode(prompts, [_DECODES] * _DECODING)
    took = [engine.run([engine.random_prompt(_PROMPT)], [1]) for _ in range(_PROMPTS)]
    return seconds * _DECODING / tokens, statistics.mean(took)


@contextlib.contextmanager
def _neighbours(config: Path, count: int) -> Iterator[list[int]]:
    """Processes that compute whenever they are not stopped, as all are at first."""
    command = [sys.executable, "-m", "pagoda.bench.neighbour", str(config)]
    with contextlib.ExitStack() as stack:
        others = []
        for _ in range(count):
            other = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(other.kill)
            assert other.stdout is not None
            if not other.stdout.readline():
                raise PagodaError("An engine that was to compute beside this one ended.")
            os.kill(other.pid, signal.SIGSTOP)
            others.append(other.pid)
        yield others


def served(words: Sequence[str], command: Sequence[str], table: StepTable) -> Served:
    """Ask a server that the module `command` starts for one reply after the other, and compare
    with the steps of its engine alone. Raises PagodaError where it does not start, ServerError
    where it does not answer."""
    with ServerProcess(words, command) as server:
        server.wait_ready()
        rounds = [asyncio.run(_ask(server, table)) for _ in range(_ROUNDS)]
    return Served(
        request=min(one.request for one in rounds),
        step=min(one.step for one in rounds),
        token_cpu=min(one.token_cpu for one in rounds),
        request_cpu=min(one.request_cpu for one in rounds),
    )


async def _ask(server: ServerProcess, table: StepTable) -> Served:
    async with httpx.AsyncClient(base_url=server.url, timeout=None, trust_env=False) as http:
        client = LoadClient(http, "/v1/completions", server.name, {"ignore_eos": True})
        pids = (server.process.pid, os.getpid())
        await _send(client, 6, 8)  # connections, first calls
        spent = sum(map(cpu_seconds, pids))
        short = await _send(client, _REQUESTS, 1, pause=_PAUSE_SECONDS)
        of_requests, spent = sum(map(cpu_seconds, pids)) - spent, sum(map(cpu_seconds, pids))
        long = await _send(client, _REPLIES, _REPLY)
        of_replies = sum(map(cpu_seconds, pids)) - spent
    request_cpu = of_requests / _REQUESTS
    tokens = _REPLIES * (_REPLY - 1)
    late = statistics.median(one.ttft - table.prompt_seconds(one.prompt_tokens) for one in short)
    steps = statistics.median(
        (one.tpot or 0.0) - table.decode_seconds(1, one.prompt_tokens + _REPLY / 2) for one in long
    )
    return Served(
        request=max(0.0, late),
        step=max(0.0, steps),
        token_cpu=max(0.0, of_replies - _REPLIES * request_cpu) / tokens,
        request_cpu=request_cpu,
    )


async def _send(
    client: LoadClient, count: int, tokens: int, pause: float = 0.0
) -> list[RequestRecord]:
    records = []
    for _ in range(count):
        await asyncio.sleep(pause)
        # Each begins differently, so that none is found in the cache.
        text = f"{time.perf_counter_ns()}" + " and then" * (_LENGTH // 2)
        records.append(await client.send(Prompt(text, _LENGTH, tokens)))
        if records[-1].error:
            raise ServerError(records[-1].error)
    return records
