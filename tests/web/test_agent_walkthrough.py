"""Walk-through A as docs/walkthroughs.md has it: the command, the page, a NanoKVM, a desktop.

The KVM is a fake one before a real X display, and the model a script behind HTTP.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.fakes import stations
from tests.agent.model_server import ModelServer, Step
from tests.agent.rig.desktop import Desktop, free_port, listens, require, start_desktop, wait_until
from tests.agent.rig.programs import datasheet, xterm, zenity
from tests.web.conftest import expect

DOCUMENT = Path(__file__).parents[2] / "docs" / "walkthroughs.md"
KVM = "192.168.1.50"
KEY, MODEL = "skxxxxxx", "qwen3-vl-8b-instruct"
PORT = 5000


def qwen(action: str, **arguments: Any) -> str:
    call = {"name": "computer_use", "arguments": {"action": action, **arguments}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


DONE = qwen("terminate", status="success")


def documented(word: str) -> str:
    """The document's command line with that word in it."""
    (line,) = (line for line in DOCUMENT.read_text().splitlines() if word in line)
    return line


@pytest.fixture
def desktop(tmp_path):
    require("zenity", "xterm", "xsetroot")
    with start_desktop(tmp_path / "desktop") as desktop:
        # A KVM takes a black screen for a computer that is off.
        desktop.run("xsetroot", "-solid", "#204060")
        yield desktop


@pytest.fixture
def model():
    # As the walk-through's `pagoda serve` calls it, and with its key.
    line = next(line for line in DOCUMENT.read_text().splitlines() if MODEL in line)
    assert f"--served-model-name {MODEL} --api-key {KEY}" in line
    with ModelServer(models=(MODEL,)) as server:
        yield server


@pytest.fixture
def agent(desktop: Desktop, tmp_path: Path):
    """(the process, the address that it printed)"""
    with stations.nanokvm(desktop) as url:
        _, password, place = re.fullmatch(r"nanokvm://(\w+):(\w+)@(.+)", url).groups()
        line = documented(KVM).replace(KVM, place)
        if listens(PORT):  # somebody else's here
            line += f" --port {free_port()}"
        environment = {
            **os.environ, "PAGODA_DRIVER_PASSWORD": password, "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(sys.path), "PAGODA_CACHE": str(tmp_path / "cache"),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }  # fmt: skip
        process = subprocess.Popen(
            shlex.split(line), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            for line in process.stdout:
                if found := re.search(r"Open (http://\S+)", line):
                    break
            else:
                raise AssertionError("the agent ended")
            yield process, found[1]
        finally:
            process.kill()
            process.communicate()


def set_up(page: Any, base_url: str) -> None:
    page.get_by_role("button", name="I understand").click()
    page.click("#open-settings")
    page.select_option("[data-field=api]", "openai")
    for name, value in {
        "api_key": KEY, "base_url": base_url, "model": MODEL, "images_kept": "2",
        "max_rounds": "12",
    }.items():  # fmt: skip
        page.fill(f"[data-field={name}]", value)
    page.click("#settings [type=submit]")
    page.locator("#settings").wait_for(state="hidden")


def send(page: Any, text: str) -> None:
    page.fill("#prompt", text)
    page.click("#send")


def state(page: Any, name: str) -> None:
    page.wait_for_selector(f"#state[data-state={name}]")


def test_as_written(browser, desktop, agent, model, tmp_path) -> None:
    process, address = agent
    page = browser.new_context(locale="en-US").new_page()
    page.set_default_timeout(60_000)
    page.goto(address)
    page.wait_for_selector("#pagoda:not(.locked)")
    set_up(page, f"{model.url}/v1")

    model.script = [
        Step(hang="before headers"), qwen("type", text="8.8.8.8"), qwen("key", keys=["Return"]),
        DONE,
    ]  # fmt: skip
    with zenity(desktop, "--entry", "--text=DNS server?") as dialog:
        send(page, "set dns server to 8.8.8.8")
        wait_until("the model's first request", lambda: model.requests, process)
        page.click("#pause")
        state(page, "paused")
        send(page, "the dialog is open already")
        state(page, "waiting_consent")
        expect(page.locator("#consent-reason")).to_contain_text("'8.8.8.8'")
        page.click("#allow")
        state(page, "done")
        assert dialog.answer() == (0, "8.8.8.8")
    assert "set dns server to 8.8.8.8" in model.requests[0].said()
    assert "the dialog is open already" not in model.requests[0].said()
    assert "the dialog is open already" in model.requests[1].said()
    assert {request.body["model"] for request in model.requests} == {MODEL}
    assert {request.headers["authorization"] for request in model.requests} == {f"Bearer {KEY}"}
    expect(page.locator("#meter")).to_contain_text("/12")

    page.click("#reset")
    state(page, "idle")
    expect(page.locator(".step")).to_have_count(0)
    first = len(model.requests)
    model.script = [qwen("left_click", coordinate=[500, 600]), DONE]
    with datasheet(desktop, tmp_path) as (file, content):
        send(page, "download raspberrypi datasheet")
        state(page, "done")
        wait_until("the download", file.exists)
        assert file.read_bytes() == content
    assert "dns server" not in model.requests[first].said(), "a conversation of its own"

    elsewhere = browser.new_context(locale="en-US").new_page()
    elsewhere.goto(address)
    elsewhere.get_by_text("This address was used before").wait_for()
    expect(elsewhere.locator("body")).to_have_text(
        re.compile(r"^\s*This address"), use_inner_text=True
    )
    assert process.poll() is None

    model.script = [qwen("type", text="x" * 5000)]
    with xterm(desktop, "cat"):
        send(page, "type for a while")
        wait_until("typing", lambda: desktop.observer.keys_down())
        page.close(run_before_unload=True)
        assert process.wait(60) == 0, "closing the page ends the agent"
        assert process.stdout.read().count("The page was closed, so the agent ends") == 1
        assert not desktop.observer.keys_down(), "and lets go of everything"
