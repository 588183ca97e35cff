"""What a process does now, and since when: written by its main thread, read by any other."""

import time

from pagoda.core.messages import EngineHeartbeat

STEP = "step"


class Activity:
    def __init__(self, phase: str | None = "starting"):
        self.phase = phase
        """None: nothing is going on."""
        self.begun = time.monotonic()
        self._serial = 0

    def beat(self, phase: str | None) -> None:
        """What was done before has moved on: now it is `phase`, or None."""
        self.phase, self.begun = phase, time.monotonic()
        self._serial += 1

    def heartbeat(self) -> EngineHeartbeat:
        return EngineHeartbeat(self._serial, self.phase)

    def excuse(self) -> None:
        """The process itself was stopped for a while, which is not this activity's time."""
        self.begun = time.monotonic()
