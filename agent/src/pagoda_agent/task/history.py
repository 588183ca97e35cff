"""What a model is sent at each step: instructions, the task, what was done, the last pictures.

Servers keep what they computed for a prompt's beginning, so the beginning stays as it was: turns
are only appended, and old ones go a few at a time (`prune_every`). A turn goes whole, its picture,
the reply to it and the results, so that no result is ever without its call; a line in the list of
earlier steps takes its place.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pagoda_agent.base.errors import ConfigError
from pagoda_agent.dialects.rules import BUILT_IN, FORMAT
from pagoda_agent.drivers.base import Capabilities
from pagoda_agent.models.dialogue import Dialect, Message, Picture, Reply

_LINE = 400
"""Characters of an earlier step's line."""
_LINES = 60
"""Earlier steps that are listed; when there are more, the older half goes."""
_BROKEN = 4000
"""Characters that are kept of a reply that was not understood."""


def system_text(
    dialect: Dialect,
    screen: tuple[int, int],
    capabilities: Capabilities,
    prompt: str = "",
    secret_names: Sequence[str] = (),
    own: str = "",
) -> str:
    """The system prompt: `own`, or the built-in one, with the dialect's instructions in the place
    that it has for them, and then the user's `prompt`."""
    parts = [(own or BUILT_IN).replace(FORMAT, dialect.instructions(screen, capabilities))]
    if secret_names:
        listed = ", ".join(f"{{{{secret:{name}}}}}" for name in secret_names)
        parts.append(f"Placeholders that you may type: {listed}.")
    if prompt.strip():
        parts.append(f"What the user wants you to know:\n{prompt.strip()}")
    return "\n\n".join(parts)


@dataclass
class _Turn:
    """What the model is told after its last reply, and what it replies."""

    results: list[Message] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    reply: Message | None = None
    line: str = ""
    """The reply and how it went, once the turn is an earlier step."""

    def said(self) -> str:
        return "\n\n".join([*(f"The user says: {hint}" for hint in self.hints), *self.notes])


