"""What a driver lacks, on the page: its command, and the button that installs it."""

import sys
from typing import Any

import pytest

from pagoda_agent.drivers import needs
from pagoda_agent.drivers.absent import AbsentDriver
from pagoda_agent.drivers.needs import lacks
from tests.agent.fake_computer import FakeComputer
from tests.web.agent_server import wait_until
from tests.web.conftest import expect
from tests.web.test_agent_page import PHONE, visit

__all__ = ["visit"]

MODULE = "pagoda_agent_tiny"


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> str:
    """Code in place of pip, which brings what the VNC driver lacks."""
    monkeypatch.setitem(needs.EXTRAS, "vnc", (("pagoda-agent-tiny>=1,<2", MODULE),))
    monkeypatch.syspath_prepend(str(tmp_path))
    return (
        "import pathlib, sys, time\n"
        "print('Collecting', *sys.argv[1:], flush=True)\n"
        f"time.sleep(0.3); pathlib.Path({str(tmp_path / MODULE)!r} + '.py').touch()\n"
        "print('Successfully installed', flush=True)"
    )


@pytest.mark.parametrize("context", [{"viewport": {"width": 1280, "height": 800}}, PHONE])
def test_what_is_missing_is_installed(visit, lacking: str, context: dict[str, Any]) -> None:
    visitor = visit(context=context)
    server = visitor.server
    server.service.installer.command = lambda packages: [sys.executable, "-c", lacking, *packages]
    server.operator.driver = AbsentDriver("vnc://desk", lacks("vnc"))
    server.operator.make_driver = lambda url: FakeComputer()
    page = visitor.enter().page
    expect(page.locator("#notice")).to_contain_text(lacks("vnc").sentence)
    page.locator("#notice button").press("Enter")
    page.fill("[data-field=driver]", "vnc://desk")
    expect(page.locator("#lacks-text")).to_have_text(lacks("vnc").sentence)
    expect(page.locator("#lacks-command")).to_have_text(lacks("vnc").command)
    box = page.locator("#install").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= context["viewport"]["width"]
    page.locator("#install").press("Enter")
    expect(page.locator("#install-log")).to_contain_text("Collecting pagoda-agent-tiny>=1,<2")
    expect(page.locator("#install-log")).to_contain_text("Successfully installed")
    expect(page.locator("#install-end")).to_have_text("The vnc driver lacks nothing any more.")
    expect(page.locator("#lacks")).to_be_hidden()
    expect(page.locator("#notice")).to_be_hidden()
    page.click("#settings .close")
    wait_until(lambda: page.evaluate("document.querySelector('#screen img').naturalWidth") == 640)
    assert not visitor.problems


def test_it_can_be_stopped_and_a_failure_is_shown(visit, lacking: str) -> None:
    visitor = visit(context={"locale": "zh-CN", "color_scheme": "dark"})
    code = "import time\nprint('begun', flush=True); time.sleep(60)"
    service = visitor.server.service
    service.installer.command = lambda packages: [sys.executable, "-c", code]
    page = visitor.enter().page
    page.click("#open-settings")
    expect(page.locator("#lacks")).to_be_hidden()
    page.fill("[data-field=driver]", "vnc://desk")
    page.click("#install")
    expect(page.locator("#install-log")).to_have_text("begun\n")
    page.click("#stop-install")
    expect(page.locator("#install-end")).to_have_text("已停止，未完成的安装会被撤销。")
    wait_until(lambda: service.installer._task.done())
    code = "print('No network'); raise SystemExit(1)"
    page.click("#install")
    expect(page.locator("#install-end")).to_have_text("安装失败（退出状态 1）。")
    expect(page.locator("#install-log")).to_have_text("No network\n")
    expect(page.locator("#lacks")).to_be_visible()


def test_where_others_reach_it_the_command_is_only_shown(visit, lacking: str) -> None:
    visitor = visit()
    visitor.server.service.installer.allowed = False
    page = visitor.enter().page
    page.click("#open-settings")
    page.fill("[data-field=driver]", "vnc://desk")
    expect(page.locator("#lacks-command")).to_have_text(lacks("vnc").command)
    expect(page.locator("#install")).to_be_disabled()
    expect(page.locator("#install-refused")).to_contain_text("--allow-install")
