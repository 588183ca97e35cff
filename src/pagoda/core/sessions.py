"""Whose cached blocks nobody will ask for again."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from pagoda.core.kvcache.block_hash import BlockHashes
from pagoda.core.messages import AddRequest

# Subagents that are remembered; the hashes of one with 32,000 tokens take some 100 KB.
_MOST_AGENTS = 256


class _Agent(NamedTuple):
    first: int
    """How many of its first prompt's blocks were cached before it came: others have them, too."""
    known: BlockHashes
    """The blocks of its last request."""


class Sessions:
    """Notices when the subagents of a session are done: its main agent, which waits for them, asks
    again.

    What they left in the cache is of no use then, and newer than what the main agents of other
    sessions wait to come back to. Names that clients make up keep nothing in the cache; at worst
    what one named itself goes early.
    """

    def __init__(self) -> None:
        self._agents: OrderedDict[tuple[str | None, str], dict[str, _Agent]] = OrderedDict()
        self._num_agents = 0

    def arrive(
        self, message: AddRequest, known: BlockHashes, num_cached: int
    ) -> list[Sequence[bytes]]:
        """Take note of a request of which so many blocks are cached. The hashes of blocks that were
        of use to subagents alone that are now done, a sequence for each."""
        if message.session is None:
            return []
        key = (message.cache_salt, message.session)
        if message.agent is None:
            done = self._agents.pop(key, {})
            self._num_agents -= len(done)
            return [agent.known.hashes[self._num_shared(agent) :] for agent in done.values()]
        agents = self._agents.setdefault(key, {})
        self._agents.move_to_end(key)
        last = agents.get(message.agent)
        self._num_agents += last is None
        agents[message.agent] = _Agent(num_cached if last is None else last.first, known)
        while self._num_agents > _MOST_AGENTS:
            _, oldest = self._agents.popitem(last=False)
            self._num_agents -= len(oldest)
        return []

    def _num_shared(self, agent: _Agent) -> int:
        """How many of its first blocks others have, too."""
        mine = agent.known.hashes
        most = agent.first
        for agents in self._agents.values():
            for other in agents.values():
                theirs = other.known.hashes
                while most < min(len(mine), len(theirs)) and mine[most] == theirs[most]:
                    most += 1
        return most
