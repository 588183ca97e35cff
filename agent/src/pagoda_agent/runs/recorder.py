"""Everything that happens goes to the journal first, and from there to whoever listens."""

import logging
from dataclasses import dataclass
from typing import Any

from pagoda_agent.runs.journal import Journal, JournalError
from pagoda_agent.task.events import Events

log = logging.getLogger(__name__)


@dataclass
class Recorder:
    journal: Journal
    events: Events

    def record(self, event: str, **fields: Any) -> dict[str, Any]:
        """The event as everyone sees it, without secrets. Raises JournalError, and tells nobody,
        when it cannot be kept."""
        kept = self.journal.write(event, **fields)
        self.events.emit(**kept)
        return kept

    def tell(self, event: str, **fields: Any) -> dict[str, Any]:
        """As `record`, for what happened in any case: what cannot be kept is told all the same."""
        try:
            return self.record(event, **fields)
        except JournalError as error:
            log.error("%s", error)
            told = self.journal.redacted(event, **fields)
            self.events.emit(**told)
            return told

    def redact(self, text: str) -> str:
        """The text without secrets, for logs."""
        return self.journal.redact(text)
