"""Which of several replicas of a model a request goes to."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pagoda.core.kvcache.block_hash import BlockHashes
from pagoda.core.messages import AddRequest


class ReplicaLoad(NamedTuple):
    """What a router knows of a replica without asking it: what it has sent there and has not seen
    end."""

    requests: int
    prompt_tokens: int
    """Tokens of their prompts."""
    max_requests: int
    """Requests that run there at once."""
    kv_tokens: int
    """Tokens that its KV cache has room for."""

    @property
    def share(self) -> float:
        """How full it is, by requests or by KV, whichever is more; above 1 some wait."""
        seats, memory = self.requests / self.max_requests, self.prompt_tokens / self.kv_tokens
        return max(seats, memory)


class Router(Protocol):
    def choose(self, request: AddRequest, replicas: Sequence[ReplicaLoad]) -> int:
        """The place of the replica that the request goes to; it is sent there."""


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: AddRequest, replicas: Sequence[ReplicaLoad]) -> int:
        place = self._next % len(replicas)
        self._next = place + 1
        return place


class LeastLoaded:
    """The emptiest, the first of several."""

    def choose(self, request: AddRequest, replicas: Sequence[ReplicaLoad]) -> int:
        shares = [load.share for load in replicas]
        return shares.index(min(shares))


_PER_REQUEST = 64
"""Tokens of a prompt: a request that runs at a replica slows others as much as computing them
would."""
_STAYS = 4 * _PER_REQUEST
"""A session's next request costs so many tokens less where its last one went: parts of its prompt
may be known there that this one's beginning does not show."""
_MOST_SESSIONS = 1 << 14


class PrefixAware:
    """Where the least is left to do: the tokens of the prompt that a replica would compute, plus
    `_PER_REQUEST` for each request that runs there, minus `_STAYS` where the request's session was
    last. A beginning that all prompts share is soon at each replica, and a long one that a few
    share stays where it is. One that is full comes last, whoever was there.

    What lies where is remembered from the prompts that were sent, as many blocks of each replica as
    its cache holds, those used last; replicas are not asked.
    """

    def __init__(self, block_size: int):
        self._block_size = block_size
        self._known: list[OrderedDict[bytes, None]] = []
        self._sessions: OrderedDict[str, int] = OrderedDict()
        """Where each was last; those that asked least lately are forgotten."""

    def choose(self, request: AddRequest, replicas: Sequence[ReplicaLoad]) -> int:
        while len(self._known) < len(replicas):
            self._known.append(OrderedDict())
        prompt = request.prompt_token_ids
        hashes = BlockHashes.of(request, self._block_size)
        names = hashes.extend(prompt, len(prompt) // self._block_size)
        stays_at = self._sessions.get(request.session or "")
        costs = [
            (
                load.share >= 1,
                _PER_REQUEST * load.requests
                - self._num_known(place, names) * self._block_size
                - _STAYS * (place == stays_at),
            )
            for place, load in enumerate(replicas)
        ]
        place = costs.index(min(costs))
        self._settle(request.session, place)
        self._remember(place, names, replicas[place].kv_tokens // self._block_size)
        return place

    def _settle(self, session: str | None, place: int) -> None:
        if not session:
            return
        self._sessions[session] = place
        self._sessions.move_to_end(session)
        if len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)

    def _num_known(self, place: int, names: Sequence[bytes]) -> int:
        """Blocks of a prompt that a replica has, from its start on."""
        known = self._known[place]
        return next((count for count, name in enumerate(names) if name not in known), len(names))

    def _remember(self, place: int, names: Sequence[bytes], most: int) -> None:
        known = self._known[place]
        # The start of a prefix is forgotten last, as in the replica's cache.
        for name in reversed(names):
            known[name] = None
            known.move_to_end(name)
        while len(known) > most:
            known.popitem(last=False)


ROUTERS = ("round-robin", "least-loaded", "prefix-aware")


def make_router(name: str, block_size: int) -> Router:
    """One of ROUTERS."""
    if name == "round-robin":
        return RoundRobin()
    return LeastLoaded() if name == "least-loaded" else PrefixAware(block_size)
