"""The newest picture of a NanoKVM's MJPEG stream, which is read all the time."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

import httpx

from pagoda_agent.base.errors import DriverError, LoginError
from pagoda_agent.drivers.nanokvm.api import Api
from pagoda_agent.drivers.nanokvm.mjpeg import MjpegParser, boundary_of

_PATH = "/api/stream/mjpeg"
# A stream may rest while the screen does; one that rests longer is asked for anew, and begins with
# a picture.
_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_RETRIES = (0.1, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Arrival:
    jpeg: bytes
    number: int
    """Counts up with every picture."""
    at: float
    """As time.monotonic() has it."""


class Video:
    """`start` begins to read; `trouble` says why nothing comes, empty while the stream runs."""

    def __init__(self, api: Api, http: httpx.AsyncClient):
        self._api, self._http = api, http
        self.trouble = "the stream has not begun"
        self.newest: Arrival | None = None
        self._number = 0
        self._came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._read())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def next(self, seconds: float) -> Arrival | None:
        """The first picture that comes from now on; None where none does in time."""
        self._came.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._came.wait()
        except TimeoutError:
            return None
        return self.newest

    async def _read(self) -> None:
        tries = 0
        while True:
            before = self._number
            try:
                await self._read_stream()
                self.trouble = "the stream has ended"
            except (DriverError, httpx.TransportError) as error:
                self.trouble = str(error) or type(error).__name__
                if isinstance(error, LoginError):
                    return  # further tries would lock the account
            tries = 0 if self._number > before else tries + 1
            await asyncio.sleep(_RETRIES[min(tries, len(_RETRIES) - 1)])

    async def _read_stream(self) -> None:
        token = self._api.token
        async with self._http.stream(
            "GET", _PATH, headers=self._api.headers, timeout=_TIMEOUT
        ) as response:
            if response.status_code != 401:
                if response.status_code != 200:
                    raise DriverError(f"{_PATH} answers {response.status_code}")
                parser = MjpegParser(boundary_of(response.headers.get("content-type", "")))
                self.trouble = ""
                async for data in response.aiter_raw():
                    for jpeg in parser.feed(data):
                        self._number += 1
                        self.newest = Arrival(jpeg, self._number, time.monotonic())
                        self._came.set()
                return
        await self._api.login(token)
