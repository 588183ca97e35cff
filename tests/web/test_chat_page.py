"""The chat page, used as people use it: in headless Chromium."""

import base64
import json
import re
import struct
import zlib
from typing import Any

from pagoda.config.server import ServerConfig
from pagoda.text.parsers.select import parser_for
from pagoda.text.template.chat import ChatTemplate
from tests.server.conftest import wait_until
from tests.server.fakes import REPLY, FakeClient, Guessing
from tests.unit.text.templates import QWEN_TOOLS
from tests.web.conftest import expect

MARKDOWN = """Paragraph with **bold** and `code`.

```python
def f(x):
    return "text"  # why
```

Euler: $e^{i\\pi} + 1 = 0$.
"""
HOSTILE = (
    "<script>window.hacked = 1</script> <img src=x onerror='window.hacked = 2'>\n\n"
    "[click](javascript:window.hacked=3) ![p](https://elsewhere.example/p.png) "
    "<svg onload=window.hacked=4> <a href='javascript:1'>a</a>\n\n"
    "```html\n<script>window.hacked = 5</script>\n```\n\n"
    "$\\text{<img src=x onerror=window.hacked=6>}$\n"
)


# What takes the fake half a minute unless it is hurried, and has no space that a page would trim.
LONG = "Hello" + "o" * 2000
SLOW = 0.05


def says(text: str, **options: Any) -> FakeClient:
    return FakeClient(script=lambda request: text.encode(), **options)


def prompt_of(client: FakeClient) -> str:
    return bytes(client.requests[-1].prompt_token_ids).decode()


def test_first_chat(visit) -> None:
    client = Guessing()
    page = (visitor := visit(client).open()).page
    expect(page.locator("#model")).to_have_value("fake")
    page.locator("#model-state[data-state=ready]").wait_for()
    visitor.send("hi there")
    reply = visitor.reply()
    expect(reply.locator(".markdown").last).to_have_text(REPLY)
    expect(reply.locator(".facts")).to_contain_text("tok/s")
    expect(reply.locator(".facts")).to_contain_text("s to first token")
    # Each step but the first had four guesses.
    steps = len(REPLY.encode()) // 3
    told = f"{2 * steps} of {4 * steps} guessed tokens came true"
    expect(reply.locator(".facts")).to_have_attribute("title", re.compile(told))
    expect(page.locator("#chats .open")).to_have_text(["hi there"])
    # It is still there when the page is loaded again, and goes on from where it was.
    page.reload()
    expect(visitor.reply().locator(".markdown").last).to_have_text(REPLY)
    visitor.send("more")
    page.locator(".message.assistant").nth(1).locator("footer").wait_for()
    assert prompt_of(client) == f"user: hi there\nassistant: {REPLY}\nuser: more\nassistant: "
    assert not visitor.problems
    assert all(url.startswith((visitor.server.url, "data:", "blob:")) for url in visitor.requested)


def test_a_stopped_reply_tells_its_tokens(visit) -> None:
    """Two tokens to a character, which come in one piece."""
    client = FakeClient(script=lambda request: ("é" * 500).encode(), delay=SLOW)
    visitor = visit(client).open()
    visitor.send("go on")
    visitor.page.locator(".message.assistant .markdown", has_text="ééé").wait_for()
    visitor.page.keyboard.press("Escape")
    reply = visitor.reply()
    expect(reply).to_contain_text("Stopped.")
    characters = len(reply.locator(".markdown").last.inner_text())
    told = int(re.search(r"(\d+) tokens", reply.locator(".facts").inner_text())[1])
    assert 2 * characters - 2 <= told <= 2 * characters + 2


