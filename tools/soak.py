"""Many streams with random disconnects against a server; fails on an error or a leak.

    python tools/soak.py --seconds 60 --streams 64 [MODEL [flags of serve]]

Starts `pagoda serve`, lets every stream send one request after the other (chat and completions,
short and long, one choice or two), drops four in ten of them on the way, and then looks at what
is left: blocks in use, requests, open files, memory, and the CPU time of a server without work.
"""

import argparse
import asyncio
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from pagoda.base.machine import anonymous_bytes, cpu_seconds
from pagoda.base.units import format_bytes
from pagoda.bench.serverprocess import ServerProcess
from pagoda.bench.sse import ServerError, events

WORDS = ("the", "old", "stone", "river", "seven", "floors", "bell", "wind", "keeper", "at", "dawn")
SHARE_DROPPED, SHARE_DROPPED_UNREAD = 0.3, 0.1
# An idle server may take so much of one core.
IDLE_SHARE = 0.02
# What a process may hold open at the end beyond the start: sockets that are closing.
SPARE_FILES = 4
SETTLE_SECONDS = 10.0


@dataclass
class Tally:
    requests: int = 0
    completed: int = 0
    disconnects: int = 0
    tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)


@dataclass
class Pool:
    """What /metrics says about the engine."""

    total: int
    used: int
    running: int
    waiting: int

    @property
    def is_idle(self) -> bool:
        return not (self.used or self.running or self.waiting)


async def soak(
    url: str, model: str, *, seconds: float, streams: int, seed: int = 0, longest: int = 48
) -> Tally:
    """Keep `streams` requests of at most `longest` new tokens under way for `seconds`, then let
    the last ones end."""
    tally = Tally()
    deadline = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=streams)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits, verify=False) as http:

        async def stream(number: int) -> None:
            chance = random.Random(f"{seed}/{number}")
            while time.monotonic() < deadline:
                tally.requests += 1
                try:
                    path, body = random_request(model, chance, longest)
                    await one_request(http, path, body, chance, tally)
                except (ServerError, httpx.HTTPError, LookupError, AssertionError) as error:
                    tally.errors[f"{type(error).__name__}: {error}"] += 1

        await asyncio.gather(*(stream(number) for number in range(streams)))
    return tally


async def one_request(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], chance: random.Random, tally: Tally
) -> None:
    fate = chance.random()
    leave_after = chance.randint(1, body["max_tokens"]) if fate < SHARE_DROPPED else 0
    if fate > 1 - SHARE_DROPPED_UNREAD:
        await drop_unread(http, path, body, chance)
        tally.disconnects += 1
        return
    finished: set[int] = set()
    usage: dict[str, Any] = {}
    num_events = 0
    async with http.stream("POST", path, json=body) as reply:
        async for event in events(reply):
            num_events += 1
            if leave_after and num_events >= leave_after:
                tally.disconnects += 1
                return
            usage = event.get("usage") or usage
            finished |= {c["index"] for c in event["choices"] if c["finish_reason"]}
    assert finished == set(range(body["n"])), f"choices {finished} of {body['n']} finished"
    tokens = usage["completion_tokens"]
    assert 0 < tokens <= body["n"] * body["max_tokens"], f"{tokens} tokens"
    tally.completed += 1
    tally.tokens += tokens


