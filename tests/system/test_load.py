"""64 streams, four in ten of which leave on the way: no error, and nothing stays behind."""

import asyncio

from tools import soak


def test_streams_that_leave(server):
    pids = soak.process_tree(server.process.pid)
    assert len(pids) == 2
    files = soak.open_files(pids)
    tally = asyncio.run(soak.soak(server.url, server.name, seconds=2, streams=64, longest=12))
    assert not tally.errors
    assert tally.completed and tally.disconnects
    pool = soak.settled_pool(server.url)
    assert pool.is_idle, pool
    assert soak.open_files(pids) <= files + soak.SPARE_FILES
    assert soak.process_tree(server.process.pid) == pids
    # CPU time, not wall time: a busy machine does not make an idle server busier.
    assert soak.idle_share(pids, 4) < soak.IDLE_SHARE
