"""stop, list, rm and pull."""

import contextlib
import json
import signal
import subprocess
import sys

import pytest

from pagoda.base import runfile
from pagoda.cli.main import main

PORT = 65_001
WAITS = """
import signal, time
signal.signal(signal.SIGTERM, {handler})
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def server():
    """A process that is registered as the server on PORT, as `serve` registers itself."""
    with contextlib.ExitStack() as stack:

        def start(handler):
            script = WAITS.format(handler=handler)
            command = [sys.executable, "-c", script]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            process.stdout.readline()
            runfile.register(PORT, process.pid)
            return process

        yield start


def test_stop_ends_the_server_of_a_port(server, capsys, monkeypatch):
    process = server("signal.SIG_DFL")
    # The server is this test's child: unlike a user's, it is gone only once it is waited for.
    find = runfile.find
    monkeypatch.setattr(runfile, "find", lambda port: (process.poll(), find(port))[1])
    assert main(["stop", "--port", str(PORT)]) == 0
    assert "has stopped" in capsys.readouterr().out
    assert process.wait() == -signal.SIGTERM


def test_stop_says_when_the_server_goes_on(server, capsys):
    process = server("signal.SIG_IGN")
    assert main(["stop", "--port", str(PORT), "--timeout", "0.2"]) == 1
    assert f"kill -9 {process.pid}" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--port", str(PORT)], [str(PORT)]])
def test_stop_without_a_server(words, capsys):
    assert main(["stop", *words]) == 1
    assert f"No Pagoda server of yours runs on port {PORT}" in capsys.readouterr().err


@pytest.fixture
def empty_hub_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("pagoda.weights.hub.huggingface.cached_models", lambda: [])


@pytest.fixture
def cached(smollm2_gguf, tmp_path):
    """The default model's name in a cache of this test's own."""
    folder = tmp_path / "cache" / "models" / "smollm2"
    folder.mkdir(parents=True)
    (folder / smollm2_gguf.name).write_bytes(b"x" * 2048)
    return folder


def test_list_of_an_empty_cache(empty_hub_cache, capsys):
    assert main(["list"]) == 0
    assert "pagoda pull smollm2" in capsys.readouterr().out


def test_list_and_rm(empty_hub_cache, cached, capsys):
    assert main(["list"]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split() == ["NAME", "SIZE", "MODIFIED"]
    assert line.split()[:3] == ["smollm2", "2.00", "KiB"]
    assert main(["list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["bytes"]) == ("smollm2", 2048)
    assert main(["rm", "smollm2"]) == 0
    assert "2.00 KiB freed" in capsys.readouterr().out
    assert main(["rm", "smollm2"]) == 1
    assert "cache has no smollm2" in capsys.readouterr().err


def test_pull_of_nonsense_is_one_line(capsys):
    assert main(["pull", "nonsense"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("pagoda pull: ")
    assert len(error.splitlines()) == 1
