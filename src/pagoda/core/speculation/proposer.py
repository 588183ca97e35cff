"""What guesses the next tokens of a request, and how sure a guess is."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pagoda.core.request import Request


class Guess(NamedTuple):
    """Tokens that may follow a request's last one, nearest first."""

    token_ids: list[int]
    evidence: list[int]
    """What each of them rests on, as a number below `NUM_EVIDENCE`: how often tokens of like
    evidence come true is learned."""


NO_GUESS = Guess([], [])
NUM_EVIDENCE = 64


class Proposer(Protocol):
    """Guesses what follows requests. It may be wrong, which costs time and nothing else."""

    chances: list[float]
    """By evidence: how often such a token comes true, while nothing was learned yet."""

    def guess(self, req: Request, most: int) -> Sequence[Guess]:
        """At most so many tokens behind those that are known, in as many ways as seem possible, of
        which one is verified. Called in the order of a request's tokens, not for each of them."""

    def forget(self, req: Request) -> None:
        """The request has ended; it may never have been asked for."""
