"""All responses of a server by their ids: those that run, and those that are kept."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from starlette.requests import HTTPConnection

from pagoda.base.log import get_logger
from pagoda.server.errors import ApiError, unavailable
from pagoda.server.responses.run import ResponseRun
from pagoda.server.responses.store import ResponseStore, Stored, owner_of

_log = get_logger(__name__)

# Nobody waits for these, so nothing else bounds them.
MAX_BACKGROUND = 1000
# A conversation of more turns than any context holds.
_MAX_TURNS = 10_000


class Responses:
    def __init__(self, store: ResponseStore):
        self._store = store
        self._runs: dict[str, ResponseRun] = {}
        """Running, or on their way into the store."""
        self._keeping: set[asyncio.Task[None]] = set()

    def check_room(self) -> None:
        """ApiError 503 where too many run already."""
        if len(self._runs) >= MAX_BACKGROUND:
            raise unavailable(f"{MAX_BACKGROUND} responses are being written already.")

    def keep(self, run: ResponseRun) -> None:
        """Hold on to a run, and store what it becomes."""
        self._runs[run.id] = run
        task = asyncio.create_task(self._keep(run))
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    def run(self, response_id: str) -> ResponseRun | None:
        return self._runs.get(response_id)

    async def find(self, response_id: str, param: str | None = None) -> Stored:
        """ApiError 404 for an unknown one; it names `param` of a body that asked for it."""
        run = self._runs.get(response_id)
        stored = await self._store.get(response_id) if run is None else run.stored()
        if stored is None:
            raise ApiError(
                404,
                f"There is no response {response_id[:64]!r} here: it was not stored, was deleted, "
                "or had to go for newer ones.",
                param=param,
            )
        return stored

    async def delete(self, response_id: str) -> None:
        """ApiError 404 for an unknown one; one that runs is cancelled."""
        run = self._runs.pop(response_id, None)
        if run is not None:
            run.cancel()
        elif not await self._store.delete(response_id):
            await self.find(response_id)

    async def conversation(
        self, response_id: str, unstored: Mapping[str, Stored] = MappingProxyType({})
    ) -> list[dict[str, Any]]:
        """Items of a response and of all that it follows; `unstored` are known beside those that
        are kept here."""
        turns: list[list[dict[str, Any]]] = []
        following: str | None = response_id
        while following is not None and len(turns) < _MAX_TURNS:
            stored = unstored.get(following)
            if stored is None:
                stored = await self.find(following, "previous_response_id")
            if stored.running:
                raise ApiError(
                    400, f"The response {following!r} is still being written.",
                    param="previous_response_id",
                )  # fmt: skip
            turns.append(stored.items())
            following = stored.previous_id
        return [item for turn in reversed(turns) for item in turn]

    async def resolve(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The items, with those that references name in the place of the references."""
        return [
            await self._referred(item, f"input.{index}.id")
            if item.get("type") == "item_reference"
            else item
            for index, item in enumerate(items)
        ]

    async def close(self) -> None:
        """Ends what still runs, and keeps it."""
        for run in list(self._runs.values()):
            run.cancel()
        await asyncio.gather(*self._keeping)
        self._store.close()

    async def _referred(self, reference: dict[str, Any], param: str) -> dict[str, Any]:
        item_id = str(reference.get("id"))
        owner = owner_of(item_id)
        if owner is not None:
            for item in (await self.find(owner, param)).items():
                if item.get("id") == item_id:
                    return item
        raise ApiError(404, f"There is no item {item_id[:64]!r} here.", param=param)

    async def _keep(self, run: ResponseRun) -> None:
        try:
            if run.builder.response.background:
                # Should the server be killed meanwhile, the next one knows of it.
                await self._store.put(run.stored())
            await run.over()
            if run.id in self._runs:
                await self._store.put(run.stored())
            else:
                await self._store.delete(run.id)
        except Exception as error:  # noqa: BLE001  # the edge: a full disk must not end replies
            _log.error("The response %s could not be stored: %s", run.id, error)
        finally:
            self._runs.pop(run.id, None)


def responses_of(request: HTTPConnection) -> Responses:
    responses: Responses = request.app.state.responses
    return responses
