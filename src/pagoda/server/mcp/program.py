"""An MCP server that is a program: a line of JSON for each message, over its pipes."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from pagoda.base.errors import PagodaError
from pagoda.base.log import get_logger
from pagoda.config.mcp import ProgramServer
from pagoda.server.mcp.limits import (
    MAX_LOG_LINE,
    MAX_LOG_LINES,
    MAX_MESSAGE_BYTES,
    MAX_VALUES,
    values_in,
)

_log = get_logger(__name__)

_GRACE = 2.0
"""Seconds that a program gets for each step of its end: no more input, SIGTERM, SIGKILL."""
_LOG_WINDOW = 10.0

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def program_streams(
    server: ProgramServer, ended: Callable[[str], None]
) -> AsyncIterator[Streams]:
    """Start the program, and give the two streams of a session with it. `ended` is told why, when
    it ends by itself. PagodaError where it cannot be started.

    Its process group ends with the context, whatever it started itself.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            server.command, *server.args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**get_default_environment(), **server.env},
            cwd=server.cwd,
            start_new_session=True,
            limit=MAX_MESSAGE_BYTES,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise PagodaError(
            f"The program {server.command!r} of the MCP server {server.name!r} cannot be started: "
            f"{why}. Check `command` and `cwd` in the file of --mcp-config."
        ) from None
    to_session, from_program = anyio.create_memory_object_stream[Incoming](0)
    to_program, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = [
        asyncio.create_task(_read(process, to_session, ended)),
        asyncio.create_task(_write(process, from_session)),
        asyncio.create_task(_log_errors(process, server.name)),
    ]
    try:
        yield from_program, to_program
    finally:
        for task in tasks[:2]:
            task.cancel()
        await asyncio.gather(*tasks[:2], return_exceptions=True)
        await _end(process)
        tasks[2].cancel()
        for stream in (to_session, from_program, to_program, from_session):
            stream.close()


async def _read(
    process: asyncio.subprocess.Process,
    to_session: MemoryObjectSendStream[Incoming],
    ended: Callable[[str], None],
) -> None:
    """The program's messages, until it ends. What is no message is what programs print that should
    not; it is dropped."""
    assert process.stdout is not None
    why = ""
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:
                why = f"it sent a message of more than {MAX_MESSAGE_BYTES // 2**20} MiB"
                break
            if not line:
                break
            if values_in(line) > MAX_VALUES:
                why = f"it sent a message that holds more than {MAX_VALUES} values"
                break
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                continue
            await to_session.send(SessionMessage(message))
    if not why:
        # Its output may be closed a moment before it ends.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _GRACE)
        code = process.returncode
        why = "it closed its output" if code is None else f"it ended with exit code {code}"
    ended(why)
    to_session.close()


async def _write(
    process: asyncio.subprocess.Process, from_session: MemoryObjectReceiveStream[SessionMessage]
) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        async for item in from_session:
            line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()


async def _log_errors(process: asyncio.subprocess.Process, name: str) -> None:
    """What the program writes to its standard error, in the log: so many characters of a line,
    and so many lines in a while."""
    assert process.stderr is not None
    since, lines, dropped = time.monotonic(), 0, 0
    async for text in _lines(process.stderr):
        if time.monotonic() - since > _LOG_WINDOW:
            if dropped:
                _log.info("MCP server %s: %d further lines are left out.", name, dropped)
            since, lines, dropped = time.monotonic(), 0, 0
        lines += 1
        if lines > MAX_LOG_LINES:
            dropped += 1
        else:
            _log.info("MCP server %s: %s", name, text)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    rest = b""
    while chunk := await stream.read(65536):
        *whole, rest = (rest + chunk).split(b"\n")
        rest = rest[: 4 * MAX_LOG_LINE]
        for line in whole:
            text = line[: 4 * MAX_LOG_LINE].decode(errors="replace").rstrip()
            # It forges no line of the log, and no terminal follows its orders.
            shown = "".join(c if c.isprintable() else "?" for c in text[:MAX_LOG_LINE])
            if shown:
                yield shown


async def _end(process: asyncio.subprocess.Process) -> None:
    """No more input, which ends most; then the whole group is told to end, then killed."""
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _GRACE)
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            # The group outlives the program where that left children behind.
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            return
        deadline = time.monotonic() + _GRACE
        while _group_lives(process.pid) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        if not _group_lives(process.pid):
            break
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _GRACE)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
