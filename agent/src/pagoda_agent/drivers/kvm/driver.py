"""What the drivers of KVMs share: certificate, HTTP, one link for keys and pointer, layouts."""

import asyncio
import ssl
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence

import httpx
from websockets.asyncio.client import ClientConnection

from pagoda_agent.base.errors import DriverError
from pagoda_agent.drivers.address import place
from pagoda_agent.drivers.base import Driver
from pagoda_agent.drivers.kvm.address import KvmAddress
from pagoda_agent.drivers.kvm.certificates import tls_context
from pagoda_agent.drivers.kvm.link import Link, Message, Send
from pagoda_agent.input.layouts import strokes

# Between two characters: with the keys' own pauses, about 30 ms for each.
_STROKE_PAUSE = 0.012
_TIMEOUT = httpx.Timeout(15.0, connect=5.0)
_PORTS = (80, 443)
DELAY = 0.3
"""Capture, encoding and network of a KVM take 50 to 150 ms, and the computer draws before that."""


class KvmDriver(Driver):
    """Subclasses log in, make pictures, and turn keys and pointer into messages."""

    heartbeat: Message
    gap = 0.0

    def __init__(self, address: KvmAddress):
        super().__init__()
        self.address = address
        self._context: ssl.SSLContext | None = None
        self._http: httpx.AsyncClient | None = None
        self._link: Link | None = None

    @abstractmethod
    async def _enter(self) -> None:
        """Log in, with `http` ready."""

    @abstractmethod
    async def _dial(self) -> ClientConnection: ...

    @abstractmethod
    def _all_up(self) -> Sequence[Message]:
        """What releases everything that may be down."""

    def _hear(self, message: str) -> None:
        """What the KVM says by itself."""

    @property
    def http(self) -> httpx.AsyncClient:
        if self._http is None:
            raise self._closed()
        return self._http

    def _closed(self) -> DriverError:
        return DriverError(f"The {self.name} driver is not open.")

    @property
    def target(self) -> str:
        # By http and by https it is the same KVM.
        port = None if self.address.port in _PORTS else self.address.port
        return f"the KVM {place(self.address.host, port)}"

    async def open(self) -> None:
        self._context = await tls_context(self.address)
        self._http = httpx.AsyncClient(
            base_url=f"{'https' if self.address.secure else 'http'}://{self.address}",
            # Without https there is nothing to check, and no redirect is followed to it.
            verify=self._context or False,
            timeout=_TIMEOUT,
            trust_env=False,
            # Answers are read as they are sent, so that their length is that of what is kept.
            headers={"Accept-Encoding": "identity"},
        )
        try:
            await self._enter()
            self._link = Link(
                str(self.address), self._dial, self._greet, lambda: bool(self.held), self._hear,
                self.heartbeat, self.gap,
            )  # fmt: skip
            await self._link.open()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._link is not None:
            if self.held:
                await self.release_all()
            await self._link.close()
            self._link = None
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def type_text(self, text: str) -> None:
        for code, modifiers in strokes(text, self.address.layout, self.name):
            await self.chord((*modifiers, code))
            await asyncio.sleep(_STROKE_PAUSE)

    async def _greet(self, send: Send) -> None:
        for message in self._all_up():
            await send(message)
        self._held_keys.clear()
        self._held_buttons.clear()

    async def _tell(self, messages: Sequence[Message], device: str) -> None:
        if self._link is None:
            raise self._closed()
        for message in messages:
            await self._link.send(message, device)


async def fetch(
    http: httpx.AsyncClient,
    method: str,
    path: str,
    limit: int = 1 << 20,
    json: object = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[httpx.Response, bytes]:
    """An answer and its body, read up to `limit` bytes within a minute.

    Raises DriverError where none comes, it is longer, or it leads elsewhere.
    """
    end = time.monotonic() + 60
    body = bytearray()
    try:
        async with http.stream(method, path, json=json, headers=headers) as response:
            async for part in response.aiter_raw():
                body += part
                if len(body) > limit or time.monotonic() > end:
                    raise DriverError(f"{http.base_url.host} answers {path} without end.")
    except httpx.TransportError as error:
        raise DriverError(
            f"{http.base_url.host} cannot be reached: {error or type(error).__name__}. Check the "
            "address, that the KVM is on, and that this machine is on its network."
        ) from error
    if response.is_redirect:
        target = response.headers.get("location", "")[:200]
        hint = " Use https (nanokvms://)." if target.startswith("https:") else ""
        raise DriverError(f"{http.base_url.host} leads on to {target!r}.{hint}")
    return response, bytes(body)
