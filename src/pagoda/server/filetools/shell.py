"""exec_shell_command: a command of `sh`, with bounds on its time and its output."""

import asyncio
import codecs
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable

from pagoda.server.filetools.processes import kill_group, started

DEFAULT_SECONDS = 30
MAX_SECONDS = 600
MAX_OUTPUT = 64 * 1024
DEFAULT_OUTPUT = 16 * 1024
_LEFT_OPEN = 1.0
"""Seconds that output is waited for once the command has ended: a process that left its group may
hold the other end for ever."""
_READ = 64 * 1024

Tell = Callable[[str], Awaitable[None]]
Watch = Callable[[bytes], None]


async def exec_shell_command(
    command: str, cwd: str, seconds: int, limit: int, tell: Tell, watch: Watch | None = None
) -> None:
    """Run it by `sh -c`, and tell its output as it comes: the first half of `limit` bytes at once,
    and of what follows the last half, when it has ended. `watch` gets all of it, piece by piece.
    Raises OSError where it cannot start.

    What it leaves in the background ends with it, and so does all where this is cancelled.
    """
    output = _Bounded(limit)
    timed_out = False
    reading, writing = os.pipe()
    async with _reader(reading) as reader:
        try:
            running = started(["sh", "-c", command], cwd, asyncio.subprocess.DEVNULL, writing)
            process = await running.__aenter__()
        finally:
            os.close(writing)
        try:
            watching = asyncio.create_task(_close_after(process, reader))
            try:
                async with asyncio.timeout(seconds):
                    while chunk := await reader.read(_READ):
                        if watch is not None:
                            watch(chunk)
                        if text := output.take(chunk):
                            await tell(text)
                    await process.wait()
            except TimeoutError:
                timed_out = True
            finally:
                watching.cancel()
        finally:
            await running.__aexit__(None, None, None)
    code = process.returncode or 0
    end = f"\n[exit code: {code if code >= 0 else 128 - code}]"
    if timed_out:
        end += f" [ended after {seconds} s, with all that it started; `timeout` may be longer]"
    await tell(output.rest() + end)


@contextlib.asynccontextmanager
async def _reader(descriptor: int) -> AsyncIterator[asyncio.StreamReader]:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    try:
        yield reader
    finally:
        transport.close()


async def _close_after(process: asyncio.subprocess.Process, reader: asyncio.StreamReader) -> None:
    await process.wait()
    kill_group(process)
    await asyncio.sleep(_LEFT_OPEN)
    reader.feed_eof()


class _Bounded:
    """The head and the tail of an output."""

    def __init__(self, limit: int):
        self._head = (limit + 1) // 2
        self._tail = limit - self._head
        self._kept = b""
        self._left_out = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, chunk: bytes) -> str:
        """What is to be told at once."""
        head, chunk = chunk[: self._head], chunk[self._head :]
        self._head -= len(head)
        kept = self._kept + chunk
        cut = max(0, len(kept) - self._tail)
        self._kept = kept[cut:]
        self._left_out += cut
        return self._decoder.decode(head)

    def rest(self) -> str:
        if not self._left_out:
            return self._decoder.decode(self._kept, final=True)
        note = f"\n[{self._left_out} bytes left out; send the output to a file to see all]\n"
        return self._decoder.decode(b"", final=True) + note + self._kept.decode(errors="replace")
