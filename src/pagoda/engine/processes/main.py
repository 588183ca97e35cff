"""The engine's own process, `python -m pagoda.engine.processes.main`: its stdin says what to do."""

import contextlib
import gc
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec

from pagoda.base.collector import no_collections
from pagoda.base.errors import CapacityError, PagodaError
from pagoda.base.log import get_logger, setup_logging
from pagoda.base.process import go_on_without_parent
from pagoda.config.engine import EngineConfig
from pagoda.core.messages import (
    AddRequest,
    ClientMessage,
    Deltas,
    EngineDied,
    EngineMessage,
    EngineProgress,
    EngineReady,
    RequestDelta,
    Shutdown,
    StepOutputs,
    Utility,
)
from pagoda.engine.core import EngineCore, describe
from pagoda.engine.processes.activity import STEP, Activity
from pagoda.engine.processes.transport import EngineEnd, Launch, UnreadableMessage
from pagoda.engine.processes.watchdog import Watchdog
from pagoda.engine.start.libraries import Libraries, import_beside

log = get_logger("engine.process")

# An idle engine wakes so often to see whether a signal told it to stop: 0.01% of a core.
_IDLE_MS = 500
# Nothing can be scheduled although requests wait (for a grammar, a transfer): look again then.
_STALLED_MS = 2
# Statistics reach the client at least so often while steps produce no tokens (long prompts).
_STATS_SECONDS = 0.5


class EngineLoop:
    """Messages in, steps, outputs out, until told to stop."""

    def __init__(self, core: EngineCore, end: EngineEnd, activity: Activity):
        """`activity` hears what the loop does."""
        self._core = core
        self._end = end
        self._activity = activity
        self._stop_at: float | None = None
        self._last_sent = 0.0

    def stop(self, drain_seconds: float) -> None:
        """Take no new requests; leave when all are done, or when the time is over."""
        deadline = time.monotonic() + drain_seconds
        self._stop_at = deadline if self._stop_at is None else min(deadline, self._stop_at)

    def run(self) -> None:
        while not self.finished():
            patience_ms = self.patience_ms()
            if patience_ms:
                self._end.wait(patience_ms, self._core.wake_fd)
            self.turn()

    def patience_ms(self) -> int:
        """How long to wait for a message before the next turn."""
        if self._core.has_work():
            return _STALLED_MS if self._core.stalled else 0
        self._core.executor.check()
        self._activity.beat("work ahead")
        more = self._core.when_idle()
        self._activity.beat(None)
        return 0 if more else _IDLE_MS

    def turn(self) -> None:
        """Take what has come, and make a step of it."""
        self._receive()
        if self._core.has_work():
            # Requests for which nothing can be done are no progress, but for those that wait.
            idled = self._activity.phase != STEP
            if idled or not self._core.stalled or self._core.awaits_others:
                self._activity.beat(STEP)
            self._send(self._core.step())

    def finished(self) -> bool:
        if self._stop_at is None:
            return False
        return time.monotonic() >= self._stop_at or not self._core.has_work()

    def _receive(self) -> None:
        while (message := self._end.receive()) is not None:
            if isinstance(message, UnreadableMessage):
                log.error("A message from the client could not be read: %s", message.reason)
                if message.req_id is not None:
                    self._refuse(message.req_id, f"The request is invalid: {message.reason}")
            elif isinstance(message, Shutdown):
                self.stop(message.drain_seconds)
            elif isinstance(message, AddRequest) and self._stop_at is not None:
                self._refuse(message.req_id, "The engine is shutting down.")
            else:
                self._handle(message)

    def _handle(self, message: ClientMessage) -> None:
        if isinstance(message, Utility):
            self._activity.beat(message.method)
        reply = self._core.handle(message)
        if reply is not None:
            self._end.send(reply)

    def _refuse(self, req_id: str, reason: str) -> None:
        delta = RequestDelta(req_id=req_id, finish_reason="error", error=reason)
        self._end.send(StepOutputs(Deltas([delta]), self._core.stats()))

    def _send(self, deltas: Deltas) -> None:
        now = time.monotonic()
        if deltas or now - self._last_sent >= _STATS_SECONDS:
            self._last_sent = now
            self._end.send(StepOutputs(deltas, self._core.stats()))


Start = Callable[[EngineConfig, Callable[[EngineMessage], None]], tuple[EngineCore, EngineReady]]


def main(start: Start | None = None) -> NoReturn:
    """The whole process. `start` makes the engine, by default `start_engine`."""
    go_on_without_parent()
    # The parent coordinates an interrupt of the whole process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What every engine needs, while the parent finds out which one this is.
    libraries = import_beside(no_collections()) if start is None else None
    launch = _read_launch()
    setup_logging(launch.log_level, launch.log_format)
    folder = Path(launch.folder)
    end = EngineEnd(folder)
    # After the sockets: one that appears while the folder is being removed would keep it there.
    threading.Thread(target=_follow_parent, args=(folder,), name="parent", daemon=True).start()
    code = 0
    try:
        _serve(launch, end, start, libraries)
    except Exception as error:
        cause = describe(error)
        if not isinstance(error, PagodaError):
            log.exception("The engine failed.")
        log.debug("%s", cause)  # the parent tells the user
        end.send(EngineDied(cause, isinstance(error, CapacityError)))
        code = 1
    end.close()
    leave(code)


def _read_launch() -> Launch:
    line = sys.stdin.buffer.readline()
    if not line:
        leave(1)  # the parent found that there is nothing to serve
    try:
        return msgspec.json.decode(line, type=Launch)
    except msgspec.MsgspecError:
        print("This is the engine process of Pagoda; `pagoda serve` starts it.", file=sys.stderr)
        leave(1)


def _serve(
    launch: Launch, end: EngineEnd, start: Start | None, libraries: Future[Libraries] | None
) -> None:
    def give_up(reason: str) -> None:
        log.error("%s", reason)
        end.send_from_thread(EngineDied(reason))
        time.sleep(0.2)  # the context's own thread hands the message over
        leave(1)

    watchdog = Watchdog(
        deadline_seconds=launch.startup_timeout, give_up=give_up, tell=end.send_from_thread
    )

    def report(message: EngineMessage) -> None:
        if isinstance(message, EngineProgress):
            watchdog.beat(message.phase)
        end.send(message)

    # Imported here: startup brings most of Pagoda, and the client should hear of us before that.
    report(EngineProgress("import"))
    if start is None:
        from pagoda.engine.startup import start_engine

        start = partial(
            start_engine,
            launched_at=launch.launched_at,
            libraries=libraries,
            room=launch.room,
            give_up=give_up,
        )
    core, ready = start(launch.config, report)
    watchdog.disarm()
    # What start-up made stays: keep it out of every later collection.
    gc.collect()
    gc.freeze()
    loop = EngineLoop(core, end, watchdog)
    signal.signal(signal.SIGTERM, lambda *_: loop.stop(float("inf")))
    end.send(ready)
    loop.run()
    watchdog.beat("save")
    core.shutdown()


def _follow_parent(folder: Path) -> None:
    """Leave when the parent does, however it ended: its end of our stdin closes with it."""
    while os.read(0, 4096):
        pass
    log.warning("The parent process is gone; leaving.")
    shutil.rmtree(folder, ignore_errors=True)
    leave(1)


def leave(code: int) -> NoReturn:
    """Exit at once: threads inside native code must not hold the process up."""
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
