"""64 clients, some of which leave on the way: each gets its answer, and nothing stays behind."""

import asyncio
from types import SimpleNamespace

from tools.soak import counters, gates, processes
from tools.soak.cases import rude, texts
from tools.soak.gates import Asked
from tools.soak.load import Load

SECONDS, CLIENTS = 2, 64
CASES = ("chat, logprobs", "completion, logprobs", "completion, two prompts, n=2", "tokenize")


async def test_clients_that_leave(server):
    pids = [server.process.pid, *processes.children(server.process.pid)]
    assert len(pids) == 3, "the server, its engine, and whom its workers come from"
    before = processes.held(pids[0]).handles["open files"]
    house = SimpleNamespace(server=server, asked=Asked())
    cases = [case for case in texts(server.name) if case.name in CASES]
    load = Load(house, cases, rude(server.name, server.name), deadline=60)
    await load.learn()
    clients = [asyncio.create_task(load.work(str(number))) for number in range(CLIENTS)]
    load.open.set()
    await asyncio.sleep(SECONDS)
    load.over = True
    await asyncio.gather(*clients)
    assert not load.faults.words
    assert load.outcomes["complete"] > len(cases) and load.outcomes["left"]
    async with load.quiet():
        async with asyncio.timeout(10):
            while counters.busy(values := counters.read(await load.text_of("/metrics"))):
                await asyncio.sleep(0.05)
        assert gates.metrics_faults(values, house.asked) == []
    await load.close()
    after = processes.held(pids[0]).handles["open files"]
    assert gates.grown("open files", "server", [before, after]).passed
    assert [server.process.pid, *processes.children(server.process.pid)] == pids
    # CPU time, not wall time: a busy machine does not make an idle server busier.
    assert processes.idle_share(pids, 4) < gates.IDLE_SHARE
