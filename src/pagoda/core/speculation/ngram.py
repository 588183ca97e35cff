"""Guesses that a request repeats its own text, where its last few tokens stood before."""

from pagoda.core.request import Request
from pagoda.core.speculation.copying import FIRST_CHANCES, latest_copy
from pagoda.core.speculation.habits import Habits
from pagoda.core.speculation.proposer import Guess
from pagoda.core.speculation.text_index import LONGEST, TextIndex


class NgramProposer:
    """Prompt lookup: what followed the latest place with the longest equal end."""

    def __init__(self, shortest: int = 2, longest: int = LONGEST):
        """Ends of so many tokens are looked for; one alone never is."""
        self.chances = list(FIRST_CHANCES)
        self._shortest, self._longest = shortest, longest
        self._indexes: dict[str, TextIndex] = {}
        self._habits = Habits()
        """None: a place is found anew each time, so no change is ever seen."""

    def guess(self, req: Request, most: int) -> list[Guess]:
        text = req.token_ids
        index = self._indexes.get(req.req_id)
        if index is None:
            index = self._indexes[req.req_id] = TextIndex(text)
        index.extend(len(text) - 1)
        copied = latest_copy(index, text[-self._longest :], self._habits)
        if copied is None or copied.length < self._shortest:
            return []
        return [copied.guess(most)]

    def forget(self, req: Request) -> None:
        self._indexes.pop(req.req_id, None)
