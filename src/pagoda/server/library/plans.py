"""Plans of models for who looks for one: one at a time, since each measures the machine."""

import asyncio

from pagoda.engine.served.fleet import Fleet
from pagoda.engine.served.model_entry import ModelEntry
from pagoda.planner.planned import Advice, PlannedModel, PlanQuestion
from pagoda.server.errors import ApiError, unavailable

_MOST_WAITING = 16


class Plans:
    def __init__(self, advice: Advice | None):
        """Without advice nothing is planned."""
        self._advice = advice
        self._turn = asyncio.Lock()
        self._waiting = 0

    def known(self) -> list[str]:
        """Models that can be planned without a network."""
        return [] if self._advice is None else self._advice.known()

    async def plan(self, fleet: Fleet, entry: ModelEntry) -> PlannedModel:
        """Beside the models that are loaded. Raises ApiError 501 without advice, 503 where too many
        wait for theirs."""
        if self._advice is None:
            raise ApiError(501, "This server plans no models; `pagoda doctor MODEL` does.")
        if self._waiting >= _MOST_WAITING:
            raise unavailable("Many models are being planned; ask again in a moment.")
        self._waiting += 1
        try:
            async with self._turn:
                freed = sum(_freed(other) for other in fleet.entries if _can_go(other, entry))
                return await self._advice.plan(PlanQuestion(entry.config, freed))
        finally:
            self._waiting -= 1


def _can_go(other: ModelEntry, entry: ModelEntry) -> bool:
    """Whether it is unloaded where `entry` needs its room; `entry` itself takes no second one."""
    return other is entry or not other.pinned


def _freed(entry: ModelEntry) -> int:
    """What is taken of free memory now; a KV pool is touched when used."""
    return entry.planned_bytes - entry.untouched_bytes