def test_keyboard(visit) -> None:
    replies = iter([LONG, REPLY])
    client = FakeClient(script=lambda request: next(replies).encode(), delay=SLOW)
    visitor = visit(client).open()
    page = visitor.page
    page.fill("#prompt", "one")
    page.press("#prompt", "Shift+Enter")
    page.keyboard.type("two")
    # What an input method sends when Enter accepts a suggestion.
    compose = "new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true})"
    page.evaluate(f"document.querySelector('#prompt').dispatchEvent({compose})")
    expect(page.locator("#prompt")).to_have_value("one\ntwo")
    assert not client.requests
    page.press("#prompt", "Enter")
    page.locator(".message.assistant .markdown", has_text="Hel").wait_for()
    page.keyboard.press("Escape")
    reply = visitor.reply()
    expect(reply).to_contain_text("Stopped.")
    expect(reply).to_contain_text("Hel")
    wait_until(lambda: len(client.aborted) == 1)
    # The model goes on from there.
    kept = reply.locator(".markdown").last.inner_text()
    reply.get_by_role("button", name="Continue").click()
    wait_until(lambda: len(client.requests) == 2)
    assert prompt_of(client).endswith(f"assistant: {kept}")
    reply = visitor.reply()
    expect(reply.locator(".markdown").last).to_have_text(kept + REPLY)


def test_text_is_appended(visit) -> None:
    """A finished paragraph stays the same node while the rest streams in."""
    client = says("First.\n\n" + "word " * 500, delay=0.02)
    visitor = visit(client).open()
    page = visitor.page
    visitor.send("go")
    page.locator(".markdown p", has_text="word word").wait_for()
    page.evaluate("document.querySelector('.message.assistant p').dataset.mark = 'kept'")
    page.locator(".markdown p", has_text="word " * 50).wait_for()
    assert client.running, "the reply ended too early for this test"
    expect(page.locator("p[data-mark=kept]")).to_have_text("First.")
    client.delay = 0
    visitor.reply()


def test_retry_and_edit_keep_all_versions(visit) -> None:
    client = FakeClient(script=lambda request: f"Reply {len(client.requests)}.".encode())
    visitor = visit(client).open()
    page = visitor.page
    visitor.send("question")
    visitor.reply().get_by_role("button", name="Retry").click()
    page.get_by_text("Reply 2.").wait_for()
    expect(visitor.reply().locator(".pager")).to_have_text("2/2")
    visitor.reply().get_by_role("button", name="Previous version").click()
    page.get_by_text("Reply 1.").wait_for()
    page.locator(".message.user").hover()
    page.get_by_role("button", name="Edit", exact=True).click()
    page.locator(".editor textarea").fill("better question")
    page.locator(".editor").get_by_role("button", name="Send").click()
    page.get_by_text("Reply 3.").wait_for()
    assert prompt_of(client) == "user: better question\nassistant: "
    page.locator(".message.user").hover()
    page.locator(".message.user").get_by_role("button", name="Previous version").click()
    page.get_by_text("Reply 2.").wait_for()
    expect(page.locator(".bubble")).to_have_text(["question"])


def test_thought_is_folded(visit) -> None:
    visitor = visit(says("<Let me think.|The answer.")).open()
    visitor.send("why")
    reply = visitor.reply()
    expect(reply.get_by_text("Let me think.")).to_be_hidden()
    reply.locator(".thought summary").click()
    expect(reply.get_by_text("Let me think.")).to_be_visible()
    expect(reply.locator(".thought summary")).to_contain_text("Thought for")


def test_markdown_code_and_math(visit) -> None:
    visitor = visit(says(MARKDOWN), context={"permissions": ["clipboard-read", "clipboard-write"]})
    visitor.open().send("show")
    reply = visitor.reply()
    expect(reply.locator("strong")).to_have_text(["bold"])
    expect(reply.locator(".code .keyword")).to_have_text(["def", "return"])
    expect(reply.locator(".code .string")).to_have_text(['"text"'])
    expect(reply.locator(".code .comment")).to_have_text(["# why"])
    expect(reply.locator("math msup mi").first).to_have_text("e")
    reply.get_by_role("button", name="Copy code").click()
    read = "navigator.clipboard.readText()"
    code = 'def f(x):\n    return "text"  # why\n'
    wait_until(lambda: visitor.page.evaluate(read) == code)
    reply.locator("footer").get_by_role("button", name="Copy").click()
    wait_until(lambda: visitor.page.evaluate(read) == MARKDOWN)


