"""Commands from anybody, served by one task in the order in which they came."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from pagoda_agent.base.errors import AgentError

Command = Callable[[], Coroutine[Any, Any, None]]


class Inbox:
    def __init__(self) -> None:
        self._commands: deque[tuple[Command, asyncio.Future[None]]] = deque()
        self._news = asyncio.Event()
        self._closed = False

    def put(self, command: Command) -> asyncio.Future[None]:
        """Served whether anybody waits for it or not; the future ends with it, or has the
        AgentError that it raised."""
        if self._closed:
            return asyncio.ensure_future(command())
        served = asyncio.get_running_loop().create_future()
        self._commands.append((command, served))
        self._news.set()
        return served

    async def serve(self) -> None:
        """The next command, once there is one. When it is cancelled or has a bug, the error comes
        out here, and it stays the next."""
        await self._news.wait()
        command, served = self._commands[0]
        error: AgentError | None = None
        try:
            await command()
        except AgentError as raised:
            error = raised
        self._commands.popleft()
        if not self._commands:
            self._news.clear()
        if served.done():
            return  # nobody waits any more
        if error is None:
            served.set_result(None)
        else:
            served.set_exception(error)

    async def close(self) -> None:
        """Serve what is left. From now on a command serves itself: nothing is left that it could
        come in the way of."""
        while self._commands:
            await self.serve()
        self._closed = True
