"""Work that is done aside: by processes with bounds, which may be killed at any time."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagoda.base.errors import EngineDeadError, RequestError
from pagoda.config.engine import ModelConfig
from pagoda.core.structured import StructuredOutputsParams
from pagoda.engine.aside.jobs import (
    BOUNDS,
    Bounds,
    Constrain,
    Decode,
    Encode,
    ReadPdf,
    RenderChat,
    perform,
)
from pagoda.engine.aside.workers import Workers, process_id, start_workers
from pagoda.engine.served.text_side import load_text_side
from pagoda.text.pdf import PdfText
from tests.engine.careless_zygote import SEES
from tests.server.fakes import FakeTextSide
from tests.server.seeing import text_side, url
from tests.server.test_videos import data_url, gif
from tests.unit.text.pdfs import pdf

MIB = 1 << 20
CARELESS = "tests.engine.careless_zygote"
TREE = "{% macro a(n) %}{% if n>0 %}{{ a(n-1) }}{{ a(n-1) }}{% endif %}{% endmacro %}{{ a(60) }}"
ATTACKS = {
    "macro": TREE,
    "loops": "{% for a in [0]*30000 %}{% for b in [0]*30000 %}{% endfor %}{% endfor %}",
    "plus": "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}"
    "{% endfor %}",
    "tilde": "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}"
    "{% endfor %}",
    "lipsum": "{{ lipsum(n=10**8)|length }}",
    "slice": "{{ [1]|slice(10**9)|list|length }}",
    "center": "{{ 'x'|center(10**10)|length }}",
    "format": "{{ '{:>9999999999}'.format('x')|length }}",
    "zfill": "{{ 'x'.zfill(10**10)|length }}",
    "expandtabs": "{{ '\\t'.expandtabs(2**31 - 1)|length }}",
    "indent": "{{ 'x'|indent(10**10, true)|length }}",
    "tojson": "{{ {'a': {'b': 1}}|tojson(indent=10**9)|length }}",
    "batch": "{{ [1]|batch(10**10, 0)|list|length }}",
    "replace": "{{ ('x'*10**6).replace('x', 'y'*10**5)|length }}",
}
TEMPLATE = (
    "{% if attack is not defined %}{{ messages[0].content }}"
    + "".join("{% elif attack == '" + n + "' %}" + text for n, text in ATTACKS.items())
    + "{% endif %}"
)
PATIENT = {**BOUNDS, RenderChat: Bounds(30, 256 * MIB)}
HASTY = {**BOUNDS, RenderChat: Bounds(0.5, 256 * MIB)}


def chat(content: str = "hello", **variables: Any) -> RenderChat:
    message = {"role": "user", "content": content}
    return RenderChat([message], None, True, False, variables, False)


@pytest.fixture(autouse=True)
def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.fixture
def model(smollm2_gguf: Path) -> ModelConfig:
    return ModelConfig(model=str(smollm2_gguf), chat_template=TEMPLATE)


@contextlib.asynccontextmanager
async def pool(model: ModelConfig, bounds: Any = PATIENT, size: int = 2) -> AsyncIterator[Workers]:
    before = set(os.listdir("/proc/self/fd"))
    workers = Workers(model, bounds=bounds, size=size, module=CARELESS).begin()
    pids: list[int] = []
    try:
        await workers.encode(Encode("warm"))
        await until(lambda: len(workers.pids) == size + 1 and not at_work(workers))
        yield workers
        pids = workers.pids
    finally:
        await workers.close()
        await until(lambda: not any(map(alive, pids)))
    assert set(os.listdir("/proc/self/fd")) <= before, "descriptors are left"


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


def at_work(workers: Workers) -> list[int]:
    """Process ids of the workers that have a job."""
    busy = workers._all - set(workers._idle)
    return [pid for worker in busy if (pid := process_id(worker)) is not None]


def test_jobs_give_what_the_text_side_gives(model: ModelConfig) -> None:
    side = load_text_side(model)
    long = "words and words " * 2000

    async def run() -> None:
        async with pool(model) as workers:
            short = await workers.render(chat("hi"))
            assert (short.text, short.ids) == ("hi", side.tokenizer.encode("hi"))
            assert (await workers.render(chat(long))).ids is None
            assert await workers.encode(Encode(long)) == side.tokenizer.encode(long)
            schema = {"type": "integer", "maximum": 10**30}
            wanted = StructuredOutputsParams(json=schema)
            assert str(10**30) in ((await workers.constrain(Constrain(wanted))).grammar or "")
            with pytest.raises(RequestError, match="not valid Unicode"):
                await workers.encode(Encode("\ud800"))

    asyncio.run(run())


def test_every_attack_of_a_template_ends_and_a_bystander_is_served(model: ModelConfig) -> None:
    async def run() -> None:
        async with pool(model, HASTY, size=3) as workers:
            for name in ATTACKS:
                attack = asyncio.create_task(workers.run(chat(attack=name)))
                assert (await workers.render(chat("bystander"))).text == "bystander"
                with pytest.raises(RequestError, match="within 0.5 s|256 MiB|template"):
                    await attack

    asyncio.run(run())


def test_a_bystander_overtakes_a_template_that_never_ends(model: ModelConfig) -> None:
    async def run() -> None:
        async with pool(model) as workers:
            attack = asyncio.create_task(workers.run(chat(attack="macro")))
            await until(lambda: bool(at_work(workers)))
            (pid,) = at_work(workers)
            for _ in range(5):
                assert (await workers.render(chat("bystander"))).text == "bystander"
            assert not attack.done()
            # Its client leaves: so does the worker, and another takes its place.
            attack.cancel()
            await until(lambda: not alive(pid) and len(workers.pids) == 3)

    asyncio.run(run())


def test_memory_has_a_bound(model: ModelConfig) -> None:
    async def run() -> None:
        async with pool(model) as workers:
            with pytest.raises(RequestError, match="more than 256 MiB of memory"):
                await workers.run(chat(attack="zfill"))
            assert (await workers.render(chat("next"))).text == "next"

    asyncio.run(run())


def test_a_text_that_takes_too_long_ends_with_its_worker(model: ModelConfig) -> None:
    bounds = {**PATIENT, Encode: Bounds(0.3, 2048 * MIB, slow=True)}

    async def run() -> None:
        async with pool(model, bounds) as workers:
            long = asyncio.create_task(workers.encode(Encode(" " * 3_000_000)))
            assert (await workers.render(chat("bystander"))).text == "bystander"
            with pytest.raises(RequestError, match="Tokenizing the text did not finish within 0.3"):
                await long

    asyncio.run(run())


def test_a_large_schema_is_compiled_beside_others(model: ModelConfig) -> None:
    properties = {f"name{i}": {"type": "string", "maxLength": i} for i in range(5000)}
    wanted = StructuredOutputsParams(json={"type": "object", "properties": properties})
    bounds = {**PATIENT, Constrain: Bounds(0.1, 512 * MIB, slow=True)}

    async def run() -> None:
        async with pool(model, bounds) as workers:
            compiled = asyncio.create_task(workers.constrain(Constrain(wanted)))
            assert (await workers.render(chat("bystander"))).text == "bystander"
            with pytest.raises(RequestError, match="did not finish within 0.1 s"):
                await compiled

    asyncio.run(run())


def test_media_come_back_as_this_process_would_make_them() -> None:
    """Pixels come in shared memory, of which nothing is left behind."""
    side = FakeTextSide(**text_side())
    image, video = (
        Decode(kind, {}, {"image": 10**6, "video": 10**6}, is_url=True)
        for kind in ("image", "video")
    )
    given = [
        (image, url(64, 48).encode()),
        (image, url(2000, 1500).encode()),
        (video, data_url(gif()).encode()),
    ]
    damaged = (image, b"data:image/png;base64,AAAA")

    async def compare(workers: Workers) -> None:
        *seen, wrong = await asyncio.gather(
            *(workers.run(*job) for job in (*given, damaged)), return_exceptions=True
        )
        assert isinstance(wrong, RequestError)
        for job, medium in zip(given, seen, strict=True):
            here = perform(side, *job)
            assert (medium.text, len(medium.pieces)) == (here.text, len(here.pieces))
            for piece, expected in zip(medium.pieces, here.pieces, strict=True):
                assert np.array_equal(piece.values, expected.values)
                assert (piece.num_tokens, piece.grid) == (expected.num_tokens, expected.grid)
                assert piece.content_hash == expected.content_hash

    async def run() -> None:
        async with pool(ModelConfig(model=SEES)) as workers:
            await compare(workers)

    asyncio.run(run())


def test_a_stopped_worker_is_killed_at_its_deadline(model: ModelConfig) -> None:
    async def run() -> None:
        async with pool(model, HASTY) as workers:
            stopped = workers.pids[1:]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            jobs = [asyncio.create_task(workers.render(chat(str(i)))) for i in range(4)]
            done = await asyncio.gather(*jobs, return_exceptions=True)
            assert [str(e) for e in done[:2]] == [
                "The chat template did not finish within 0.5 s. Send less at once."
            ] * 2
            assert [result.text for result in done[2:]] == ["2", "3"]
            await until(lambda: not any(map(alive, stopped)))

    asyncio.run(run())


def test_killed_workers_and_zygotes_are_replaced(model: ModelConfig) -> None:
    async def run() -> None:
        async with pool(model) as workers:
            for pid in workers.pids:  # what a service that ends sends to all its processes
                os.kill(pid, signal.SIGTERM)
            assert (await workers.render(chat("still"))).text == "still"
            attack = asyncio.create_task(workers.run(chat(attack="macro")))
            await until(lambda: bool(at_work(workers)))
            os.kill(at_work(workers)[0], signal.SIGKILL)
            with pytest.raises(RequestError, match="ended the process"):
                await attack
            await until(lambda: len(workers.pids) == 3 and not at_work(workers))
            attack = asyncio.create_task(workers.run(chat(attack="macro")))
            await until(lambda: bool(at_work(workers)))
            first = workers.pids
            os.kill(first[0], signal.SIGKILL)
            with pytest.raises(EngineDeadError, match="Try again"):
                await attack
            await until(lambda: not any(map(alive, first)))
            assert (await workers.render(chat("again"))).text == "again"

    asyncio.run(run())


def test_many_jobs_at_once(model: ModelConfig) -> None:
    wanted = StructuredOutputsParams(json={"type": "object"})
    long = "words " * 3000

    async def run() -> None:
        async with pool(model, HASTY) as workers:
            jobs = [
                (chat(str(i)), Encode(long), Constrain(wanted), chat(attack="center"))[i % 4]
                for i in range(50)
            ]
            done = await asyncio.gather(*map(workers.run, jobs), return_exceptions=True)
            assert [isinstance(result, RequestError) for result in done] == [
                i % 4 == 3 for i in range(50)
            ]
            assert [done[i].text for i in range(0, 50, 4)] == [str(i) for i in range(0, 50, 4)]

    asyncio.run(run())


def test_a_system_without_such_processes_has_none(monkeypatch, caplog) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    assert start_workers(ModelConfig()) is None
    assert "without bounds" in caplog.text


def test_what_cannot_start_is_unavailable_and_tried_again(tmp_path: Path) -> None:
    async def run() -> None:
        workers = Workers(ModelConfig(model=str(tmp_path / "nothing")))
        for _ in range(2):
            with pytest.raises(EngineDeadError, match="could not start"):
                await workers.run(chat())
        await workers.close()

    asyncio.run(run())


_PARENT = """
import asyncio, json, sys
from tests.engine.test_aside import *
async def run(model):
    workers = Workers(model, bounds=PATIENT, size=2, module=CARELESS).begin()
    await workers.encode(Encode("warm"))
    attack = asyncio.create_task(workers.run(chat(attack="macro")))
    await until(lambda: bool(at_work(workers)))
    print(json.dumps(workers.pids), flush=True)
    await attack
