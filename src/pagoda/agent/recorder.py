"""Everything that happens goes to the journal first, and from there to whoever listens."""

from dataclasses import dataclass
from typing import Any

from pagoda.agent.events import Events
from pagoda.agent.frame import Frame
from pagoda.agent.journal import Journal


@dataclass
class Recorder:
    journal: Journal
    events: Events

    def record(self, event: str, **fields: Any) -> None:
        """Raises JournalError, and tells nobody, when it cannot be kept."""
        kept = self.journal.write(event, **fields)
        self.events.emit(**kept)

    def keep(self, frame: Frame) -> dict[str, Any]:
        """As `Journal.save_frame`."""
        return self.journal.save_frame(frame)
