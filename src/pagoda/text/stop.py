"""Stop strings in a stream of text."""

from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.text.partial import held_from


@dataclass(frozen=True)
class StopResult:
    text: str
    """What may be shown now."""
    matched: str | None = None
    """The stop string that ended the text, if one did."""


class StopMatcher:
    """Ends a text at the stop string that is complete first, wherever the stream was cut.

    Of two that are complete with the same character, the one that began earlier counts. Held back
    is only what could still become a stop string; with `include` nothing is.
    """

    def __init__(self, stops: Sequence[str], include: bool = False):
        self._stops = [stop for stop in stops if stop]
        self._include = include
        self._pending = ""
        """The end of the text so far that could still become a stop string."""
        self._shown = 0
        """How much of it was shown already; only with `include`."""
        self.matched: str | None = None

    def feed(self, text: str) -> StopResult:
        """Take the next piece; after a match, everything is swallowed."""
        if self.matched is not None:
            return StopResult("", self.matched)
        if not self._stops:
            return StopResult(text)
        text = self._pending + text
        found = self._first_match(text)
        if found is not None:
            start, stop = found
            self.matched, self._pending = stop, ""
            end = start + len(stop) if self._include else start
            return StopResult(text[self._shown : end], stop)
        held = held_from(text, self._stops)
        self._pending = text[held:]
        show = len(text) if self._include else held
        shown, self._shown = self._shown, show - held
        return StopResult(text[shown:show])

    def flush(self) -> str:
        """The text held back; call it when the stream has ended."""
        rest, self._pending = self._pending[self._shown :], ""
        return rest

    def _first_match(self, text: str) -> tuple[int, str] | None:
        found = ((text.find(stop), stop) for stop in self._stops)
        matches = [(start + len(stop), start, stop) for start, stop in found if start != -1]
        if not matches:
            return None
        _, start, stop = min(matches)
        return start, stop