asyncio.run(run(ModelConfig(model=sys.argv[1], chat_template=TEMPLATE)))
"""


@pytest.fixture
def parent(model: ModelConfig) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", _PARENT, model.model]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_nothing_outlives_a_parent_that_was_killed(parent: "subprocess.Popen[str]") -> None:
    assert parent.stdout is not None
    pids = json.loads(parent.stdout.readline())
    assert len(pids) >= 2 and all(map(alive, pids))
    parent.kill()
    asyncio.run(until(lambda: not any(map(alive, pids))))


def test_a_pdf_is_read_within_bounds(model: ModelConfig) -> None:
    endless = pdf(b"BT /F1 9 Tf " + b"(word) Tj 0 -1 Td " * 400_000 + b"ET")
    bounds = {**PATIENT, ReadPdf: Bounds(20, 1024 * MIB, slow=True)}
    hasty = {**PATIENT, ReadPdf: Bounds(0.3, 1024 * MIB, slow=True)}

    async def run() -> None:
        async with pool(model, bounds) as workers:
            assert await workers.read_pdf(pdf("one", "two")) == PdfText("one\n\ntwo", 2, 2)
            with pytest.raises(RequestError, match="is no PDF"):
                await workers.read_pdf(b"text")
        async with pool(model, hasty) as workers:
            reading = asyncio.create_task(workers.read_pdf(endless))
            assert (await workers.render(chat("bystander"))).text == "bystander"
            with pytest.raises(RequestError, match="Reading the PDF did not finish within 0.3 s"):
                await reading
            assert (await workers.render(chat("next"))).text == "next"

    asyncio.run(run())
