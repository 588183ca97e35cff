"""The client against a real engine process that serves a tiny model with random weights."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
from contextlib import aclosing
from dataclasses import replace

import msgspec
import pytest

from pagoda.base.errors import EngineDeadError, EngineKilledError, QueueFullError, RequestError
from pagoda.config.engine import ParallelConfig, SchedulerConfig
from pagoda.core.messages import AddRequest
from pagoda.core.sampling import SamplingParams
from pagoda.engine.processes.client import EngineClient
from pagoda.engine.processes.supervision import SupervisionLimits
from tests.engine.conftest import with_model

# Generous: the machine that runs the tests may be busy. Nothing waits so long when all is well.
PATIENCE = 60


def request(req_id, prompt=(1, 2, 3), **sampling) -> AddRequest:
    values = {"max_tokens": 20, "temperature": 0.0, "ignore_eos": True, **sampling}
    return AddRequest(
        req_id=req_id, prompt_token_ids=list(prompt), sampling=SamplingParams(**values)
    )


async def collect(client, req):
    return [delta async for delta in client.generate(req)]


def tokens_of(deltas):
    return [token for delta in deltas for token in delta.token_ids]


async def wait_until(condition):
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


def is_gone(pid: int) -> bool:
    """No such process, or one that ended and waits to be reaped."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
async def client(tiny_config):
    client = EngineClient.launch(tiny_config)
    try:
        await client.wait_ready(PATIENCE)
        yield client
    finally:
        await client.shutdown()


async def test_a_life_of_requests(client):
    """Streams, aborts, refusals, utilities and random disconnects: one engine serves them all."""
    first = await collect(client, request("first"))
    assert len(tokens_of(first)) == 20
    assert [d.finish_reason for d in first] == [None] * (len(first) - 1) + ["length"]
    await same_answer_beside_others(client, tokens_of(first))
    await closing_a_stream_aborts(client)
    await refusals(client)
    await disconnects(client)


async def same_answer_beside_others(client, expected):
    others = [collect(client, request(f"other{i}", [5, i], temperature=1.0)) for i in range(5)]
    again, *rest = await asyncio.gather(collect(client, request("again")), *others)
    assert tokens_of(again) == expected
    assert all(len(tokens_of(deltas)) == 20 for deltas in rest)


async def closing_a_stream_aborts(client):
    async with aclosing(client.generate(request("closed", max_tokens=400))) as deltas:
        async for _ in deltas:
            break
        assert (await client.call("stats"))["num_running"] == 1
    assert (await client.call("stats")).get("num_running", 0) == 0
    client.drop(["closed", "no such request"])  # harmless


async def refusals(client):
    deltas = await collect(client, request("long", [1] * 513))
    assert deltas[0].finish_reason == "error" and "512" in deltas[0].error
    bad = request("bad")
    bad.sampling.temperature = -1.0  # past the check at construction
    deltas = await collect(client, bad)
    assert deltas[0].finish_reason == "error" and "temperature" in deltas[0].error
    with pytest.raises(RequestError, match="no method 'fly'"):
        await client.call("fly")


async def disconnects(client):
    """64 streams at once; half of them break off somewhere."""
    chance = random.Random(0)

    async def one(index):
        prompt = [chance.randrange(250) for _ in range(chance.randrange(1, 40))]
        leave_after = chance.choice([None, 0, 1, 7])
        seen = 0
        async with aclosing(client.generate(request(f"many{index}", prompt))) as deltas:
            if leave_after == 0:
                return
            async for delta in deltas:
                assert delta.finish_reason != "error"
                seen += len(delta.token_ids)
                if leave_after is not None and seen >= leave_after:
                    return
        assert seen == 20

    await asyncio.gather(*(one(index) for index in range(64)))
    stats = await client.call("stats")
    assert stats["blocks_free"] == stats["blocks_total"] == 128
    await client.call("check_integrity")