def test_tools(visit) -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    replies = iter([call, "It is sunny."])
    client = FakeClient(script=lambda request: next(replies).encode())
    template = ChatTemplate({"default": QWEN_TOOLS}, {})
    visitor = visit(client, parser=parser_for(QWEN_TOOLS), chat_template=template).open()
    page = visitor.page
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    page.click("#open-settings")
    page.fill("[data-setting=tools]", json.dumps([tool]))
    page.click("#close-settings")
    visitor.send("weather?")
    reply = visitor.reply()
    expect(reply).to_contain_text("Called weather")
    expect(reply).to_contain_text('"city": "Paris"')
    hostile = "<img src=x onerror='window.hacked = 1'>"
    reply.locator(".results textarea").fill(hostile)
    reply.get_by_role("button", name="Send result").click()
    page.get_by_text("It is sunny.").wait_for()
    assert f"<tool_response>\n{hostile}\n</tool_response>" in prompt_of(client)
    expect(page.locator(".message.tool")).to_contain_text(hostile)
    assert page.evaluate("window.hacked") is None


def test_script_in_model_text_does_not_run(visit) -> None:
    visitor = visit(says(HOSTILE))
    name = "<img src=x onerror='window.hacked = 7'>"
    cards = {"data": [{"id": name}]}
    visitor.page.route("**/v1/models", lambda route: route.fulfill(json=cards))
    page = visitor.open().page
    expect(page.locator("#model")).to_contain_text(name)
    visitor.page.route("**/v1/chat/completions", lambda route: route.continue_(
        post_data={**route.request.post_data_json, "model": "fake"}
    ))  # fmt: skip
    visitor.send(HOSTILE)
    reply = visitor.reply()
    page.locator(".chat-row").hover()
    page.get_by_role("button", name="Rename").click()
    page.locator(".chat-row input").fill(name)
    page.keyboard.press("Enter")
    expect(page.locator("#chats .open")).to_have_text([name])
    page.reload()
    reply = visitor.reply()
    assert page.evaluate("window.hacked") is None
    expect(reply.locator("script, svg:not(.icon), img, [onerror]")).to_have_count(0)
    addresses = reply.locator("a").evaluate_all("links => links.map((link) => link.protocol)")
    assert set(addresses) <= {"https:"}
    assert not any("elsewhere" in url for url in visitor.requested)
    assert not visitor.problems


def test_policy_stops_scripts_that_get_in_all_the_same(visit) -> None:
    page = (visitor := visit().open()).page
    page.evaluate("""() => {
        const script = document.createElement("div");
        script.innerHTML = "<img src=x onerror='window.hacked = 1'>";
        document.body.append(script);
    }""")
    wait_until(lambda: bool(visitor.problems))
    assert "Content Security Policy" in " ".join(visitor.problems)
    assert page.evaluate("window.hacked") is None


def test_errors_are_shown_with_a_way_on(visit) -> None:
    client = FakeClient(die_after=5)
    visitor = visit(client).open()
    visitor.send("hi")
    notice = visitor.page.locator(".notice.error")
    notice.wait_for()
    expect(notice).to_contain_text("killed by a test")
    expect(visitor.reply()).to_contain_text(REPLY[:4])
    client.state, client.die_after = "ready", None
    notice.get_by_role("button", name="Retry").click()
    visitor.page.get_by_text(REPLY).wait_for()


def test_refused_requests_say_why(visit) -> None:
    visitor = visit().open()
    page = visitor.page
    page.click("#open-settings")
    page.fill("[data-sampling=max_tokens]", "100000")
    page.click("#close-settings")
    visitor.send("hi")
    page.locator(".notice.error", has_text="2048").wait_for()


def test_dropped_stream_keeps_its_text(visit) -> None:
    visitor = visit()
    chunk = {"choices": [{"index": 0, "delta": {"content": "Half a sent"}}]}
    visitor.page.route("**/v1/chat/completions", lambda route: route.fulfill(
        content_type="text/event-stream", body=f"data: {json.dumps(chunk)}\n\n"
    ))  # fmt: skip
    visitor.open().send("hi")
    reply = visitor.reply()
    expect(reply).to_contain_text("Half a sent")
    expect(reply).to_contain_text("connection was lost")
    visitor.page.unroute("**/v1/chat/completions")
    reply.locator(".notice").get_by_role("button", name="Retry").click()
    visitor.page.get_by_text(REPLY).wait_for()


