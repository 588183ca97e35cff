"""What is left when requests cannot be sent: nothing of them, and everything of the others."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import zmq

from pagoda.base.errors import CapacityError
from pagoda.config.engine import EngineConfig, SchedulerConfig
from pagoda.core.messages import (
    AbortRequests,
    AddRequest,
    Deltas,
    EngineReady,
    EngineStats,
    MediaItem,
    RequestDelta,
    StepOutputs,
)
from pagoda.engine.processes.child import LaunchOptions
from pagoda.engine.processes.client import EngineClient

READY = EngineReady(
    max_model_len=64, vocab_size=8, num_blocks=4, block_size=4, kv_tokens=12, max_num_seqs=1
)  # fmt: skip
PIXELS = {name: np.zeros((1, 2, 2, 3), np.uint8) for name in ("cat", "dog", "cow")}


class FakeChild:
    """Takes messages, until it is told to fail."""

    def __init__(self, folder):
        self.folder = folder
        self.end = self
        self.sent: list[object] = []
        self.fails_at: int | None = None
        """Of the messages to come, the first that cannot be sent; none behind it can."""
        self.error: Exception = zmq.ZMQError(zmq.ENOTSOCK)

    def send(self, message):
        if self.fails_at is not None:
            if self.fails_at <= 0:
                raise self.error
            self.fails_at -= 1
        self.sent.append(message)


@pytest.fixture
async def client(tmp_path):
    limits = SchedulerConfig(max_num_queued_reqs=3)
    client = EngineClient(
        replace(EngineConfig(), scheduler=limits),
        LaunchOptions(),
        lambda config, options: FakeChild(tmp_path),
    )
    client.state, client.ready = "ready", READY
    client._loop = asyncio.get_running_loop()
    return client


def request(req_id: str, *pictures: str) -> AddRequest:
    media = [MediaItem(name, 1, 1, "") for name in pictures]
    return AddRequest(req_id=req_id, prompt_token_ids=[1, 2, 3], media=media)


def files(client: EngineClient) -> list[str]:
    return sorted(path.stem for path in client._child.folder.iterdir())


def check_only_the_first_is_left(client: EngineClient, inbox) -> None:
    assert client.num_running == 1 and files(client) == ["cat"]
    delta = RequestDelta(req_id="first", token_ids=[5], finish_reason="stop")
    client._handle(StepOutputs(Deltas([delta]), EngineStats()))
    assert [one.token_ids for one in inbox.take()] == [[5]]
    assert client.num_running == 0 and files(client) == []
    assert not client.queue._silent, "nobody is counted as waiting"


async def test_a_picture_that_cannot_be_written(client, monkeypatch):
    inbox = client.submit([request("first", "cat")], PIXELS)
    save, written = np.save, []

    def full(path, *args, **options):
        if "cow" in str(path):
            path.write_bytes(b"half of it")
            raise OSError("No space left on device")
        written.append(path)
        save(path, *args, **options)

    monkeypatch.setattr(np, "save", full)
    requests = [request("second", "cat", "dog"), request("third", "cow"), request("fourth")]
    with pytest.raises(CapacityError, match="No space left"):
        client.submit(requests, PIXELS)
    assert len(written) == 1, "a picture was there already, one was written, one was not"
    assert [message.req_id for message in client._child.sent] == ["first"]
    check_only_the_first_is_left(client, inbox)


@pytest.mark.parametrize("error", [zmq.ZMQError(zmq.ENOTSOCK), OSError("gone")])
async def test_a_message_that_cannot_be_sent(client, error):
    inbox = client.submit([request("first", "cat")], PIXELS)
    client._child.fails_at, client._child.error = 1, error
    with pytest.raises(type(error)):
        client.submit([request("second", "cat", "dog"), request("third", "cow")], PIXELS)
    check_only_the_first_is_left(client, inbox)


async def test_the_engine_drops_what_it_got_before(client):
    client.submit([request("first")])
    send, child = client._child.send, client._child

    def refuse_third(message):
        if getattr(message, "req_id", "") == "third":
            raise OSError("gone")
        send(message)

    child.send = refuse_third
    with pytest.raises(OSError, match="gone"):
        client.submit([request("second"), request("third")])
    assert child.sent[-1] == AbortRequests(["second"])
    assert client.num_running == 1


async def test_a_picture_without_pixels(client):
    inbox = client.submit([request("first", "cat")], PIXELS)
    with pytest.raises(KeyError, match="bird"):
        client.submit([request("second", "dog", "bird")], PIXELS)
    check_only_the_first_is_left(client, inbox)
