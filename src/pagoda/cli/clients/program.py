"""Writing what a program reads, and running it as if the shell had."""

import contextlib
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from pagoda.base import env
from pagoda.base.whole import write_whole
from pagoda.cli.clients.client import Client, Setup

KEY_VARIABLE = "$PAGODA_API_KEY"
"""What is shown in the place of a key."""
_KEYS_OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)


def folder_of(client: Client) -> Path:
    """Where the settings for a program lie, apart from the program's own."""
    return env.config_dir() / "launch" / client.name


def write_files(folder: Path, setup: Setup) -> None:
    """The setup's files, for their owner alone: some hold a key."""
    for name, text in setup.files.items():
        path = folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, text, mode=0o600)


def undo(client: Client) -> list[Path]:
    """Remove what was written for a program; the files that were there."""
    folder = folder_of(client)
    removed = [folder / name for name in client.files if (folder / name).exists()]
    for path in removed:
        path.unlink()
        for parent in path.parents:
            if not parent.is_relative_to(env.config_dir()) or any(parent.iterdir()):
                break
            parent.rmdir()
    return removed


def run_program(words: list[str], setup: Setup) -> int:
    """Its exit status; 128 and the signal's number where one ended it. Keys of the terminal are
    the program's own."""
    process = subprocess.Popen(words, env=env.child_environment(**setup.environment))
    with _signals_for(process):
        status = process.wait()
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _signals_for(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (*_KEYS_OF_TERMINAL, *_PASSED_ON)}
    for number in _KEYS_OF_TERMINAL:
        signal.signal(number, lambda *_: None)
    for number in _PASSED_ON:
        signal.signal(number, lambda received, _frame: process.send_signal(received))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def as_typed(words: list[str], environment: dict[str, str]) -> str:
    """A command for a shell, each variable on a line; KEY_VARIABLE is one, everything else text."""
    variables = [f"{name}={_quoted(value)}" for name, value in environment.items()]
    return " \\\n  ".join([*variables, shlex.join(words)])


def _quoted(value: str) -> str:
    pieces = (shlex.quote(piece) if piece else "" for piece in value.split(KEY_VARIABLE))
    return f'"{KEY_VARIABLE}"'.join(pieces) if value else "''"
