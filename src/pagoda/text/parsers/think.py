"""Models that think aloud first: `<think>...</think>answer` (DeepSeek R1, Qwen3, SmolLM3, ...)."""

from pagoda.text.parsers.base import Delta, Kind, OutputParser, ParserFamily
from pagoda.text.partial import held_from

OPEN, CLOSE = "<think>", "</think>"


class ThinkParser(OutputParser):
    """Reasoning is what stands between the tags, if the reply begins with it.

    A tag elsewhere is text: the model writes about tags. Templates may open the tag themselves;
    then the reply begins inside (`opened`), and a tag that the model repeats is left out.
    """

    def __init__(self, opened: bool):
        self._kind: Kind = "reasoning" if opened else "text"
        self._tag: str | None = OPEN
        """The tag to come; None when the rest is text."""
        self._held = ""

    def feed(self, text: str) -> list[Delta]:
        self._held += text
        deltas: list[Delta] = []
        if self._tag == OPEN:
            self._begin(deltas)
        if self._tag == CLOSE:
            self._reason(deltas)
        if self._tag is None:
            self._emit(deltas, len(self._held))
        return deltas

    def finish(self) -> list[Delta]:
        deltas: list[Delta] = []
        self._emit(deltas, len(self._held))
        return deltas

    def _begin(self, deltas: list[Delta]) -> None:
        """Before anything but white space: an opening tag may come, and begins the reasoning."""
        start = len(self._held) - len(self._held.lstrip())
        if self._held.startswith(OPEN, start):
            self._kind = "reasoning"
            self._emit(deltas, start)
            self._held = self._held[len(OPEN) :]
        elif OPEN.startswith(self._held[start:]):
            return
        self._tag = CLOSE if self._kind == "reasoning" else None

    def _reason(self, deltas: list[Delta]) -> None:
        end = self._held.find(CLOSE)
        if end == -1:
            self._emit(deltas, held_from(self._held, (CLOSE,)))
            return
        self._emit(deltas, end)
        self._held = self._held[len(CLOSE) :]
        self._kind, self._tag = "text", None

    def _emit(self, deltas: list[Delta], length: int) -> None:
        """Move so much of what is held into a delta."""
        if length:
            deltas.append(Delta(self._kind, self._held[:length]))
            self._held = self._held[length:]


def _create(prompt: str) -> ThinkParser:
    return ThinkParser(opened=prompt.rstrip().endswith(OPEN))


FAMILY = ParserFamily("think", _create, reasoning_end=CLOSE)
