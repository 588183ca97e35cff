"""The tools of --tools: a list of them, and a call of one."""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from pagoda.server.filetools import child
from pagoda.server.filetools.arguments import DESCRIBED, ExecShellCommand
from pagoda.server.filetools.processes import started
from pagoda.server.filetools.shell import MAX_OUTPUT, MAX_SECONDS, Tell, Watch, exec_shell_command
from pagoda.server.mcp.protocol import McpTool
from pagoda.server.mcp.tools import digest_of

_SECONDS = 30.0
"""After which work on files is given up."""
_AT_ONCE = 8
"""Calls that run; others wait."""
STREAMED = "exec_shell_command"

Answer = dict[str, Any]


class Builtin:
    def __init__(self, names: Sequence[str]):
        self._described = {name: DESCRIBED[name] for name in DESCRIBED if name in names}
        self._running = asyncio.Semaphore(_AT_ONCE)
        self._writing = asyncio.Lock()
        """One writes at a time: an edit reads first, and nothing may come in between."""

    def tools(self) -> list[McpTool]:
        return [
            McpTool(
                name=name,
                title=one.title,
                description=one.description,
                schema=(schema := one.schema()),
                digest=digest_of(name, one.description, schema),
                writes=one.writes,
                each_time=name == STREAMED,
            )
            for name, one in self._described.items()
        ]

    async def call(
        self,
        name: str,
        params: dict[str, Any],
        cwd: str = "",
        tell: Tell | None = None,
        watch: Watch | None = None,
    ) -> Answer:
        """The answer, which has `error` where the call failed; never raises for what a model asked.

        `cwd` "" is the server's own. `tell` gets the output of a command as it comes, and the
        answer has none then; `watch` gets it beside the answer. Who cancels it ends all that it
        started.
        """
        cwd = cwd or os.getcwd()
        if not os.path.isabs(cwd):
            return {"error": f"The working directory {cwd!r} is no absolute path."}
        try:
            checked = self._described[name].arguments.model_validate(params)
        except ValidationError as error:
            return {"error": _faults(name, error)}
        async with self._running:
            if isinstance(checked, ExecShellCommand):
                return await _shell(checked, cwd, tell, watch)
            lock = self._writing if self._described[name].writes else contextlib.nullcontext()
            async with lock:
                return await _on_files(name, checked.model_dump(), cwd)


def _faults(name: str, error: ValidationError) -> str:
    told = []
    for fault in error.errors(include_url=False, include_input=False)[:3]:
        field = ".".join(map(str, fault["loc"]))
        told.append(f"invalid {field}: {fault['msg']}" if field else fault["msg"])
    return f"{name}: {'; '.join(told)}."


async def _shell(
    asked: ExecShellCommand, cwd: str, tell: Tell | None, watch: Watch | None
) -> Answer:
    texts: list[str] = []

    async def keep(text: str) -> None:
        texts.append(text)

    try:
        await exec_shell_command(
            asked.command, cwd, min(asked.timeout, MAX_SECONDS),
            min(asked.max_output_size, MAX_OUTPUT), tell or keep, watch,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return {"error": f"The command cannot be started in {cwd}: {reason}."}
    return {"plain_text_response": "".join(texts)}


async def _on_files(name: str, params: dict[str, Any], cwd: str) -> Answer:
    """Done by a process of its own, which is killed where it takes too long."""
    job = json.dumps({"tool": name, "params": params, "cwd": cwd}).encode()
    # -P: what lies in the working directory is not imported.
    command = (sys.executable, "-P", "-m", child.__name__)
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as told:
        asked.write(job)
        asked.seek(0)
        async with started(command, None, asked, told) as process:
            try:
                async with asyncio.timeout(_SECONDS):
                    await process.wait()
            except TimeoutError:
                return {"error": f"{name} was ended after {_SECONDS:.0f} s; ask for less at once."}
        told.seek(0)
        raw = told.read()
    if process.returncode:
        return {"error": f"{name} failed: {raw.decode(errors='replace').strip()[-500:]}"}
    answer: Answer = json.loads(raw.decode(errors="replace"))
    return answer
