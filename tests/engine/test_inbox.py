"""What a reader of requests' deltas sees, however late it looks."""

import pytest

from pagoda.base.errors import EngineDeadError
from pagoda.core.messages import RequestDelta, TokenLogprobs
from pagoda.engine.processes.inbox import Inbox


def delta(*tokens: int, req_id: str = "r", **fields) -> RequestDelta:
    logprobs = [TokenLogprobs(token, -1.0, 1, [], []) for token in tokens]
    return RequestDelta(req_id=req_id, token_ids=list(tokens), logprobs=logprobs, **fields)


async def test_a_late_reader_gets_all_in_one():
    inbox = Inbox()
    inbox.put(delta(1, num_cached_tokens=5, queue_seconds=0.5))
    inbox.put(delta(2))
    inbox.put(delta(3, finish_reason="stop", stop_reason=3, num_preemptions=2))
    expected = delta(
        1, 2, 3, num_cached_tokens=5, queue_seconds=0.5, finish_reason="stop", stop_reason=3,
        num_preemptions=2,
    )  # fmt: skip
    assert inbox.take() == [expected]


async def test_what_came_of_guesses_so_far_is_not_lost():
    """Deltas of plain steps do not repeat it."""
    inbox = Inbox()
    inbox.put(delta(1, 2, num_draft_tokens=3, num_accepted_tokens=1))
    inbox.put(delta(3, 4, 5, num_draft_tokens=7, num_accepted_tokens=3))
    inbox.put(delta(6))
    expected = delta(1, 2, 3, 4, 5, 6, num_draft_tokens=7, num_accepted_tokens=3)
    assert inbox.take() == [expected]


async def test_a_waiting_reader_gets_each_delta_once():
    inbox = Inbox()
    for token in range(3):
        arrival = inbox.arrival()
        assert not arrival.done()
        inbox.put(delta(token))
        await arrival
        assert inbox.take() == [delta(token)]
    assert inbox.take() == []


async def test_who_comes_late_need_not_wait():
    inbox = Inbox()
    inbox.put(delta(1))
    assert inbox.arrival().done()


async def test_a_reader_that_gave_up_waiting_comes_back():
    inbox = Inbox()
    inbox.arrival().cancel()
    inbox.put(delta(1))
    assert inbox.take() == [delta(1)]


async def test_what_came_before_the_end_of_the_engine_is_delivered():
    inbox = Inbox()
    inbox.put(delta(1))
    inbox.end("it was killed")
    assert inbox.take() == [delta(1)]
    with pytest.raises(EngineDeadError, match="it was killed"):
        inbox.take()


async def test_the_end_wakes_a_waiting_reader():
    inbox = Inbox()
    arrival = inbox.arrival()
    inbox.end("it was killed")
    assert arrival.done()
    with pytest.raises(EngineDeadError, match="it was killed"):
        inbox.take()


async def test_requests_are_kept_apart():
    inbox = Inbox()
    for token in range(4):
        inbox.put(delta(token, req_id="even" if token % 2 == 0 else "odd"))
    assert inbox.take() == [delta(0, 2, req_id="even"), delta(1, 3, req_id="odd")]