async def drop_unread(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], chance: random.Random
) -> None:
    """Leave before the reply begins, or at any moment of it."""
    task = asyncio.create_task(http.post(path, json=body))
    await asyncio.sleep(chance.random() * 0.2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def random_request(model: str, chance: random.Random, longest: int) -> tuple[str, dict[str, Any]]:
    text = " ".join(chance.choices(WORDS, k=chance.choice((4, 20, 200))))
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": chance.randint(1, longest),
        "n": chance.choice((1, 1, 1, 2)),
        "temperature": chance.choice((0, 0.8)),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if chance.random() < 0.5:
        return "/v1/completions", {**body, "prompt": text}
    return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": text}]}


def read_pool(url: str) -> Pool:
    text = httpx.get(f"{url}/metrics", timeout=30).text

    def value(name: str) -> float:
        found = re.search(rf"^vllm:{name}{{.*}} (\S+)$", text, re.MULTILINE)
        assert found, f"/metrics has no {name}"
        return float(found[1])

    blocks = re.search(r'num_gpu_blocks="(\d+)"', text)
    assert blocks, "/metrics has no num_gpu_blocks"
    total = int(blocks[1]) - 1  # block 0 is never handed out
    return Pool(
        total,
        round(value("kv_cache_usage_perc") * total),
        int(value("num_requests_running")),
        int(value("num_requests_waiting")),
    )


def settled_pool(url: str) -> Pool:
    """The pool once nothing runs, or as it is after ten seconds."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while not (pool := read_pool(url)).is_idle and time.monotonic() < deadline:
        time.sleep(0.05)
    return pool


def process_tree(pid: int) -> list[int]:
    """`pid` and its children."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return [pid, *(child for child, parent in parents.items() if parent == pid)]


def idle_share(pids: list[int], seconds: float) -> float:
    """The processes' share of one core while nobody asks them anything."""
    begun, spent = time.monotonic(), sum(map(cpu_seconds, pids))
    time.sleep(seconds)
    return (sum(map(cpu_seconds, pids)) - spent) / (time.monotonic() - begun)


def open_files(pids: list[int]) -> int:
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--idle-seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("words", metavar="MODEL [flags]", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    quiet = ["--disable-uvicorn-access-log", "--disable-log-stats"]
    with ServerProcess([*args.words, "--port", "0", *quiet]) as server:
        server.wait_ready()
        problems = run(server, args)
        if server.stop() != 0:
            problems.append(f"the server ended with exit status {server.process.returncode}")
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


def run(server: ServerProcess, args: argparse.Namespace) -> list[str]:
    """Load it, print the table, and say what is wrong."""
    pids = process_tree(server.process.pid)
    # A first round opens what stays open (the client's pool of connections is closed behind it).
    asyncio.run(soak(server.url, server.name, seconds=1, streams=args.streams, seed=-1))
    settled_pool(server.url)
    files, memory = open_files(pids), sum(map(anonymous_bytes, pids))
    tally = asyncio.run(
        soak(
            server.url, server.name,
            seconds=args.seconds, streams=args.streams, seed=args.seed,
        )
    )  # fmt: skip
    pool = settled_pool(server.url)
    idle = idle_share(pids, args.idle_seconds)
    files_after, memory_after = open_files(pids), sum(map(anonymous_bytes, pids))
    for name, value in (
        ("requests", tally.requests),
        ("completed", tally.completed),
        ("disconnects", tally.disconnects),
        ("errors", tally.errors.total()),
        ("tokens of completed requests", tally.tokens),
        ("blocks free", f"{pool.total - pool.used} of {pool.total}"),
        ("requests left", pool.running + pool.waiting),
        ("open files", f"{files} -> {files_after}"),
        ("anonymous memory", f"{format_bytes(memory)} -> {format_bytes(memory_after)}"),
        (f"idle CPU over {args.idle_seconds:g} s", f"{idle:.2%} of a core"),
    ):
        print(f"{name:<30}{value}")
    problems = [f"{count} times {error}" for error, count in tally.errors.items()]
    if not pool.is_idle:
        problems.append(f"leaked: {pool}")
    if files_after > files + SPARE_FILES:
        problems.append(f"{files_after - files} more open files than before")
    if idle > IDLE_SHARE:
        problems.append(f"an idle server takes {idle:.2%} of a core; the limit is {IDLE_SHARE:.0%}")
    if process_tree(server.process.pid) != pids:
        problems.append("the engine is another process than at the start: it died")
    return problems


if __name__ == "__main__":
    sys.exit(main())