async def test_a_killed_engine_is_restarted_and_runs_what_had_not_begun(tiny_config):
    client = EngineClient.launch(tiny_config)
    try:
        ready = await client.wait_ready(PATIENCE)
        expected = tokens_of(await collect(client, request("same", temperature=1.0)))
        stream = client.generate(request("victim", max_tokens=400))
        await anext(stream)
        first_pid = client.pid
        os.kill(first_pid, signal.SIGSTOP)
        waiting = asyncio.create_task(collect(client, request("same", temperature=1.0)))
        await wait_until(lambda: client.num_running == 2)
        os.kill(first_pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            async for _ in stream:
                pass
        assert client.state == "starting" and "SIGKILL" in client.cause
        with pytest.raises(EngineDeadError, match=r"starting \(phase: .*\) after it died.*SIGKILL"):
            await anext(client.generate(request("early")))
        again = await client.wait_ready(PATIENCE)
        assert (again.kv_tokens, client.cause, client.restarts) == (ready.kv_tokens, None, 1)
        assert tokens_of(await waiting) == expected, "the noise is that of its id"
        assert is_gone(first_pid)
        os.kill(client.pid, signal.SIGKILL)
        await wait_until(lambda: client.restarts == 2)
        await client.wait_ready(PATIENCE)
        assert len(tokens_of(await collect(client, request("later")))) == 20
    finally:
        await client.shutdown()


async def test_an_engine_without_restarts_stays_dead(tiny_config):
    client = EngineClient.launch(tiny_config, supervision=SupervisionLimits(max_restarts=0))
    try:
        await client.wait_ready(PATIENCE)
        os.kill(client.pid, signal.SIGKILL)
        await client.wait_end()
        assert client.state == "dead"
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await client.call("stats")
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await client.wait_ready(PATIENCE)
    finally:
        await client.shutdown()


async def test_shutdown_is_quick_and_leaves_nothing(tiny_config):
    client = EngineClient.launch(tiny_config)
    await client.wait_ready(PATIENCE)
    folder, pid = client._child.folder, client.pid
    assert folder.stat().st_mode & 0o777 == 0o700
    stream = client.generate(request("running", max_tokens=500))
    await anext(stream)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await client.shutdown()
    assert loop.time() - begun < 2.0
    with pytest.raises(EngineDeadError, match="stopped"):
        async for _ in stream:
            pass
    assert client.state == "stopped"
    assert is_gone(pid) and not folder.exists()
    await client.shutdown()  # again is harmless


async def test_draining_lets_running_requests_finish(tiny_config):
    client = EngineClient.launch(tiny_config)
    await client.wait_ready(PATIENCE)
    task = asyncio.create_task(collect(client, request("running", max_tokens=60)))
    while client.stats.num_running == 0:
        await asyncio.sleep(0.001)
    await client.shutdown(drain_seconds=PATIENCE)
    assert len(tokens_of(await task)) == 60


async def test_sigterm_drains_and_stops_without_a_restart(tiny_config):
    client = EngineClient.launch(tiny_config)
    await client.wait_ready(PATIENCE)
    task = asyncio.create_task(collect(client, request("running", max_tokens=60)))
    while client.stats.num_running == 0:
        await asyncio.sleep(0.001)
    os.kill(client.pid, signal.SIGTERM)
    assert len(tokens_of(await task)) == 60
    await wait_until(lambda: client.state == "stopped")
    await client.shutdown()


@pytest.mark.parametrize("when", ["starting", "ready"])
def test_the_engine_goes_when_its_parent_is_killed(tiny_config, when, tmp_path):
    program = f"""
        import asyncio, sys, msgspec
        from pagoda.config.engine import EngineConfig
        from pagoda.engine.processes.client import EngineClient

        async def main():
            config = msgspec.json.decode(sys.stdin.readline(), type=EngineConfig)
            client = EngineClient.launch(config)
            if {when == "ready"}:
                await client.wait_ready({PATIENCE})
            print(client.pid, client._child.folder, flush=True)
            await asyncio.sleep({PATIENCE})

        asyncio.run(main())
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    parent.stdin.write(msgspec.json.encode(tiny_config) + b"\n")
    parent.stdin.flush()
    pid, folder = parent.stdout.readline().decode().split()
    parent.kill()
    parent.communicate()
    asyncio.run(wait_until(lambda: is_gone(int(pid)) and not os.path.exists(folder)))


async def start_fails(config, **options):
    client = EngineClient.launch(config, **options)
    try:
        with pytest.raises(EngineDeadError) as caught:
            await client.wait_ready(PATIENCE)
        assert client.state == "dead" and client.restarts == 0
        assert client.cause == str(caught.value)
        assert type(caught.value) is EngineDeadError  # it said so itself
        return client.cause
    finally:
        await client.shutdown()


async def test_a_start_that_is_killed_is_an_error_of_its_own(tiny_config):
    client = EngineClient.launch(tiny_config)
    try:
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineKilledError, match="SIGKILL"):
            await client.wait_ready(PATIENCE)
    finally:
        await client.shutdown()


async def test_a_start_that_fails_says_why(tiny_config, tmp_path, capfd):
    cause = await start_fails(with_model(tiny_config, model=str(tmp_path / "nothing.gguf")))
    assert "nothing.gguf" in cause and "Traceback" not in cause
    assert "nothing.gguf" not in capfd.readouterr().err, "whoever waited tells it"
    cause = await start_fails(replace(tiny_config, parallel=ParallelConfig(1, 99)))
    assert "--pipeline-parallel-size 99 is more than the model's" in cause


async def test_startup_timeout_names_the_phase(tiny_config):
    cause = await start_fails(tiny_config, startup_timeout=0.01)
    assert "--startup-timeout" in cause and "(phase: " in cause


async def test_a_full_queue_refuses_and_empties(tiny_config):
    limits = SchedulerConfig(max_num_seqs=1, max_num_queued_reqs=1)
    client = EngineClient.launch(replace(tiny_config, scheduler=limits))
    try:
        assert (await client.wait_ready(PATIENCE)).max_num_seqs == 1
        for round_number in range(2):
            first, second, third = (request(f"{round_number}-{i}") for i in range(3))
            inbox = client.submit([first])
            queued = client.submit([second])
            with pytest.raises(QueueFullError, match="--max-num-queued-reqs allows 1"):
                client.submit([third])
            for box in (inbox, queued):
                reasons = []
                while not any(reasons):
                    await box.arrival()
                    reasons += [delta.finish_reason for delta in box.take()]
        client.submit([request("dropped", max_tokens=400), request("too")])
        client.drop(["dropped", "too"])
        assert len(tokens_of(await collect(client, request("last")))) == 20
        assert client.queue.rejections["max_num_queued_reqs"] == 2
    finally:
        await client.shutdown()
