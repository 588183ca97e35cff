"""The way from the chat page to the agent: for models that see, and only to be typed."""

import shlex
from typing import Any

import pytest

from pagoda.config.server import ServerConfig
from pagoda_agent.cli.main import parse_kind
from tests.server.conftest import wait_until
from tests.web.conftest import Visit, expect

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
NAME = "it's $eyes"


def card(name: str, *kinds: str) -> dict[str, Any]:
    return {"id": name, "architecture": {"input_modalities": ["text", *kinds]}}


def with_models(visitor: Visit, *cards: dict[str, Any]) -> Any:
    listed = {"data": list(cards)}
    visitor.page.route("**/v1/models", lambda route: route.fulfill(json=listed))
    return visitor.open().page


def test_only_for_a_model_that_sees(visit) -> None:
    page = with_models(visit(), card("blind", "audio"), card("eyes", "image"))
    expect(page.locator("#model option")).to_have_count(2)
    expect(page.locator("#open-agent")).to_be_hidden()
    page.select_option("#model", "eyes")
    expect(page.locator("#open-agent")).to_be_visible()
    page.select_option("#model", "blind")
    expect(page.locator("#open-agent")).to_be_hidden()


def test_the_command_starts_the_agent_with_this_server_and_its_model(visit) -> None:
    visitor = visit()
    page = with_models(visitor, card(NAME, "image"))
    page.locator("#open-agent").press("Enter")
    command = page.locator("#agent-command")
    expect(command).to_contain_text("agent serve")
    words = shlex.split(command.text_content())
    assert words[:3] == ["pagoda", "agent", "serve"]
    _module, parsed = parse_kind(words[2:])
    assert parsed.base_url == visitor.server.url + "/v1"
    assert (parsed.model, parsed.driver) == (NAME, "x11:")
    page.fill("#agent-driver", "vnc://10.0.0.7?layout=de&unicode=1")
    expect(command).to_contain_text("vnc://10.0.0.7")
    _module, parsed = parse_kind(shlex.split(command.text_content())[2:])
    assert parsed.driver == "vnc://10.0.0.7?layout=de&unicode=1"
    expect(page.locator("#agent-key")).to_be_hidden()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#agent .copy").press("Enter")
    wait_until(lambda: page.evaluate("navigator.clipboard.readText()") == command.text_content())
    page.keyboard.press("Escape")
    expect(page.locator("#agent")).to_be_hidden()
    assert not visitor.problems


def test_with_a_key_the_agent_is_given_it_by_the_environment(visit) -> None:
    visitor = visit(config=ServerConfig(api_key=("sesame",)))
    page = visitor.page
    page.add_init_script("sessionStorage.setItem('pagoda.key', 'sesame')")
    with_models(visitor, card("eyes", "image"))
    page.click("#open-agent")
    expect(page.locator("#agent-key")).to_be_visible()
    told = page.locator("#agent-command").text_content()
    assert told.splitlines()[0] == "read -rs PAGODA_API_KEY && export PAGODA_API_KEY"
    assert "sesame" not in page.locator("#agent").text_content()


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_the_header_has_room_on_a_phone(visit, locale: str) -> None:
    name = "Qwen3-VL-8B-Instruct-with-a-long-name"
    page = with_models(visit(context={"locale": locale, **PHONE}), card(name, "image"))
    page.locator("#open-agent").wait_for()
    for button in page.locator("main > header button:visible").all():
        box = button.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390
    page.click("#open-agent")
    box = page.locator("#agent").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390
    overflow = "node => node.scrollWidth > node.clientWidth"
    assert not page.locator("#agent").evaluate(overflow)
