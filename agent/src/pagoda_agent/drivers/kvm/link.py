"""The one WebSocket over which a KVM takes keys and pointer, kept open while the driver is."""

import asyncio
import itertools
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from pagoda_agent.base.errors import ConnectionLostError, DriverError, LoginError
from pagoda_agent.drivers.kvm.address import KvmAddress

Message = bytes | str
Send = Callable[[Message], Awaitable[None]]

# KVMs hang up on clients that are silent for 90 s; their own pages speak every 10 s.
_HEARTBEAT = 10.0
# Seconds before each try to connect again; the last one for all further tries.
_RETRIES = (0.05, 0.2, 0.5, 1.0, 2.0)
# How long an action waits for a connection that is being made again.
_PATIENCE = 5.0
# A connection that goes this soon after a message may have lost it.
_UNSURE = 1.0
_MAX_MESSAGE = 1 << 20


async def dial(
    address: KvmAddress, path: str, headers: dict[str, str], context: ssl.SSLContext | None
) -> ClientConnection:
    """A WebSocket to the KVM. LoginError where it refuses the session, else DriverError."""
    scheme = "wss" if context else "ws"
    try:
        return await connect(
            f"{scheme}://{address}{path}",
            additional_headers=headers,
            ssl=context,
            # The KVM is on this network, whatever proxy the browser needs.
            proxy=None,
            compression=None,
            open_timeout=_PATIENCE,
            ping_interval=_HEARTBEAT,
            ping_timeout=_HEARTBEAT,
            close_timeout=1.0,
            max_size=_MAX_MESSAGE,
        )
    except InvalidStatus as error:
        if error.response.status_code in (401, 403):
            raise LoginError(f"{address} refused the session.") from error
        raise DriverError(
            f"{address} answered {error.response.status_code} to {path}; is it a KVM of this kind?"
        ) from error
    except (OSError, TimeoutError, EOFError, InvalidHandshake) as error:
        raise DriverError(
            f"{address} takes no keyboard and mouse: {error or 'no answer'}."
        ) from error


class Link:
    """Sends in order, and connects again when the connection goes.

    `connects` makes a connection. `greets` is called on each, first of all: it releases whatever
    may be down. `holds` says whether anything is down because of us. What the KVM says goes to
    `hears`.
    """

    def __init__(
        self,
        name: str,
        connects: Callable[[], Awaitable[ClientConnection]],
        greets: Callable[[Send], Awaitable[None]],
        holds: Callable[[], bool],
        hears: Callable[[str], None],
        heartbeat: Message,
        gap: float = 0.0,
    ):
        self._name = name
        self._connects, self._greets, self._holds, self._hears = connects, greets, holds, hears
        self._heartbeat = heartbeat
        self._gap = gap
        """Seconds between messages for different devices, which the KVM may reorder."""
        self._socket: ClientConnection | None = None
        self._ready = asyncio.Event()
        self._order = asyncio.Lock()
        self._interrupted = False
        self._trouble = ""
        self._device = ""
        self._last = float("-inf")
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        await self._connect()
        self._tasks = [asyncio.create_task(self._keep()), asyncio.create_task(self._beat())]

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._ready.clear()
        if self._socket is not None:
            await self._socket.close()
            self._socket = None

    async def send(self, message: Message, device: str) -> None:
        """Raises ConnectionLostError, once, for the action that the connection was lost under,
        after connecting again; nothing is sent then."""
        async with self._order:
            if self._interrupted or not self._ready.is_set():
                await self._wait()
            if device != self._device:
                await asyncio.sleep(self._last + self._gap - time.monotonic())
            assert self._socket is not None
            self._last = time.monotonic()
            self._device = device
            try:
                await self._socket.send(message)
            except ConnectionClosed:
                self._ready.clear()
                self._interrupted = True
                await self._wait()
            self._last = time.monotonic()

    async def _wait(self) -> None:
        """For a connection. Raises ConnectionLostError, once for each loss that matters."""
        try:
            async with asyncio.timeout(_PATIENCE if self._tasks else 0):
                await self._ready.wait()
        except TimeoutError:
            self._interrupted = False
            raise ConnectionLostError(
                f"The connection to the keyboard and mouse of {self._name} is lost, and could not "
                f"be made again: {self._trouble or 'no answer'}"
            ) from None
        if self._interrupted:
            self._interrupted = False
            raise ConnectionLostError(
                f"The connection to the keyboard and mouse of {self._name} was lost; it is made "
                "again and everything is released. The last action may be done in part."
            )

    async def _connect(self) -> None:
        socket = await self._connects()
        try:
            await self._greets(socket.send)
        except ConnectionClosed as error:
            raise DriverError(f"{self._name} hung up at once: {error}.") from error
        self._socket = socket
        self._ready.set()

    async def _keep(self) -> None:
        while True:
            assert self._socket is not None
            with suppress(ConnectionClosed):
                async for message in self._socket:
                    if isinstance(message, str):
                        self._hears(message)
            self._ready.clear()
            if self._holds() or time.monotonic() - self._last < _UNSURE:
                self._interrupted = True
            for pause in itertools.chain(_RETRIES, itertools.repeat(_RETRIES[-1])):
                await asyncio.sleep(pause)
                try:
                    await self._connect()
                    break
                except LoginError as error:
                    # Further tries would lock the account.
                    self._trouble = str(error)
                    return
                except DriverError as error:
                    self._trouble = str(error)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT)
            if self._socket is not None:
                with suppress(ConnectionClosed):
                    await self._socket.send(self._heartbeat)
