"""Coding agents of others as programs, each in a home of its own, and a model for them."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pagoda.core.messages import AddRequest

# A slow machine that starts two of them at once; they take a few seconds.
PATIENCE = 240
_RESULT = re.compile(r"<tool_response>\n")


def find_program(name: str) -> str:
    """Its path: below the folder that PAGODA_CLIENTS names, or on PATH. Skips the test without."""
    folder = os.environ.get("PAGODA_CLIENTS", "")
    places = [folder, f"{folder}/node_modules/.bin", f"{folder}/bin"] if folder else []
    found = shutil.which(name, path=os.pathsep.join([*places, os.environ.get("PATH", "")]))
    if found is None or shutil.which("node") is None:
        pytest.skip(
            f"{name} or node is not installed. Run `npm install @openai/codex opencode-ai` in a "
            "folder, and name it in PAGODA_CLIENTS."
        )
    return found


@dataclass
class Home:
    """A place for a program that never sees the user's own files."""

    folder: Path

    def __post_init__(self) -> None:
        self.work.mkdir(parents=True)
        self.user.mkdir()

    @property
    def work(self) -> Path:
        """The project that the agent works in."""
        return self.folder / "work"

    @property
    def user(self) -> Path:
        return self.folder / "home"

    def run(self, *command: str, **environment: str) -> str:
        """What it printed; it must end well."""
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.user),
            "XDG_CONFIG_HOME": str(self.user / ".config"),
            "XDG_DATA_HOME": str(self.user / ".local/share"),
            "XDG_CACHE_HOME": str(self.user / ".cache"),
            "XDG_STATE_HOME": str(self.user / ".local/state"),
            "TMPDIR": str(self.user),
            "NO_COLOR": "1",
            **environment,
        }
        process = subprocess.Popen(
            command, cwd=self.work, env=variables, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=PATIENCE)
        finally:
            # Wrappers leave the program itself behind, and a program its tools.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        assert process.returncode == 0, printed[-3000:]
        return printed


Turn = str | Callable[[str], str]
"""What the model writes, or what makes that of its prompt."""


def call(name: str, **arguments: Any) -> str:
    told = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{told}\n</tool_call>"


def shell(command: str) -> Turn:
    """A call of the shell that the prompt offers: its name is another one in each program."""
    forms = {
        "exec_command": {"cmd": command},
        "shell_command": {"command": command},
        "shell": {"command": ["sh", "-c", command]},
        "bash": {"command": command, "description": "Runs it"},
    }

    def write(prompt: str) -> str:
        name = next(name for name in forms if f'"name": "{name}"' in prompt)
        return call(name, **forms[name])

    return write


def scripted(*turns: Turn, otherwise: str = "A title") -> Callable[[AddRequest], bytes]:
    """A model that writes the next turn after each result of a tool. `otherwise` answers prompts
    without tools: agents ask for a title on the side."""

    def write(request: AddRequest) -> bytes:
        prompt = bytes(request.prompt_token_ids).decode(errors="replace")
        if "<tools>" not in prompt:
            return otherwise.encode()
        results = len(_RESULT.findall(prompt))
        turn = turns[min(results, len(turns) - 1)]
        return (turn if isinstance(turn, str) else turn(prompt)).encode()

    return write
