"""What is measured on which file, and how much of it."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.peers import processes, servers
from bench.peers.accuracy import divergences
from bench.peers.contenders import PAGODA, Contender
from bench.peers.environments import SetupError
from bench.peers.models import (
    BIG_FILES,
    TOWER_FILES,
    VECTOR_FILES,
    model_path,
    streamed_bytes,
)
from bench.peers.paths import ROOT
from bench.peers.results import Entry, Section
from bench.peers.rounds import Outcome, alternate
from bench.peers.servers import Server, ServerKind
from bench.peers.worker import Worker
from pagoda.base.machine import cpu_facts
from pagoda.base.units import format_bytes
from pagoda.kernels import cpu

_SPEEDS = ("decode", "prefill", "decode16")
_LONG = ("prefill4k", "depth")
SERVER_MEASURES = ("served", "startup", "memory")
MEASURES = (*_SPEEDS, *_LONG, "kl", "vectors", "pictures", *SERVER_MEASURES)
READ = "read"
"""The entry of the machine itself: a buffer of the weights' size, read by Pagoda's threads."""


@dataclass(frozen=True)
class Size:
    rounds: int = 5
    decode: int = 128
    prefill: int = 512
    long_prefill: int = 4096
    batch: tuple[int, int, int] = (16, 128, 128)
    """Requests, prompt tokens, new tokens."""
    depths: tuple[int, int] = (128, 4096)
    depth_tokens: int = 64
    texts: int = 20
    vectors: int = 256
    """Texts."""
    side: int = 1024
    """Pixels of a square picture's."""
    requests: int = 64
    concurrencies: tuple[int, ...] = (1, 4, 16, 64)

    def with_rounds(self, rounds: int) -> "Size":
        return replace(self, rounds=rounds)


FULL = Size()
QUICK = Size(
    rounds=1, decode=16, prefill=64, long_prefill=256, batch=(16, 32, 8), depths=(128, 512),
    depth_tokens=8, texts=1, vectors=16, side=256, requests=16,
)  # fmt: skip


def measures_of(file: str) -> tuple[str, ...]:
    """Contexts are a matter of attention and not of the file; random weights have no accuracy."""
    if file in VECTOR_FILES:
        return ("vectors",)
    if file in TOWER_FILES:
        return ("pictures",)
    if file in BIG_FILES:
        return _SPEEDS
    return (*_SPEEDS, *_LONG, "kl") if file == "q4_1" else (*_SPEEDS, "kl")


def measure_file(
    file: str, measures: Sequence[str], contenders: Sequence[Contender], size: Size, threads: int
) -> Iterator[Section]:
    """Start everyone who takes part in this file's rows, once, and measure in turns."""
    workers, failed = _start(file, contenders, threads)
    try:
        for measure in measures:
            print(f"{measure} {file}: {', '.join(workers)}", file=sys.stderr)
            section = _section(measure, file, threads)
            for name, outcome in _run(measure, file, workers, size, threads).items():
                about = workers[name].about if name in workers else {}
                section.entries[name] = _entry(outcome, **about)
            section.entries |= failed
            yield section
    finally:
        for worker in workers.values():
            worker.close()


def measure_servers(measure: str, kinds: Sequence[ServerKind], size: Size, threads: int) -> Section:
    """`served` with all servers up and all but one held still, the others one after another."""
    print(f"{measure}: {', '.join(kind.name for kind in kinds)}", file=sys.stderr)
    section = _section(measure, "", threads)
    if measure == "served":
        section.entries = _served(kinds, size, threads)
        return section
    for kind in kinds:
        entry = section.entries[kind.name] = Entry()
        # vLLM compiles for a minute or two at every start: once tells.
        rounds = size.rounds if measure == "startup" and kind.file != "hf" else 1
        try:
            for _ in range(rounds):
                entry.samples.append(_one_server(measure, kind, size, threads))
        except SetupError as error:
            entry.error = str(error)
    return section


def _one_server(measure: str, kind: ServerKind, size: Size, threads: int) -> dict[str, float]:
    if measure == "startup":
        return servers.measure_startup(kind, threads)
    return servers.measure_memory(kind, threads, size.requests)


def _served(kinds: Sequence[ServerKind], size: Size, threads: int) -> dict[str, Entry]:
    running: dict[str, Server] = {}
    entries = {kind.name: Entry() for kind in kinds}
    try:
        for kind in kinds:
            try:
                server = running[kind.name] = Server(kind, threads)
            except SetupError as error:
                entries[kind.name].error = str(error)
                continue
            entries[kind.name].flags = server.flags
            processes.hold(server.pid)
        for concurrency in size.concurrencies:
            outcomes = alternate(
                running,
                size.rounds,
                lambda _, server, turn, c=concurrency: server.load(
                    c, max(size.requests, 2 * c), turn
                ),
            )
            for name, outcome in outcomes.items():
                entries[name].error = entries[name].error or outcome.error
                entries[name].others += outcome.others
                entries[name].samples += [
                    {"concurrency": concurrency, **sample} for sample in outcome.samples
                ]
    finally:
        for server in running.values():
            server.close()
    return entries


