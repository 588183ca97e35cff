"""Two agents never operate one computer, however its URL is written."""

import asyncio
import os
import subprocess
import sys

import pytest

from pagoda_agent.base.errors import DriverError
from pagoda_agent.drivers.registry import make_driver
from pagoda_agent.task.claim import claim
from tests.agent.test_operator import computer, make

__all__ = ["computer", "make"]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        ("x11:", "x11://:7.0", "x11://:8"),
        ("vnc://:secret@localhost", "vnc://127.0.0.1:0", "vnc://localhost:1"),
        ("nanokvm://admin:secret@Desk", "nanokvms://desk?layout=de", "nanokvm://desk:81"),
        ("pikvm://desk", "pikvm://me:secret@DESK:443?insecure=1", "pikvm://desk2"),
    ],
)
def test_a_computer_by_its_urls(one, same, other, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":7")
    assert make_driver(one).target == make_driver(same).target != make_driver(other).target
    assert "secret" not in make_driver(one).target + make_driver(same).target


async def test_two_agents_on_one_computer(make):
    first, second = make()[0], make()[0]
    await first.open()
    with pytest.raises(DriverError, match=rf"Another agent operates fake .*pid {os.getpid()}"):
        await second.open()
    await second.close()
    await first.close()
    await second.open()
    await second.close()


async def test_a_computer_that_cannot_be_reached_is_not_claimed(make, computer, monkeypatch):
    async def unreachable():
        raise DriverError("It is off.")

    monkeypatch.setattr(computer, "open", unreachable)
    for _ in range(2):
        with pytest.raises(DriverError, match="It is off"):
            await make()[0].open()


def test_a_process_that_is_killed_leaves_no_claim():
    holder = (
        "import sys; from pagoda_agent.task.claim import claim; "
        "held = claim('desk'); print(flush=True)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", f"{holder}; sys.stdin.read()"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        process.stdout.readline()
        with pytest.raises(DriverError, match=f"pid {process.pid}"):
            claim("desk")
        process.kill()
    claim("desk").close()


async def test_the_command_line_says_who_has_it():
    command = [sys.executable, "-m", "pagoda", "agent", "serve", "--port", "0"]
    with claim(make_driver("x11://:4021").target):
        done = await asyncio.to_thread(
            subprocess.run, [*command, "--driver", "x11://:4021.0"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert "Another agent operates the X display :4021" in line and f"pid {os.getpid()}" in line


def test_a_folder_that_cannot_be_written_to(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "file"))
    with pytest.raises(DriverError, match="cannot be written: Not a directory"):
        claim("desk")
