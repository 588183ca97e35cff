"""Who may wait for an engine, and who is sent away."""

import pytest

from pagoda.base.errors import QueueFullError
from pagoda.config.engine import SchedulerConfig
from pagoda.core.messages import AddRequest, EngineReady, EngineStats
from pagoda.engine.processes.queue_limit import QueueLimit

READY = EngineReady(
    max_model_len=100, vocab_size=100, num_blocks=10, block_size=16, kv_tokens=160, max_num_seqs=4
)


class Flight:
    """Requests on their way, as a client counts them."""

    def __init__(self, **limits: int):
        self.queue = QueueLimit(SchedulerConfig(**limits))
        self.stats = EngineStats()
        self.ids: list[str] = []

    def send(self, *lengths: int) -> None:
        requests = [
            AddRequest(req_id=f"{len(self.ids) + i}", prompt_token_ids=[1] * length)
            for i, length in enumerate(lengths)
        ]
        self.queue.admit(requests, len(self.ids), self.stats, READY)
        self.ids += [request.req_id for request in requests]

    def refuses(self, *lengths: int) -> bool:
        with pytest.raises(QueueFullError, match="Send the request again later"):
            self.send(*lengths)
        return True

    def hear_of(self, count: int) -> None:
        for req_id in self.ids[:count]:
            self.queue.forget(req_id)


def test_nothing_is_refused_without_a_limit():
    flight = Flight()
    assert not flight.queue.active
    for _ in range(50):
        flight.send(1000)


def test_free_rows_are_no_queue():
    flight = Flight(max_num_queued_reqs=0)
    for _ in range(4):
        flight.send(10)
    assert flight.refuses(10)


def test_requests_that_wait():
    flight = Flight(max_num_queued_reqs=2)
    flight.send(1, 1, 1, 1)
    flight.send(1, 1)
    assert flight.refuses(1)
    assert flight.queue.rejections == {"max_num_queued_reqs": 1, "max_num_queued_tokens": 0}


def test_all_or_none_of_several():
    flight = Flight(max_num_queued_reqs=2)
    flight.send(1, 1, 1, 1, 1)
    assert flight.refuses(1, 1)
    flight.send(1)


def test_tokens_that_wait():
    flight = Flight(max_num_queued_tokens=100)
    flight.send(1000, 1000, 1000, 1000)  # they run
    flight.send(60)
    assert flight.refuses(41)
    flight.send(40)
    assert flight.queue.rejections["max_num_queued_tokens"] == 1


def test_running_requests_hold_their_rows():
    flight = Flight(max_num_queued_reqs=0)
    flight.send(1, 1, 1, 1)
    flight.hear_of(4)
    assert flight.refuses(1)
    flight.ids.pop()  # one is done
    flight.send(1)


def test_an_engine_that_is_full_before_its_rows_are():
    """Two long requests fill the KV cache: the engine says that others wait."""
    flight = Flight(max_num_queued_reqs=1)
    flight.send(1, 1, 1)
    flight.hear_of(2)
    flight.stats = EngineStats(num_running=2, num_waiting=1)
    assert flight.refuses(1)
    flight.stats = EngineStats(num_running=3)
    flight.send(1)


def test_a_request_that_is_larger_than_the_limit_is_served_alone():
    flight = Flight(max_num_queued_reqs=1, max_num_queued_tokens=1)
    flight.send(*[50] * 20)
    assert flight.refuses(50)