def test_api_key(visit) -> None:
    config = ServerConfig(api_key=("sesame",), disable_uvicorn_access_log=True)
    visitor = visit(config=config)
    page = visitor.page
    page.goto(visitor.server.url)
    page.locator("#key-dialog[open]").wait_for()
    expect(page.locator("#pagoda.locked")).to_have_count(1)
    page.fill("#key-field", "wrong")
    page.get_by_role("button", name="Unlock").click()
    page.get_by_text("This key was not accepted.").wait_for()
    page.fill("#key-field", "sesame")
    page.get_by_role("button", name="Unlock").click()
    page.locator("#pagoda:not(.locked)").wait_for()
    visitor.send("hi")
    expect(visitor.reply()).to_contain_text(REPLY)
    # Kept for this visit only, unless the user wants more.
    stored = "[sessionStorage, localStorage].map((storage) => storage.getItem('pagoda.key'))"
    wait_until(lambda: page.evaluate(stored) == ["sesame", None])


def test_sampling_and_system_prompt(visit) -> None:
    client = FakeClient()
    visitor = visit(client).open()
    page = visitor.page
    page.click("#open-settings")
    page.fill("[data-setting=system]", "Be brief.")
    values = {"temperature": "0.5", "top_p": "0.9", "top_k": "7", "max_tokens": "4", "seed": "42"}
    for name, value in values.items():
        page.fill(f"[data-sampling={name}]", value)
    page.click("#close-settings")
    visitor.send("hi")
    expect(visitor.reply()).to_contain_text("token limit")
    sampling = client.requests[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.max_tokens, sampling.seed) == (4, 42)
    assert prompt_of(client) == "system: Be brief.\nuser: hi\nassistant: "


def test_chats_can_be_searched_exported_and_imported(visit, tmp_path) -> None:
    visitor = visit().open()
    page = visitor.page
    for question in ("about cats", "about dogs"):
        page.click("#new-chat")
        visitor.send(question)
        visitor.reply()
    expect(page.locator("#chats .open")).to_have_text(["about dogs", "about cats"])
    page.fill("#search", "CATS")
    expect(page.locator("#chats .open")).to_have_text(["about cats"])
    page.fill("#search", "")

    def export(kind: str) -> str:
        row = page.locator(".chat-row", has_text="about cats")
        row.hover()
        row.get_by_role("button", name="Export").click()
        with page.expect_download() as download:
            page.get_by_role("button", name=kind).click()
        return download.value.path().read_text()

    markdown = export("Markdown")
    assert markdown.startswith("# about cats\n\n## You\n\nabout cats\n") and REPLY in markdown
    saved = tmp_path / "chat.json"
    saved.write_text(export("JSON"))
    page.locator(".chat-row", has_text="about cats").hover()
    page.locator(".chat-row", has_text="about cats").get_by_role("button", name="Delete").click()
    page.locator("dialog.ask").get_by_role("button", name="Delete").click()
    expect(page.locator("#chats .open")).to_have_text(["about dogs"])
    bad = tmp_path / "bad.json"
    bad.write_text('{"format": "pagoda-chats", "chats": [{"id": 1}]}')
    page.set_input_files("#import-file", [bad])
    page.locator("#toast.shown", has_text="bad.json").wait_for()
    page.set_input_files("#import-file", [saved])
    page.locator(".chat-row", has_text="about cats").locator(".open").click()
    expect(visitor.reply()).to_contain_text(REPLY)


