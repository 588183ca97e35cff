"""How a chat asks its model: options, presets, the context, two models side by side."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import pagoda.web
from pagoda.config.sampling import NUMBERS
from pagoda.text.template.chat import ChatTemplate
from tests.server.conftest import wait_until
from tests.server.fakes import REPLY, TEMPLATE, FakeClient
from tests.web.conftest import Visit, expect
from tests.web.test_chat_page import prompt_of
from tests.web.test_chat_tabs import second_tab

SAMPLERS = Path(pagoda.web.__file__).parent / "assets" / "samplers.js"


def bodies_of(visitor: Visit) -> list[dict[str, Any]]:
    """The requests for replies, as they are sent."""
    bodies: list[dict[str, Any]] = []

    def note(request: Any) -> None:
        if request.url.endswith("/v1/chat/completions"):
            bodies.append(request.post_data_json)

    visitor.page.on("request", note)
    return bodies


def options(visitor: Visit) -> Any:
    visitor.page.click("#open-options")
    dialog = visitor.page.locator("dialog#options")
    dialog.wait_for()
    return dialog


def close(visitor: Visit) -> None:
    visitor.page.keyboard.press("Escape")
    visitor.page.locator("dialog#options").wait_for(state="detached")


def test_a_chat_has_its_own_system_prompt_and_sampling(visit) -> None:
    visitor = visit(client := FakeClient()).open()
    bodies = bodies_of(visitor)
    page = visitor.page
    page.click("#open-settings")
    page.fill("[data-setting=system]", "Of all chats.")
    page.fill("[data-sampling=temperature]", "0.25")
    page.fill("[data-sampling=top_p]", "0.75")
    page.click("#close-settings")
    visitor.send("first")
    visitor.reply()
    dialog = options(visitor)
    assert dialog.locator("[data-option=system]").get_attribute("placeholder") == "Of all chats."
    assert dialog.locator("[data-sampling=top_p]").get_attribute("placeholder") == "0.75"
    dialog.locator("[data-option=system]").fill("Of this chat.")
    dialog.locator("[data-sampling=temperature]").fill("0.5")
    dialog.get_by_text("More", exact=True).click()
    dialog.locator("[data-sampling=min_p]").fill("0.1")
    dialog.locator("[data-sampling=stop]").fill("END\n\\n\\n")
    close(visitor)
    page.locator("#open-options.set").wait_for()
    page.reload()
    visitor.reply()
    visitor.send("second")
    wait_until(lambda: len(client.requests) == 2)
    assert prompt_of(client).startswith("system: Of this chat.\nuser: first\n")
    sent = {name: bodies[1].get(name) for name in ("temperature", "top_p", "min_p", "stop")}
    assert sent == {"temperature": 0.5, "top_p": 0.75, "min_p": 0.1, "stop": ["END", "\n\n"]}
    # Another chat has none of it.
    page.click("#new-chat")
    expect(page.locator("#open-options.set")).to_have_count(0)
    visitor.send("third")
    wait_until(lambda: len(client.requests) == 3)
    assert prompt_of(client).startswith("system: Of all chats.\nuser: third\n")
    assert bodies[2]["temperature"] == 0.25 and "stop" not in bodies[2]


def test_options_of_a_chat_without_messages_survive_a_reload(visit) -> None:
    visitor = visit(client := FakeClient()).open()
    options(visitor).locator("[data-option=system]").fill("Be brief.")
    close(visitor)
    visitor.page.reload()
    visitor.page.locator("#open-options.set").wait_for()
    visitor.send("hi")
    visitor.reply()
    assert prompt_of(client).startswith("system: Be brief.\n")
    visitor.page.click("#new-chat")
    expect(visitor.page.locator("#open-options.set")).to_have_count(0)


def test_every_number_of_the_sampler_has_a_field() -> None:
    text = SAMPLERS.read_text()
    fields = set(re.findall(r'{ name: "(\w+)", word', text))
    assert fields >= {number.name for number in NUMBERS if number.column}


def test_options_reach_the_other_tab(visit) -> None:
    one = visit(client := FakeClient()).open()
    one.send("first")
    one.reply()
    two = second_tab(one).open("/" + one.page.evaluate("location.hash"))
    options(one).locator("[data-option=system]").fill("Be brief.")
    close(one)
    two.send("second")
    wait_until(lambda: len(client.requests) == 2)
    assert prompt_of(client).startswith("system: Be brief.\n")


@pytest.mark.parametrize(
    ("mentioned", "choices", "chosen", "sent"),
    [
        ("enable_thinking", ["", "on", "off"], "off",
         {"chat_template_kwargs": {"enable_thinking": False}}),
        ("reasoning_effort", ["", "low", "medium", "high"], "high", {"reasoning_effort": "high"}),
    ],
)  # fmt: skip
def test_thinking_is_switched_as_the_template_can(visit, mentioned, choices, chosen, sent) -> None:
    template = ChatTemplate({"default": f"{{# {mentioned} #}}{TEMPLATE}"}, {})
    visitor = visit(chat_template=template).open()
    bodies = bodies_of(visitor)
    dialog = options(visitor)
    switch = dialog.locator("[data-option=thinking]")
    switch.wait_for()
    found = switch.locator("option").evaluate_all("all => all.map((option) => option.value)")
    assert found == choices
    switch.select_option(chosen)
    dialog.locator("[data-option=budget]").fill("100")
    close(visitor)
    visitor.send("hi")
    visitor.reply()
    assert {name: bodies[0].get(name) for name in sent} == sent
    assert bodies[0]["thinking_token_budget"] == 100


def test_no_thinking_where_the_model_does_none(visit) -> None:
    visitor = visit().open()
    with visitor.page.expect_response("**/api/show"):
        dialog = options(visitor)
    assert dialog.locator("[data-option=thinking], [data-option=budget]").count() == 0


def save_preset(visitor: Visit, name: str, system: str) -> None:
    dialog = options(visitor)
    dialog.locator("[data-option=system]").fill(system)
    dialog.get_by_placeholder("Name of the preset").fill(name)
    dialog.get_by_role("button", name="Save preset").click()
    dialog.get_by_role("button", name=name, exact=True).wait_for()
    close(visitor)


def test_presets_are_kept_and_travel_with_the_chats(visit, tmp_path) -> None:
    visitor = visit(client := FakeClient()).open()
    page = visitor.page
    page.select_option("#model", "fake-alias")
    save_preset(visitor, "Pirate", "Talk like a pirate.")
    page.click("#new-chat")
    save_preset(visitor, "<b>Bold", "Be bold.")
    page.select_option("#model", "fake")
    page.reload()
    page.wait_for_selector("#pagoda:not(.locked)")
    dialog = options(visitor)
    dialog.get_by_role("button", name="Pirate", exact=True).click()
    expect(dialog.locator("[data-option=system]")).to_have_value("Talk like a pirate.")
    close(visitor)
    expect(page.locator("#model")).to_have_value("fake-alias")
    visitor.send("hi")
    visitor.reply()
    assert prompt_of(client).startswith("system: Talk like a pirate.\n")
    page.click("#open-settings")
    with page.expect_download() as download:
        page.click("#export-all")
    saved = tmp_path / "chats.json"
    saved.write_text(download.value.path().read_text())
    assert [one["name"] for one in json.loads(saved.read_text())["presets"]] == [
        "<b>Bold",
        "Pirate",
    ]
    page.click("#close-settings")
    dialog = options(visitor)
    for name in ("Pirate", "<b>Bold"):
        dialog.get_by_role("button", name=f"Delete the preset “{name}”").click()
        dialog.get_by_role("button", name=name, exact=True).wait_for(state="detached")
    close(visitor)
    page.set_input_files("#import-file", [saved])
    page.locator("#toast.shown", has_text="1 chat imported").wait_for()
    dialog = options(visitor)
    expect(dialog.locator(".chip")).to_have_text(["<b>Bold", "Pirate"])


def test_a_bad_preset_spoils_no_import(visit, tmp_path) -> None:
    visitor = visit().open()
    bad = tmp_path / "bad.json"
    presets = [{"name": "x", "options": {"budget": -1, "evil": 1, "system": "ok"}}, {"name": 5}]
    bad.write_text(json.dumps({"format": "pagoda-chats", "chats": [], "presets": presets}))
    visitor.page.set_input_files("#import-file", [bad])
    visitor.page.locator("#toast.shown", has_text="bad.json").wait_for()
    assert visitor.page.evaluate("localStorage.getItem('pagoda.presets')") is None
    bad.write_text(json.dumps({"format": "pagoda-chats", "chats": [], "presets": presets[:1]}))
    visitor.page.set_input_files("#import-file", [bad])
    visitor.page.locator("#toast.shown", has_text="0 chats imported").wait_for()
    kept = json.loads(visitor.page.evaluate("localStorage.getItem('pagoda.presets')"))
    assert kept == [{"name": "x", "model": "", "options": {"system": "ok"}}]


def test_the_meter_counts_the_context(visit) -> None:
    visitor = visit(FakeClient(abilities={"max_model_len": 1000})).open()
    page = visitor.page
    meter = page.locator("#meter")
    expect(meter).to_be_hidden()
    visitor.send("hi")
    visitor.reply()
    # A byte is a token, and one ends the reply.
    used = len("user: hi\nassistant: ") + len(REPLY.encode()) + 1
    page.locator("#meter", has_text=re.compile(rf"^\s*{used} of 1,000 tokens$")).wait_for()
    # A long draft and its files are counted by the server before they are sent.
    page.fill("#prompt", "x" * 500)
    page.locator("#meter", has_text=f"{used + 500} of 1,000 tokens").wait_for()
    file = {"name": "a.md", "mimeType": "", "buffer": b"y" * 350}
    page.set_input_files("#file", [file])
    page.locator("#meter.near", has_text="nearly full").wait_for()
    page.fill("#prompt", "x" * 700)
    page.locator("#meter.near", has_text="no longer fits").wait_for()
    page.fill("#prompt", "")
    page.locator("#attachments").get_by_role("button", name="Remove").click()
    page.locator("#meter:not(.near)", has_text=f"{used} of 1,000 tokens").wait_for()


def compare(visitor: Visit, model: str) -> None:
    visitor.page.click("#compare")
    visitor.page.locator("dialog.ask").get_by_role("button", name=model).click()
    visitor.page.locator("#attachments .chip", has_text=f"beside {model}").wait_for()


def test_two_models_answer_side_by_side_and_one_is_kept(visit) -> None:
    client = FakeClient(delay=0.02)
    client.script = lambda request: f"Reply {client.requests.index(request) + 1}.".encode()
    visitor = visit(client).open()
    bodies = bodies_of(visitor)
    page = visitor.page
    compare(visitor, "fake-alias")
    visitor.send("question")
    wait_until(lambda: len(client.running) == 2)
    sides = page.locator(".pair section")
    for i in range(2):
        sides.nth(i).locator(".message footer").wait_for()
    assert [body["model"] for body in bodies] == ["fake", "fake-alias"]
    expect(sides.locator("strong")).to_have_text(["fake", "fake-alias"])
    kept = sides.nth(0).locator(".markdown").last.inner_text()
    boxes = [sides.nth(i).bounding_box() for i in range(2)]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"] and boxes[0]["y"] == boxes[1]["y"]
    # It is still a pair after a reload.
    page.reload()
    sides.nth(1).locator(".message footer").wait_for()
    page.get_by_role("button", name="Keep this: fake", exact=True).click()
    page.locator(".pair").wait_for(state="detached")
    expect(visitor.reply().locator(".markdown").last).to_have_text(kept)
    # The other one is a version.
    expect(visitor.reply().locator(".pager")).to_have_text("1/2")
    visitor.send("and?")
    wait_until(lambda: len(client.requests) == 3)
    assert prompt_of(client) == f"user: question\nassistant: {kept}\nuser: and?\nassistant: "


def test_a_comparison_ends_with_its_chat_and_says_that_tools_are_off(visit) -> None:
    visitor = visit().open()
    page = visitor.page
    # A chat with tools, as the dialog of tools leaves it.
    options = json.dumps({"tools": {"server:shop": []}})
    page.evaluate("options => sessionStorage.setItem('pagoda.options', options)", options)
    page.reload()
    wrench = page.locator("#open-tools")
    expect(wrench).to_have_class(re.compile(r"\bset\b"))
    compare(visitor, "fake-alias")
    expect(wrench).to_be_disabled()
    expect(wrench).to_have_attribute("title", re.compile("No tools while two models answer"))
    expect(wrench).not_to_have_class(re.compile(r"\bset\b"))
    page.locator("#attachments .chip").get_by_role("button", name="Remove").click()
    expect(wrench).to_be_enabled()
    expect(wrench).to_have_attribute("title", "Tools of this chat")
    expect(wrench).to_have_class(re.compile(r"\bset\b"))
    compare(visitor, "fake-alias")
    visitor.send("question")
    expect(page.locator(".pair section .message footer")).to_have_count(2)
    expect(page.locator("#attachments .chip")).to_have_count(1)
    page.click("#new-chat")
    expect(page.locator("#attachments .chip")).to_have_count(0)
    expect(wrench).to_be_enabled()


def test_stop_ends_both_replies(visit) -> None:
    client = FakeClient(delay=0.1)
    visitor = visit(client).open()
    compare(visitor, "fake-alias")
    visitor.send("question")
    for i in range(2):
        visitor.page.locator(".pair section").nth(i).get_by_text("Hel").wait_for()
    visitor.page.keyboard.press("Escape")
    wait_until(lambda: len(client.aborted) == 2)
    # Without a choice, the chat goes on from the second.
    client.delay = 0
    visitor.page.locator("#attachments .chip").get_by_role("button", name="Remove").click()
    visitor.send("go on")
    visitor.page.get_by_text(REPLY).wait_for()
    expect(visitor.page.locator(".pair")).to_have_count(0)
    expect(visitor.page.locator(".message.assistant .pager")).to_have_text("2/2")


def test_nothing_to_compare_with_one_model(visit) -> None:
    visitor = visit()
    visitor.page.route("**/v1/models", lambda route: route.fulfill(json={"data": [{"id": "one"}]}))
    visitor.open()
    expect(visitor.page.locator("#compare")).to_be_hidden()
