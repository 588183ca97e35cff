"""Ctrl-C between steps."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C only makes the yielded function True; the second one raises.

    A step that is cut short leaves requests half computed, so the caller looks between steps.
    Where signals are somebody else's (another thread, an own handler) nothing changes.
    """
    asked = False

    def on_interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: asked
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked:  # behind the caller's last look
        raise KeyboardInterrupt
