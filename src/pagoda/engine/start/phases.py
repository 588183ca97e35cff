"""The phases of a start-up: told of as they begin, timed, and their lack of memory put in words."""

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pagoda.base.errors import CapacityError
from pagoda.core.messages import EngineMessage, EngineProgress
from pagoda.engine.core import describe
from pagoda.engine.start.ledger import Ledger
from pagoda.planner.resolve import Resolution

Report = Callable[[EngineMessage], None]

_PROGRESS_PERIOD = 0.1


class Phases:
    def __init__(self, report: Report, launched_at: float | None):
        """`launched_at` is time.time() of the command, from which the ledger counts."""
        self.ledger = Ledger()
        self._report = report
        self._phase = ""
        self._last_progress = 0.0
        if launched_at is not None:
            self.ledger.phases["launch"] = max(0.0, time.time() - launched_at)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        self._phase = phase
        self._report(EngineProgress(phase))
        with self.ledger.phase(phase):
            yield

    def awaits(self, what: str) -> None:
        """The phase goes on once others have come; told anew, it is not taken to stand still."""
        self._report(EngineProgress(f"wait for {what}"))

    def progress(self, done: int, total: int, check: Callable[[], None] | None = None) -> None:
        """Pass on at most ten times a second, and always the end; `check` before each."""
        now = time.monotonic()
        if now - self._last_progress >= _PROGRESS_PERIOD or done >= total:
            self._last_progress = now
            if check is not None:
                check()
            self._report(EngineProgress(self._phase, done, total))


@contextmanager
def memory_guard(doing: str, resolution: Resolution) -> Iterator[None]:
    """Turn running out of memory into advice; any other error passes."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        scheduler = resolution.config.scheduler
        raise CapacityError(
            f"Memory ran out while {doing} ({describe(error)}). Choose a smaller quantization, "
            f"or lower --max-model-len (now {resolution.config.model.max_model_len}), "
            f"--kv-cache-memory-bytes (now {resolution.plan.kv_pool}), --max-num-seqs (now "
            f"{scheduler.max_num_seqs}) or --max-num-batched-tokens (now "
            f"{scheduler.max_num_batched_tokens})."
        ) from error


def is_out_of_memory(error: Exception) -> bool:
    """torch.OutOfMemoryError is a RuntimeError, its CPU allocator raises a bare one, mmap an
    OSError."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    text = str(error).lower()
    return any(sign in text for sign in ("out of memory", "can't allocate", "not enough memory"))
