"""Guesses from a request's own text and from recent replies: what followed the longest end of its
text that stood there before, for as long as that holds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from pagoda.core.request import Request
from pagoda.core.speculation.copying import (
    COPY_CHANCES,
    END,
    OTHERS,
    Copied,
    latest_copy,
)
from pagoda.core.speculation.habits import Habits
from pagoda.core.speculation.proposer import Guess
from pagoda.core.speculation.text_index import TextIndex

# A place in the own text with so many equal tokens is not looked for in others'.
_LONG = 8
# Tokens of a long prompt that are taken in between two steps: 2 ms.
_SLICE = 4096


@dataclass(eq=False)
class _Text:
    """What is known of a request."""

    index: TextIndex
    num_seen: int
    habits: Habits = field(default_factory=Habits)
    copies: list[Copied] = field(default_factory=list)
    """What it follows, and where that was left, perhaps for a change, another place that it may
    follow instead."""
    expected: tuple[TextIndex, ...] = ()
    """What the client predicts of the reply, if it does."""

    @classmethod
    def of(cls, req: Request) -> Self:
        text = cls(TextIndex(req.token_ids), req.prompt_len)
        prediction = req.message.prediction_token_ids
        if prediction:
            expected = TextIndex([])
            expected.append([*prediction, END])
            text.expected = (expected,)
            text.copies = [Copied(expected.text, 0, _LONG, text.habits, OTHERS)]
        return text


class SuffixProposer:
    def __init__(self, most_kept: int = 1 << 17):
        """Recent replies of `most_kept` tokens in all are kept, about 150 bytes each; 0 keeps
        none."""
        self.chances = COPY_CHANCES
        self._texts: dict[str, _Text] = {}
        self._replies = RecentReplies(most_kept)

    def guess(self, req: Request, most: int) -> list[Guess]:
        text = req.token_ids
        known = self._texts.get(req.req_id)
        if known is None:
            known = self._texts[req.req_id] = _Text.of(req)
        new, known.num_seen = text[known.num_seen :], len(text)
        copies = [copied for copied in known.copies if copied.follow(new)]
        if len(copies) > 1 and copies[1].is_changing:
            del copies[1]
        if not copies or (len(copies) == 1 and copies[0].is_changing):
            found = self._find(req, known)
            copies += [found] if found is not None else []
        known.copies = copies
        return [copied.guess(most) for copied in copies]

    def forget(self, req: Request) -> None:
        if self._texts.pop(req.req_id, None) is not None:
            self._replies.add(_owner(req), req.token_ids[req.prompt_len :])

    def _find(self, req: Request, known: _Text) -> Copied | None:
        text, index = req.token_ids, known.index
        index.extend(min(len(text) - 1, index.end + _SLICE))
        copied = latest_copy(index, text, known.habits)
        if copied is not None and copied.length >= _LONG:
            return copied
        for other in (*known.expected, *self._replies.indexes(_owner(req))):
            theirs = latest_copy(other, text, known.habits, OTHERS)
            if theirs is not None and (copied is None or theirs.length > copied.length):
                copied = theirs
        return copied


class RecentReplies:
    """The last replies of each owner, who share nothing with others.

    Each has two texts: one that grows, and the one before it, so that old replies go half at a
    time and nothing is indexed twice.
    """

    def __init__(self, most_tokens: int):
        self.num_tokens = 0
        self._most = most_tokens
        self._largest = most_tokens // 4
        """Tokens in a text: an owner has half of what there is at most."""
        self._owners: dict[tuple[str | None, str | None], list[TextIndex]] = {}

    def add(self, owner: tuple[str | None, str | None], reply: Sequence[int]) -> None:
        """Take in a reply of an owner, and let the oldest of whoever was quiet longest go."""
        reply = reply[-(self._largest - 1) :] if self._largest > 1 else ()
        if not reply:
            return
        texts = self._owners.pop(owner, [])
        self._owners[owner] = texts
        if not texts or len(texts[0].text) + len(reply) >= self._largest:
            texts.insert(0, TextIndex([]))
            for old in texts[2:]:
                self.num_tokens -= len(old.text)
            del texts[2:]
        texts[0].append([*reply, END])
        self.num_tokens += len(reply) + 1
        while self.num_tokens > self._most:
            quiet = next(iter(self._owners))
            self.num_tokens -= len(self._owners[quiet].pop().text)
            if not self._owners[quiet]:
                del self._owners[quiet]

    def indexes(self, owner: tuple[str | None, str | None]) -> Sequence[TextIndex]:
        """An owner's texts, the latest first."""
        return self._owners.get(owner, ())


def _owner(req: Request) -> tuple[str | None, str | None]:
    """Whose replies may be guessed from: those who may share cached prefixes."""
    return req.message.cache_salt, req.message.adapter
