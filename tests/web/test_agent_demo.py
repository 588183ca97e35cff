"""`pagoda agent demo`, as one types it: its page in a browser, its form on a display of its own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagoda_agent.base.errors import ConfigError
from pagoda_agent.demo import desktop
from pagoda_agent.demo.script import CUSTOMER, TASK, reply
from tests.agent.rig.desktop import require
from tests.web.agent_server import wait_until
from tests.web.conftest import PATIENCE, expect

ROOT = Path(__file__).parents[2]


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """(the process, the address that it printed)"""
    require("Xvfb")
    pytest.importorskip("tkinter", reason="Debian: apt install python3-tk")
    hidden = ("DISPLAY", "WAYLAND_DISPLAY")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {
        "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1",
        "PAGODA_CACHE": str(tmp_path / "cache"), "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }  # fmt: skip
    command = [sys.executable, "-m", "pagoda", "agent", "demo", "--port", "0"]
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if found := re.search(r"Open (http://127\.0\.0\.1:\S+)", line):
                break
        else:
            raise AssertionError(said)
        assert "the model is a script" in said
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


def open_page(browser: Any, address: str) -> Any:
    page = browser.new_context(locale="en-US").new_page()
    page.set_default_timeout(3 * PATIENCE)
    page.goto(address)
    page.get_by_role("button", name="I understand").click()
    return page


def test_the_whole_agent(browser, demo, tmp_path) -> None:
    process, address = demo
    page = open_page(browser, address)
    expect(page.locator("#notice")).to_contain_text("the model is a script")
    expect(page.locator("#prompt")).to_have_value(TASK)
    page.click("#send")
    dialog = page.locator("#consent")
    dialog.wait_for()
    expect(page.locator("#consent-reason")).to_contain_text("send")
    expect(page.locator(".actions code").nth(1)).to_contain_text(CUSTOMER)
    page.get_by_role("button", name="Refuse").click()
    page.wait_for_selector("#state[data-state=done]")
    expect(page.locator("#transcript")).to_contain_text("leave the form as it is")
    page.click("#reset")
    page.wait_for_selector("#state[data-state=idle]")
    page.fill("#prompt", TASK)
    page.click("#send")
    dialog.wait_for()
    page.get_by_role("button", name="Allow", exact=True).click()
    page.wait_for_selector("#state[data-state=done]")
    expect(page.locator("#transcript")).to_contain_text("the order is on its way")
    assert page.locator(".step .shot img").first.evaluate("image => image.naturalWidth") > 300
    assert not (tmp_path / "config").exists(), "the user's settings are not touched"
    begun = children(process.pid)
    assert len(begun) >= 2, "the display and the form"
    process.send_signal(signal.SIGINT)
    # As a shell counts it: ended by Ctrl-C, or in peace.
    assert process.wait(60) in (0, 130, -signal.SIGINT)
    wait_until(lambda: all(gone(pid) for pid in begun))
    assert "Traceback" not in process.stdout.read()


def test_killed_it_leaves_nothing_behind(demo) -> None:
    process, _ = demo
    begun = children(process.pid)
    process.kill()
    wait_until(lambda: all(gone(pid) for pid in begun))


def test_what_is_missing_is_named(monkeypatch) -> None:
    monkeypatch.setattr(desktop.shutil, "which", lambda program: None)
    monkeypatch.setattr(desktop.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="apt install xvfb python3-tk"):
        desktop.check_installed()


def test_the_script_follows_the_form() -> None:
    places = {"name": [512, 320], "express": [0, 0], "send": [1024, 640]}
    form = {
        "places": places, "focused": False, "name": "", "delivery": "standard", "sent": False
    }  # fmt: skip
    assert reply(form, "").endswith("mouse 500 500 1")
    assert reply({**form, "focused": True}, "").endswith(f"typestr {CUSTOMER}")
    filled = {**form, "name": CUSTOMER}
    assert reply(filled, "").endswith("mouse 0 0 1")
    ready = {**filled, "delivery": "express"}
    assert reply(ready, "").endswith("mouse 1000 1000 1") and "send" in reply(ready, "")
    assert reply(ready, "Refused by the user: no.").endswith("Done")
    assert reply({**ready, "sent": True}, "").endswith("Done")