def test_pictures_only_for_models_that_see(visit) -> None:
    picture = {"name": "<b>.png", "mimeType": "image/png", "buffer": png(2000, 10)}
    blind = visit().open()
    blind.page.set_input_files("#file", [picture])
    blind.page.locator("#toast.shown", has_text="<b>.png was not added").wait_for()
    expect(blind.page.locator("#attachments img")).to_have_count(0)
    visitor = visit()
    seeing = {"data": [{"id": "eyes", "architecture": {"input_modalities": ["text", "image"]}}]}
    visitor.page.route("**/v1/models", lambda route: route.fulfill(json=seeing))
    bodies: list[Any] = []

    def answer(route: Any) -> None:
        bodies.append(route.request.post_data_json)
        route.fulfill(content_type="text/event-stream", body="data: [DONE]\n\n")

    visitor.page.route("**/v1/chat/completions", answer)
    page = visitor.open().page
    page.set_input_files("#file", [picture])
    page.locator("#attachments img").wait_for()
    visitor.send("what is it?")
    visitor.reply()
    image, text = bodies[0]["messages"][0]["content"]
    assert text == {"type": "text", "text": "what is it?"}
    head, data = image["image_url"]["url"].split(",")
    assert head == "data:image/png;base64"
    # Width and height of the PNG's header: scaled to what models look at.
    assert struct.unpack(">II", base64.b64decode(data)[16:24]) == (1024, 5)


def test_chinese_dark_and_phone(visit) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    context = {"locale": "zh-CN", "color_scheme": "dark", **phone}
    visitor = visit(context=context).open()
    page = visitor.page
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    expect(page.locator("#prompt")).to_have_attribute("placeholder", "给 fake 发消息")
    background = "getComputedStyle(document.querySelector('#pagoda')).backgroundColor"
    dark = page.evaluate(background)
    page.click("#toggle-theme")
    assert page.evaluate(background) != dark
    page.reload()
    page.wait_for_selector("#pagoda:not(.locked)")
    assert page.evaluate(background) != dark
    # The list of chats lies outside until it is asked for; nothing is wider than the screen.
    wait_until(lambda: page.locator("#sidebar").bounding_box()["x"] < 0)
    page.click("#toggle-menu")
    wait_until(lambda: page.locator("#sidebar").bounding_box()["x"] == 0)
    page.click("#open-settings")
    page.select_option("[data-setting=language]", "en")
    page.click("#close-settings")
    expect(page.locator("#new-chat")).to_have_text("New chat")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_reply_goes_on_while_another_chat_is_shown(visit) -> None:
    client = says(LONG, delay=SLOW)
    visitor = visit(client).open()
    page = visitor.page
    visitor.send("slow one")
    page.get_by_text("Hello").wait_for()
    page.click("#new-chat")
    expect(page.locator(".message")).to_have_count(0)
    page.locator(".chat-row.running", has_text="slow one").wait_for()
    page.locator(".chat-row .open", has_text="slow one").click()
    expect(page.locator(".progress")).to_have_count(1)
    client.delay = 0
    expect(visitor.reply()).to_contain_text(LONG)
    assert len(client.requests) == 1 and not client.aborted


def test_reload_in_the_middle_of_a_reply_keeps_its_text(visit) -> None:
    client = says(LONG, delay=SLOW)
    visitor = visit(client).open()
    visitor.send("slow one")
    visitor.page.get_by_text("Hello").wait_for()
    visitor.page.reload()
    reply = visitor.reply()
    expect(reply).to_contain_text("Hello")
    expect(reply).to_contain_text("connection was lost")
    wait_until(lambda: len(client.aborted) == 1)


def test_server_that_went_away(visit) -> None:
    visitor = visit().open()
    page = visitor.page
    page.context.set_offline(True)
    visitor.send("hi")
    page.locator(".notice.error", has_text="cannot be reached").wait_for()
    page.context.set_offline(False)
    page.locator(".notice").get_by_role("button", name="Retry").click()
    page.get_by_text(REPLY).wait_for()


def test_model_that_is_still_loading(visit) -> None:
    client = FakeClient(state="starting")
    visitor = visit(client).open()
    page = visitor.page
    page.locator("#model-state[data-state=loading]").wait_for()
    visitor.send("hi")
    page.locator(".notice.error").wait_for()
    client.state = "ready"
    page.locator("#model-state[data-state=ready]").wait_for()
    page.locator(".notice").get_by_role("button", name="Retry").click()
    page.get_by_text(REPLY).wait_for()


def png(width: int, height: int) -> bytes:
    """A black picture (RFC 2083)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\0" + bytes(width) for _ in range(height)))
    ends = chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + ends