def _start(
    file: str, contenders: Sequence[Contender], threads: int
) -> tuple[dict[str, Worker], dict[str, Entry]]:
    workers: dict[str, Worker] = {}
    failed: dict[str, Entry] = {}
    for contender in contenders:
        if file not in contender.files:
            continue
        try:
            worker = contender.start(file, threads)
        except SetupError as error:
            print(f"    {contender.name}: {error}", file=sys.stderr)
            failed[contender.name] = Entry(error=str(error))
            continue
        processes.hold(worker.pid)
        workers[contender.name] = worker
    return workers, failed


def _run(
    measure: str, file: str, workers: Mapping[str, Worker], size: Size, threads: int
) -> dict[str, Outcome]:
    path = model_path(file)
    if measure == "kl":
        # The others round weights in a way of their own, or have no logits of a whole text.
        able = {n: w for n, w in workers.items() if n not in ("vllm", "onnxruntime-genai")}
        return divergences(file, path, able, size.texts, threads)
    ask = _question(measure, size)
    entrants = dict(workers)
    if measure == "decode" and PAGODA in workers:
        entrants[READ] = workers[PAGODA]
    weights = streamed_bytes(path) if READ in entrants else 0

    def turn(name: str, worker: Worker, _: int) -> dict[str, Any]:
        if name == READ:
            answer = worker.ask("read", size=weights, passes=max(2, (1 << 30) // weights))
            return {"gb_s": answer["tokens"] / answer["seconds"] / 1e9}
        return ask(worker)

    return alternate(entrants, size.rounds, turn)


def _question(measure: str, size: Size) -> Callable[[Worker], dict[str, float]]:
    requests, prompt, tokens = size.batch
    return {
        "decode": lambda worker: _speed(worker.ask("decode", tokens=size.decode)),
        "prefill": lambda worker: _speed(worker.ask("prefill", tokens=size.prefill)),
        "prefill4k": lambda worker: _speed(worker.ask("prefill", tokens=size.long_prefill)),
        "decode16": lambda worker: _speed(
            worker.ask("batch_decode", requests=requests, prompt=prompt, tokens=tokens)
        ),
        "depth": lambda worker: _depth(worker, size),
        "vectors": lambda worker: _vectors(worker, paragraphs(size.vectors)),
        "pictures": lambda worker: _picture(worker, size.side),
    }[measure]


def paragraphs(count: int) -> list[str]:
    """Texts of 100 to 900 characters, from Pagoda's own documentation."""
    pages = [page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))]
    found = [" ".join(text.split()) for page in pages for text in page.split("\n\n")]
    return [text for text in found if 100 <= len(text) <= 900][:count]


def _vectors(worker: Worker, texts: list[str]) -> dict[str, float]:
    answer = worker.ask("vectors", texts=texts)
    return {"texts_s": len(texts) / answer["seconds"], "vector": answer["vector"]}


def _picture(worker: Worker, side: int) -> dict[str, float]:
    answer = worker.ask("picture", side=side)
    return {"pictures_min": 60 / answer["seconds"], "vector": answer["vector"]}


def _speed(answer: dict[str, float]) -> dict[str, float]:
    return {"tok_s": answer["tokens"] / answer["seconds"]}


def _depth(worker: Worker, size: Size) -> dict[str, float]:
    near, far = (
        worker.ask("depth", context=context, tokens=size.depth_tokens)["seconds"]
        * 1000
        / size.depth_tokens
        for context in size.depths
    )
    return {"near_ms": near, "far_ms": far, "added_ms": far - near}


def processor() -> str:
    """With the instruction set that the kernels use: speeds differ by both."""
    sets = cpu.instruction_sets()
    return f"{cpu_facts().name}, {sets[0] if sets else 'torch'}"


def _section(measure: str, file: str, threads: int) -> Section:
    path = model_path(file or "q4_1")
    weights = 0 if file in (*VECTOR_FILES, *TOWER_FILES) else streamed_bytes(path)
    facts = cpu_facts()
    machine = f"{processor()}, {facts.num_threads} cores, {format_bytes(facts.total_memory)}"
    return Section(
        measure, file, time.strftime("%Y-%m-%d"), machine, threads, {},
        streamed_bytes=weights, file_bytes=path.stat().st_size,
    )  # fmt: skip


def _entry(outcome: Outcome, version: str = "", flags: str = "") -> Entry:
    return Entry(outcome.samples, outcome.others, outcome.error, version, flags)
