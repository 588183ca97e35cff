"""The built-in tools in the chat page: a real server, a scripted model, headless Chromium."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pagoda.config.server import ServerConfig
from pagoda.text.parsers.select import parser_for
from pagoda.text.template.chat import ChatTemplate
from tests.server.fakes import FakeClient
from tests.unit.text.templates import QWEN_TOOLS
from tests.web.conftest import expect
from tests.web.test_tools import call


def test_a_command_and_an_edit_are_shown_whole_and_asked_for(visit: Any, tmp_path: Path) -> None:
    file = tmp_path / "poem"
    file.write_text("roses\nviolets\n")
    edits = [{"old_text": "roses\n", "new_text": "tulips\n"}]
    commands = [f"cd {tmp_path}\n{program} poem" for program in ("wc -l", "cat")]
    replies: Iterator[str] = iter(
        [
            call("built-in__edit_file", path=str(file), edits=edits),
            *(call("built-in__exec_shell_command", command=command) for command in commands),
            "Tulips it is.",
        ]
    )
    client = FakeClient(
        script=lambda request: next(replies).encode(), abilities={"max_model_len": 100_000}
    )
    visitor = visit(
        client,
        ServerConfig(tools="all", disable_uvicorn_access_log=True),
        parser=parser_for(QWEN_TOOLS),
        chat_template=ChatTemplate({"default": QWEN_TOOLS}, {}),
    ).open()
    page = visitor.page
    page.click("#open-tools")
    row = page.locator("#tools li[data-server=built-in]")
    row.get_by_role("switch").check()
    expect(row).to_contain_text("7 of 7 tools on")
    expect(row).to_contain_text("Tools of this server")
    page.locator("#tools .title button").click()
    visitor.send("please")

    consent = page.locator("dialog.consent")
    expect(consent).to_contain_text("edit_file, of built-in")
    expect(consent.locator("h3")).to_have_text(["path", "edits.0.old_text", "edits.0.new_text"])
    always = consent.get_by_role("button", name="Always in this chat")
    expect(always).to_be_visible()
    assert file.read_text() == "roses\nviolets\n"
    consent.get_by_role("button", name="Allow", exact=True).click()

    for command in commands:  # each one is asked for
        expect(consent.locator("pre")).to_have_text([command])
        expect(consent).to_contain_text("exec_shell_command, of built-in")
        expect(always).to_have_count(0)
        consent.get_by_role("button", name="Allow", exact=True).click()
    page.get_by_text("Tulips it is.").wait_for()
    assert (
        "tulips\nviolets\n\n[exit code: 0]" in bytes(client.requests[-1].prompt_token_ids).decode()
    )
    assert not visitor.problems


def test_a_running_command_shows_its_last_lines(visit: Any, tmp_path: Path) -> None:
    """More than what an answer keeps of the beginning; it goes on until the test lets it end."""
    command = (
        f"seq 1 20000; echo the last of them; "
        f"until test -e {tmp_path}/go; do sleep 0.05; done; echo over"
    )
    replies = iter([call("built-in__exec_shell_command", command=command), "Counted."])
    client = FakeClient(
        script=lambda request: next(replies).encode(), abilities={"max_model_len": 100_000}
    )
    visitor = visit(
        client,
        ServerConfig(tools="all", disable_uvicorn_access_log=True),
        parser=parser_for(QWEN_TOOLS),
        chat_template=ChatTemplate({"default": QWEN_TOOLS}, {}),
    ).open()
    page = visitor.page
    page.click("#open-tools")
    page.locator("#tools li[data-server=built-in]").get_by_role("switch").check()
    page.locator("#tools .title button").click()
    visitor.send("count")
    page.locator("dialog.consent").get_by_role("button", name="Allow", exact=True).click()
    output = page.locator(".message.tool pre.output")
    expect(output).to_have_text(re.compile(r"^199\d\d\n(\d+\n)+20000\nthe last of them$"))
    (tmp_path / "go").touch()
    page.get_by_text("Counted.").wait_for()
    expect(output).to_have_count(0)
    assert not visitor.problems