class History:
    """One task's conversation. `redact` takes secrets out of texts and of lists and objects with
    texts; nothing else is kept."""

    def __init__(
        self,
        dialect: Dialect,
        system: str,
        task: str,
        *,
        pictures: int = 3,
        prune_every: int = 1,
        redact: Callable[[Any], Any] = lambda value: value,
        earlier: Sequence[str] = (),
    ):
        """`pictures`: each request has so many, and up to `prune_every` - 1 more between two
        prunings. `earlier`: lines of the steps before a restart. Raises ConfigError for numbers
        below 1."""
        if pictures < 1 or prune_every < 1:
            raise ConfigError("At least 1 picture must be kept, and pruned at a time.")
        self._dialect = dialect
        self._redact = redact
        self.system = redact(system)
        """May be set anew when the screen changes its size."""
        self._task: str = redact(task)
        self._keep = pictures
        self._most = pictures + prune_every - 1
        self._turns = [_Turn()]
        self._earlier: list[str] = list(map(redact, earlier))
        self._hints: list[str] = []
        """What the user said in steps whose lines are gone; it is never left out."""
        self._forgotten = 0
        self._steps = len(earlier)

    def add_picture(self, picture: Picture) -> None:
        """What the screen shows now, or a part of it that the model zoomed into."""
        self._turns[-1].pictures.append(picture)
        if self._shown() > self._most:
            while self._shown() > self._keep and len(self._turns) > 1:
                self._retire(self._turns.pop(0))

    def drop_pictures(self) -> None:
        """Those of a request that was given up before it was answered."""
        self._turns[-1].pictures.clear()

    def add_hint(self, text: str) -> None:
        """What the user says: a hint, or the answer to a question."""
        self._turns[-1].hints.append(self._redact(text))

    def add_note(self, text: str) -> None:
        """What the model should know about this step only."""
        self._turns[-1].notes.append(self._redact(text))

    def add_reply(self, reply: Reply) -> None:
        """One of add_outcomes and add_refusal must follow, then the next picture."""
        calls = tuple(
            replace(call, arguments=self._redact(call.arguments)) for call in reply.tool_calls
        )
        self._turns[-1].reply = Message(
            "assistant",
            self._redact(reply.text),
            tool_calls=calls,
            reasoning=self._redact(reply.reasoning),
            opaque=self._redact(reply.opaque),
        )

    def add_outcomes(
        self, call_ids: Sequence[str], outcomes: Sequence[str], consented: bool = False
    ) -> None:
        """How each action of the reply went, in their order; `call_ids` as they were parsed."""
        told = [self._redact(outcome) for outcome in outcomes]
        self._close(self._dialect.result(call_ids, told, consented), "; ".join(told))

    def add_refusal(self, reason: str) -> None:
        """The reply was not understood, and nothing of it was done."""
        reply = self._turns[-1].reply
        assert reply is not None, "no reply to refuse"
        told = f"Nothing of it was carried out. {self._redact(reason)}"
        ids = [call.id for call in reply.tool_calls]
        sound = all(_is_object(call.arguments) for call in reply.tool_calls)
        if ids and sound and len(set(ids)) == len(ids):
            self._close(self._dialect.result(ids, [told] * len(ids)), told)
            return
        # Servers refuse calls that they cannot read themselves, so it goes back as text.
        calls = [f"{call.name}: {call.arguments}" for call in reply.tool_calls]
        text = "\n".join(filter(None, [reply.text, *calls])) or "(empty)"
        if len(text) > _BROKEN:
            text = f"{text[: _BROKEN // 2]}\n...\n{text[-_BROKEN // 2 :]}"
        self._turns[-1].reply = Message("assistant", text)
        self._close([Message("user", told)], told)

    def messages(self) -> list[Message]:
        """The whole request."""
        sent = [Message("system", self.system)]
        for number, turn in enumerate(self._turns):
            sent += self._told(turn, first=number == 0)
            if turn.reply is not None:
                sent.append(turn.reply)
        return sent

    def _told(self, turn: _Turn, first: bool) -> list[Message]:
        pictures = tuple(turn.pictures)
        if first:
            return [Message("user", f"{self._head()}\n\n{turn.said()}".rstrip(), pictures)]
        results = turn.results
        if results and results[-1].role == "tool":
            said = [Message("user", turn.said())] if turn.said() else []
            return [*results[:-1], replace(results[-1], pictures=pictures), *said]
        texts = [*(message.text for message in results), turn.said()]
        return [Message("user", "\n\n".join(filter(None, texts)) or "Go on.", pictures)]

    def _head(self) -> str:
        parts = [f"Your task: {self._task}", *(f"The user says: {hint}" for hint in self._hints)]
        if self._earlier:
            left_out = [f"({self._forgotten} steps before are left out)"] * bool(self._forgotten)
            parts.append("\n".join(["What was done so far:", *left_out, *self._earlier]))
        return "\n\n".join(parts)

    def _shown(self) -> int:
        return sum(len(turn.pictures) for turn in self._turns)

    def _close(self, results: list[Message], outcome: str) -> None:
        turn = self._turns[-1]
        assert turn.reply is not None, "no reply that this could be the result of"
        self._steps += 1
        calls = (f"{call.name} {call.arguments}" for call in turn.reply.tool_calls)
        did = " ".join(" ".join([turn.reply.text, *calls]).split())
        ended = " ".join(outcome.split())
        turn.line = f"{self._steps}. {_short(did, _LINE)} => {_short(ended, _LINE // 2)}"
        self._turns.append(_Turn(results=results))

    def _retire(self, turn: _Turn) -> None:
        self._hints += turn.hints
        self._earlier.append(turn.line)
        if len(self._earlier) > _LINES:
            self._forgotten += _LINES // 2
            del self._earlier[: _LINES // 2]


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
