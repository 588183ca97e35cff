"""What `pagoda serve` says before anything slow happens."""

import json
import logging
import shlex
import subprocess
import sys

import pytest

from pagoda.cli.main import main, parse_command

# Each takes from 60 ms to a second to import, and people look at an empty screen meanwhile.
HEAVY = ("torch", "numpy", "PIL", "fastapi", "starlette", "uvicorn", "pydantic", "jinja2", "zmq")
FIRST_WORDS = f"""
import json, os, sys

class FirstWords:
    def isatty(self):
        return False

    def write(self, text):
        heavy = [name for name in {HEAVY!r} if name in sys.modules]
        print(json.dumps([text, heavy]), flush=True)
        os._exit(0)

sys.stderr = FirstWords()
from pagoda.cli.main import main
main(["serve", "smollm2", "--port", "0"])
"""


def test_the_first_line_waits_for_no_import():
    done = subprocess.run([sys.executable, "-c", FIRST_WORDS], capture_output=True, text=True)
    text, heavy = json.loads(done.stdout)
    assert "Pagoda" in text and "pagoda serve smollm2 --port 0" in text
    assert heavy == []


@pytest.fixture
def first_line(monkeypatch, capsys):
    """The first log line of a `pagoda serve` that then starts nothing."""

    def line(*words):
        monkeypatch.setattr("pagoda.server.launch.run_server", lambda *_, **__: 0)
        assert main(["serve", *words]) == 0
        return capsys.readouterr().err.splitlines()[0]

    root = logging.getLogger("pagoda")
    before = list(root.handlers), root.level, root.propagate
    yield line
    root.handlers[:], root.level, root.propagate = before


def test_what_was_asked_for_is_one_line(first_line):
    line = first_line("m", "b=other", "--max-model-len", "4k", "--chat-template", "a\nb", "--pin=b")
    assert line.partition("non-default args: ")[2] == (
        "pagoda serve m b=other --pin b --max-model-len 4000 --chat-template $'a\\x0ab'"
    )


def test_further_models_are_not_pasted_as_names_of_the_first(first_line):
    line = first_line("small=a.gguf", "b.gguf")
    pasted = shlex.split(line.partition("non-default args: ")[2])[1:]
    _, args = parse_command(pasted[0], pasted[1:])
    assert (args.model_tag, args.more_models) == ("a.gguf", ["b.gguf"])
    assert args.served_model_name == ("small",)


def test_a_key_is_never_shown(first_line, monkeypatch):
    assert "s3cret" not in first_line("m", "--api-key", "s3cret", "s3cret2")
    assert "--api-key" in first_line("m", "--api-key=s3cret")
    monkeypatch.setenv("PAGODA_API_KEY", "s3cret")
    assert "s3cret" not in first_line("m")
