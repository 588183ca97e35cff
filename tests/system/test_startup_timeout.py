"""A start that hangs ends after --startup-timeout: with phase, process, memory and stacks in the
log, and the reason as its last line."""

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.system.harness import Served, wait_until


def last_words(server: Served, seconds: float) -> str:
    """The log's last line, once the server has given up and left nothing behind."""
    assert server.wait(seconds) == 1
    server.assert_nothing_left()
    return server.log[-1]


def report_of(server: Served) -> str:
    """The watchdog's lines."""
    report = "\n".join(line for line in server.log if line.startswith("WARNING"))
    assert "No progress for" in report
    for word in ("process ", "resident ", "free memory "):
        assert word in report
    return report


def test_a_hub_that_never_answers(serve, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{mute.getsockname()[1]}")
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        server = serve("hf:nobody/nothing", "--startup-timeout", 1)
        reason = last_words(server, 8)
    assert "not finished after 1." in reason and "(phase: fetch model)" in reason
    assert "huggingface.py" in report_of(server)


def test_an_engine_whose_import_hangs(serve, smollm2_gguf, tmp_path: Path, monkeypatch):
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(1000)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    server = serve(smollm2_gguf, "--startup-timeout", 1)
    reason = last_words(server, 8)
    assert "(phase: import torch); --startup-timeout ends it." in reason
    report = report_of(server)
    assert "thread import-torch" in report
    assert f"{tmp_path}/torch.py:2" in report


@pytest.mark.slow
def test_a_chat_template_that_never_ends(serve, smollm2_gguf, tmp_path: Path):
    pipe = tmp_path / "template.jinja"
    os.mkfifo(pipe)
    server = serve(smollm2_gguf, "--chat-template", pipe, "--startup-timeout", 10)
    # Long enough for the engine to become ready on a busy machine.
    reason = last_words(server, 20)
    assert "(phase: load tokenizer and chat template)" in reason
    report = report_of(server)
    assert "thread text-side:" in report and "text/template/" in report


def test_an_engine_that_is_frozen(serve, smollm2_gguf):
    """It cannot speak for itself; the server ends it after some seconds of patience."""
    server = serve(smollm2_gguf, "--startup-timeout", 1)
    wait_until(lambda: len(server.engines()) == 2)
    os.kill(server.engine_pid(), signal.SIGSTOP)
    assert "The engine was not ready after" in last_words(server, 10)


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_an_interrupt_while_the_hub_is_silent(serve, monkeypatch, number, expected):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{mute.getsockname()[1]}")
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        server = serve("hf:nobody/nothing")
        mute.settimeout(10)
        with mute.accept()[0]:
            code = server.stop(number, 10)  # the code counts here; test_stopping holds the 2 s
    assert code == expected
    server.assert_nothing_left()
    assert "Traceback" not in "\n".join(server.log)
