"""The server's end of a socket to a zygote or a worker, on an event loop."""

import asyncio
import contextlib
import os
import socket
from typing import Any, TypeVar

import msgspec

from pagoda.engine.aside import wire

_CHUNK = 256 << 10
AnyT = TypeVar("AnyT")


class LinkClosedError(Exception):
    """The process at the other end is gone, or wrote nonsense."""


class Link:
    """One question at a time. Owns the socket, and descriptors that came and nobody took."""

    def __init__(self, end: socket.socket):
        end.setblocking(False)
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._data = bytearray()
        self._files: list[int] = []
        self._news: asyncio.Future[None] | None = None
        self.closed = False
        self._loop.add_reader(end, self._read)

    async def ask(self, question: bytes, answer: Any, give: socket.socket | None = None) -> Any:
        """The answer, of type `answer`. Raises LinkClosedError."""
        try:
            if give is not None:
                socket.send_fds(self._end, [question], [give.fileno()])
            else:
                await self._loop.sock_sendall(self._end, question)
            return await self._answer(answer)
        except (OSError, msgspec.MsgspecError) as error:
            self.close()
            raise LinkClosedError from error

    async def _answer(self, kind: Any) -> Any:
        while True:
            data = self._data
            if len(data) >= wire.HEAD.size:
                length = wire.HEAD.unpack_from(data)[0]
                if len(data) >= wire.HEAD.size + length:
                    break
            if self.closed:
                raise LinkClosedError
            self._news = self._loop.create_future()
            await self._news
        self._data = bytearray()
        return wire.decoded(memoryview(data)[wire.HEAD.size :], kind)

    def take_file(self) -> int:
        """The descriptor that came with the answer; the caller's from now on."""
        if not self._files:
            raise LinkClosedError
        return self._files.pop(0)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._end)
        self._end.close()
        for file in self._files:
            os.close(file)
        self._files.clear()
        self._tell()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError, InterruptedError):
            try:
                data, files, _, _ = socket.recv_fds(self._end, _CHUNK, 1)
            except ConnectionError:
                data, files = b"", []
            self._files += files
            if not data:
                self.close()
                return
            self._data += data
            self._tell()

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
