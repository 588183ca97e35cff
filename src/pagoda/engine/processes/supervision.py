"""Whether an engine makes progress, and when it is started again. It reads no clock and does
nothing: who holds it says what happens and when, and does what it says."""

from dataclasses import dataclass

from pagoda.base.units import format_seconds
from pagoda.core.messages import EngineHeartbeat
from pagoda.engine.processes.activity import STEP

# A step may take so many times as long as the longest one before it.
_STEP_FACTOR = 4.0
# A process that serves and says nothing at all, not even that it computes, gets this share of the
# time: only what holds Python's lock delays its heartbeat. While it starts, loading a library does.
_SILENT_SHARE = 0.2
_START_SILENCE = 60.0
# Several heartbeats: what is known of it may be a second old.
_LEAST_SECONDS = 5.0
# It is reported at this share of the time, and killed at the end.
_REPORT_SHARE = 0.5
# Time between two looks that counts at most, in intervals: whoever looks may have been stopped,
# suspended or busy itself, and that is not the engine's fault.
_MOST_INTERVALS = 2.0
_LOOKS = 40
_LONGEST_LOOK = 5.0
_FIRST_DELAY, _LONGEST_DELAY = 1.0, 60.0
# What served for so long has recovered.
_RECOVERED_SECONDS = 600.0


@dataclass(frozen=True)
class SupervisionLimits:
    stall_seconds: float = 300.0
    """An engine without progress for so long is killed; 0 waits for ever."""
    max_restarts: int = 5
    """In a row; -1 is no limit."""


@dataclass(frozen=True)
class Stall:
    words: str
    """What stands still and for how long, as a sentence without its end."""
    over: bool
    """It had all its time."""


class Supervision:
    """What is known of one engine over its processes' lives. All times are seconds of one monotonic
    clock."""

    def __init__(self, limits: SupervisionLimits):
        self.limits = limits
        shortest = max(limits.stall_seconds, _LEAST_SECONDS)
        self.look_seconds = min(_LONGEST_LOOK, shortest / _LOOKS) if limits.stall_seconds else 0.0
        """How often to call `look`; 0: never."""
        self.failures = 0
        """Deaths in a row."""
        self.launched(0.0)

    def launched(self, now: float) -> None:
        """A process was started."""
        self.stall: Stall | None = None
        """As of the last look."""
        self._ready_at: float | None = None
        self._heard_at = self._attended_at = now
        self._beat: EngineHeartbeat | None = None
        self._longest_step = 0.0
        # In watched time, which passes only while somebody looks or listens.
        self._watched = self._last_word = self._begun = 0.0

    def heard(self, now: float) -> None:
        """It said something."""
        self._attend(now)
        self._heard_at = now
        self._last_word = self._watched

    def beat(self, heartbeat: EngineHeartbeat) -> None:
        """It said what it does."""
        before = self._beat
        if before is None or before.serial != heartbeat.serial:
            if before is not None and before.phase == STEP:
                # In watched time too: a machine that was suspended teaches nothing.
                self._longest_step = max(self._longest_step, self._watched - self._begun)
            self._begun = self._watched
        self._beat = heartbeat

    def serves(self, now: float) -> None:
        """Its start is over."""
        self._ready_at = now
        self._begun = self._watched

    def silent_seconds(self, now: float) -> float:
        """Since its last word."""
        return max(0.0, now - self._heard_at)

    def look(self, now: float) -> Stall | None:
        """What stands still; called once everything that arrived was heard."""
        self._attend(now)
        stalls = [stall for stall in (self._silence(), self._standstill()) if stall is not None]
        self.stall = max(stalls, key=lambda stall: stall.over, default=None)
        return self.stall

    def died(self, now: float) -> float | None:
        """Seconds until it is started again; None gives it up."""
        if self._ready_at is not None and now - self._ready_at >= _RECOVERED_SECONDS:
            self.failures = 0
        self.failures += 1
        self._ready_at = self.stall = None
        most = self.limits.max_restarts
        if 0 <= most < self.failures:
            return None
        if self.failures == 1:
            return 0.0
        # 2**6 is beyond the longest delay already.
        return min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** min(self.failures - 2, 6))

    def _attend(self, now: float) -> None:
        passed, self._attended_at = now - self._attended_at, now
        self._watched += min(passed, _MOST_INTERVALS * self.look_seconds)

    def _silence(self) -> Stall | None:
        allowed = max(self.limits.stall_seconds, _START_SILENCE)
        if self._ready_at is not None:
            share = _SILENT_SHARE * self.limits.stall_seconds
            allowed = max(share, _LEAST_SECONDS, self._learned())
        return _stall("said nothing", self._watched - self._last_word, allowed)

    def _standstill(self) -> Stall | None:
        # Loading may take for ever, and --startup-timeout bounds it.
        if self._beat is None or self._beat.phase is None or self._ready_at is None:
            return None
        allowed = max(self.limits.stall_seconds, _LEAST_SECONDS, self._learned())
        stall = _stall("made no progress", self._watched - self._begun, allowed)
        return stall and Stall(f"{stall.words} (phase: {self._beat.phase})", stall.over)

    def _learned(self) -> float:
        return _STEP_FACTOR * self._longest_step


def _stall(what: str, seconds: float, allowed: float) -> Stall | None:
    if seconds < _REPORT_SHARE * allowed:
        return None
    return Stall(f"The engine {what} for {format_seconds(seconds)}", seconds >= allowed)
