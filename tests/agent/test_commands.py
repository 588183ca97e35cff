"""`pagoda agent serve` and `mcp` as they are typed; the computer is drawn."""

import json
import os
import pty
import signal
import subprocess
import sys

import pytest

from pagoda.cli.main import main
from pagoda_agent.base import log
from pagoda_agent.cli import serve as serve_command
from pagoda_agent.runs.journal import JOURNAL, Journal
from pagoda_agent.secrets import Secrets
from pagoda_agent.service import listen
from pagoda_agent.service.server import Server
from pagoda_agent.settings import Settings
from pagoda_agent.task.operator import Operator
from tests.agent.fake_computer import FakeComputer

_MCP = """
import pathlib, sys
from pagoda_agent.task.operator import Operator
from pagoda_agent.secrets import Secrets
from pagoda_agent.settings import Settings
from pagoda_agent.cli import mcp
from pagoda.cli.main import main
from tests.agent.fake_computer import FakeComputer

runs = pathlib.Path(sys.argv.pop())
mcp.make_operator = lambda args: Operator(FakeComputer(), Settings(), Secrets({}), runs)
sys.exit(main())
"""


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def serve(monkeypatch, tmp_path, capsys):
    """The command with the given flags; it serves nobody. Gives its status and what it said."""

    async def end(self, sockets):
        sockets[0].close()
        await self._service.operator.close()

    def serve(*flags):
        # Other tests want the log where it goes.
        monkeypatch.setattr(log, "setup_logging", lambda level: None)
        monkeypatch.setattr(Server, "serve", end)
        status = main(["agent", "serve", *flags])
        said = capsys.readouterr()
        return status, said.out + said.err

    return serve


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    operator = Operator(FakeComputer(), Settings(), Secrets({}), tmp_path)
    monkeypatch.setattr(serve_command, "make_operator", lambda args, absent: operator)


@pytest.mark.parametrize("port", ["99999", "-1"])
def test_a_port_that_there_is_not(serve, drawn, port):
    assert serve("--port", port) == (1, f"pagoda agent: --port {port} must be from 0 to 65535.\n")


def test_a_host_that_there_is_not(serve, drawn):
    status, said = serve("--host", "no-such-host.invalid", "--port", "0")
    assert status == 1 and "Cannot listen on no-such-host.invalid" in said and "--host" in said


def test_beyond_this_machine_it_says_what_to_open_and_that_it_is_http(serve, drawn, monkeypatch):
    status, said = serve("--port", "0")
    assert status == 0 and said.startswith("Open http://127.0.0.1:")
    assert len(said.splitlines()) == 1
    monkeypatch.setattr(listen, "is_loopback", lambda listener: False)
    _status, said = serve("--port", "0")
    assert "this one's IP address" in said and "It is http" in said


def test_a_folder_that_cannot_hold_journals(serve, tmp_path):
    (tmp_path / "file").touch()
    flags = ["--driver", "vnc://127.0.0.1:1", "--port", "0", "--runs-dir"]
    status, said = serve(*flags, str(tmp_path / "file" / "runs"))
    assert status == 1 and "runs cannot be made: Not a directory" in said


def test_mcp_in_a_terminal_says_what_it_waits_for_and_ends_at_once(tmp_path):
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _MCP, "agent", "mcp", "--driver", "x11:", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        line = process.stderr.readline()
        assert "Waiting for an MCP client" in line and "Ctrl-C ends it" in line
        (server,) = json.loads(line.partition("configure it there as ")[2])["mcpServers"].values()
        assert server["args"] == ["agent", "mcp", "--driver", "x11:"]
        process.send_signal(signal.SIGINT)
        said, complaints = process.communicate(timeout=30)
    os.close(keyboard)
    os.close(terminal)
    assert (process.returncode, said, complaints) == (130, "", "")


@pytest.mark.parametrize("kind", ["resume", "replay"])
def test_a_run_that_there_is_not(kind, tmp_path, capsys):
    """It is told before any computer is looked for, with the runs that there are."""
    runs = tmp_path / "runs"
    words = ["agent", kind, "nosuch", "--runs-dir", str(runs)]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert f"There is no run 'nosuch' in {runs}, and no other" in said and "--runs-dir" in said
    for day in range(7):
        journal = Journal(runs / f"2026010{day}-120000-abcdef", str)
        journal.write("start", task=f"open\nthe  {day}. window " + "x" * 100)
        journal.close()
    (runs / "20260109-broken").mkdir()
    (runs / "20260109-broken" / JOURNAL).write_text("?\n")
    assert main(words) == 1
    first, *listed = capsys.readouterr().err.splitlines()
    assert first.endswith(f"There is no run 'nosuch' in {runs}. The latest there:")
    assert [line.split()[0][:8] for line in listed] == [f"2026010{day}" for day in (6, 5, 4, 3, 2)]
    assert listed[0].startswith("  20260106-120000-abcdef  open the 6. window xxx")
    assert all(len(line) < 100 for line in listed)
