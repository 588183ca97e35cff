"""A process of an engine whose words and end a test chooses, and what such tests say."""

import signal

import pytest

from pagoda.base.errors import EngineDeadError
from pagoda.core.messages import (
    AddRequest,
    Deltas,
    EngineHeartbeat,
    EngineReady,
    EngineStats,
    MediaItem,
    RequestDelta,
    StepOutputs,
)
from pagoda.engine.processes.child import exit_cause

READY = EngineReady(
    max_model_len=64, vocab_size=8, num_blocks=4, block_size=4, kv_tokens=12, max_num_seqs=1
)  # fmt: skip


class FakeChild:
    """A process whose words and end the test chooses; it beats each second while `beats`."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder, self.pid, self.returncode = folder, 1, None
        self.end = self
        self.sent, self.words = [], []
        self.closed = False
        self.beats: EngineHeartbeat | None = EngineHeartbeat(0)
        self._on_message = self._on_exit = None

    def watch(self, loop, on_message, on_exit):
        self._loop, self._on_message, self._on_exit = loop, on_message, on_exit
        self._beat()

    def _beat(self):
        if self.returncode is None:
            if self.beats is not None:
                self.say(self.beats)
            self._loop.call_later(1.0, self._beat)

    def unwatch(self, loop):
        self._on_message = None

    def say(self, *messages):
        self.words += messages
        self._loop.call_soon(self._hear)

    def _hear(self):
        if self._on_message is not None:
            self._on_message(self)

    def pending(self):
        return bool(self.words)

    def receive(self):
        return self.words.pop(0)

    def send(self, message):
        assert not self.closed
        self.sent.append(message)

    def exit(self, code):
        self.returncode = code
        self._loop.call_soon(self._on_exit, self)

    def kill(self):
        if self.returncode is None:
            self.exit(-signal.SIGKILL)

    def exit_cause(self):
        return exit_cause(self.returncode, "The engine process")

    def close(self):
        self.closed = True
        for path in self.folder.glob("*"):
            path.unlink()
        if self.folder.exists():
            self.folder.rmdir()


def request(req_id, *pictures):
    media = [MediaItem(name, 1, 1, "") for name in pictures]
    return AddRequest(req_id=req_id, prompt_token_ids=[1, 2, 3], media=media)


def delta(req_id, finish=None):
    one = RequestDelta(req_id=req_id, token_ids=[5], finish_reason=finish)
    return StepOutputs(Deltas([one]), EngineStats())


def progress(req_id):
    """Its prompt is computed, and nothing of a reply is there."""
    one = RequestDelta(req_id=req_id, prompt_progress=(2, 0))
    return StepOutputs(Deltas([one]), EngineStats())


def sent(child):
    return [message.req_id for message in child.sent if isinstance(message, AddRequest)]


async def error_of(inbox):
    """What its reader is told at last."""
    with pytest.raises(EngineDeadError) as caught:
        while True:
            await inbox.arrival()
            inbox.take()
    return str(caught.value)
