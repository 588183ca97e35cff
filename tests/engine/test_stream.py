"""What a reader of one request's deltas sees, however late it looks."""

import asyncio

import pytest

from pagoda.base.errors import EngineDeadError
from pagoda.core.messages import RequestDelta, TokenLogprobs
from pagoda.engine.client import _Stream


def delta(*tokens: int, **fields) -> RequestDelta:
    logprobs = [TokenLogprobs(token, -1.0, 1, [], []) for token in tokens]
    return RequestDelta(req_id="r", token_ids=list(tokens), logprobs=logprobs, **fields)


async def test_a_late_reader_gets_all_in_one():
    stream = _Stream(asyncio.get_running_loop())
    stream.put(delta(1, num_cached_tokens=5, queue_seconds=0.5))
    stream.put(delta(2))
    stream.put(delta(3, finish_reason="stop", stop_reason=3))
    expected = delta(
        1, 2, 3, num_cached_tokens=5, queue_seconds=0.5, finish_reason="stop", stop_reason=3
    )
    assert await stream.take() == expected


async def test_a_waiting_reader_gets_each_delta_once():
    stream = _Stream(asyncio.get_running_loop())
    for token in range(3):
        reader = asyncio.create_task(stream.take())
        await asyncio.sleep(0)
        stream.put(delta(token))
        assert await reader == delta(token)


async def test_what_came_before_the_end_of_the_engine_is_delivered():
    stream = _Stream(asyncio.get_running_loop())
    stream.put(delta(1))
    stream.end("it was killed")
    assert await stream.take() == delta(1)
    with pytest.raises(EngineDeadError, match="it was killed"):
        await stream.take()


async def test_the_end_wakes_a_waiting_reader():
    stream = _Stream(asyncio.get_running_loop())
    reader = asyncio.create_task(stream.take())
    await asyncio.sleep(0)
    stream.end("it was killed")
    with pytest.raises(EngineDeadError, match="it was killed"):
        await reader
