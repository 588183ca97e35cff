"""Guesses that the runner makes behind each step, by a head of the model or a smaller model."""

from pagoda.core.request import Request
from pagoda.core.speculation.proposer import Guess

# A guess behind a right one comes true as often, until it is known how often that is.
_FIRST_CHANCE, _PLACES = 0.75, 16


class DraftedProposer:
    """Hands on what came with the last result."""

    def __init__(self) -> None:
        self.chances = [_FIRST_CHANCE] * _PLACES
        self._drafts: dict[str, tuple[int, list[int]]] = {}
        """By request: the tokens that were known when it was guessed, and what."""

    def take(self, req: Request, token_ids: list[int]) -> None:
        """What the runner guesses behind all tokens that are known now."""
        self._drafts[req.req_id] = len(req.token_ids), token_ids

    def guess(self, req: Request, most: int) -> list[Guess]:
        known, token_ids = self._drafts.get(req.req_id, (0, []))
        if known != len(req.token_ids) or not token_ids:
            return []
        return [Guess(token_ids[:most], list(range(len(token_ids[:most]))))]

    def forget(self, req: Request) -> None:
        self._drafts.pop(req.req_id, None)
