"""Files that a message brings, and drafts."""

import base64
import json
from typing import Any

import pytest

from tests.server.conftest import wait_until
from tests.server.fakes import REPLY, FakeClient
from tests.unit.text.pdfs import pdf
from tests.web.conftest import Visit, expect
from tests.web.test_chat_page import png, prompt_of
from tests.web.test_chat_tabs import second_tab


def file(name: str, data: bytes, kind: str = "") -> dict[str, Any]:
    return {"name": name, "mimeType": kind, "buffer": data}


def attach(visitor: Visit, *files: dict[str, Any]) -> None:
    visitor.page.set_input_files("#file", list(files))


def expect_chips(visitor: Visit, *names: str) -> None:
    expect(visitor.page.locator("#attachments .chip .name")).to_have_text(list(names))


def test_text_code_and_pdf_go_along(visit) -> None:
    client = FakeClient()
    visitor = visit(client).open()
    code = file("a.py", b"def f():\r\n    pass\n", "text/x-python")
    utf16 = file("b.txt", "宝塔".encode("utf-16"), "text/plain")
    attach(visitor, code, utf16, file("c.PDF", pdf("from a PDF", "more")))
    visitor.page.locator("#attachments .chip", has_text="2 pages").wait_for()
    expect_chips(visitor, "a.py", "b.txt", "c.PDF")
    visitor.send("What is this?")
    visitor.reply()
    assert prompt_of(client) == (
        'user: <file name="a.py">\ndef f():\n    pass\n\n</file>\n\n'
        '<file name="b.txt">\n宝塔\n</file>\n\n'
        '<file name="c.PDF">\nfrom a PDF\n\nmore\n</file>\n\n'
        "What is this?\nassistant: "
    )
    expect_chips(visitor)
    # The message shows them as names, and their text when asked.
    card = visitor.page.locator(".message.user details.chip", has_text="c.PDF")
    expect(card.locator("pre")).to_have_count(0)
    card.locator("summary").click()
    expect(card.locator("pre")).to_contain_text("from a PDF")
    # They belong to the chat: they are sent again, also after a reload.
    visitor.page.reload()
    visitor.reply()
    visitor.send("And now?")
    wait_until(lambda: len(client.requests) == 2)
    assert "from a PDF" in prompt_of(client) and prompt_of(client).endswith(
        "user: And now?\nassistant: "
    )


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("one", "1 line"),
        ("one\n", "1 line"),
        ("one\r\n", "1 line"),
        ("one\ntwo", "2 lines"),
        ("one\n\n", "2 lines"),
    ],
)
def test_lines_of_a_file_are_counted_as_editors_do(visit, text: str, facts: str) -> None:
    visitor = visit().open()
    attach(visitor, file("a.txt", text.encode(), "text/plain"))
    expect(visitor.page.locator("#attachments .chip .facts")).to_have_text(facts)


def test_a_file_that_no_model_reads_is_refused_with_the_reason(visit) -> None:
    visitor = visit().open()
    wrong = {
        "neither text": file("a.zip", b"PK\x03\x04\xff\xfe\x00", "application/zip"),
        "is empty": file("b.txt", b" \n"),
        "too large": file("c.log", b"x" * 1_000_001),
        "no text in it": file("d.pdf", pdf(b"0 0 m 9 9 l S")),
        "cannot be read": file("e.pdf", b"%PDF-1.7\n"),
        "cannot see": file("f.png", png(2, 2), "image/png"),
    }
    for reason, one in wrong.items():
        visitor.page.fill("#prompt", "kept")
        attach(visitor, one)
        visitor.page.locator("#toast.shown", has_text=reason).wait_for()
        expect(visitor.page.locator("#prompt")).to_have_value("kept")
    expect_chips(visitor)
    # Only the browser's own word about the two that the server refused.
    assert all("status of 400" in problem for problem in visitor.problems)


@pytest.mark.parametrize(
    ("locale", "coding", "text"),
    [("en-US", "cp1252", "naïve café – “so”"), ("zh-CN", "gb18030", "东塔西桥，都在这里")],
)
def test_text_of_older_codings_is_read(visit, locale: str, coding: str, text: str) -> None:
    visitor = visit(client := FakeClient(), context={"locale": locale}).open()
    attach(visitor, file("old.txt", text.encode(coding)))
    visitor.page.locator(".chip", has_text="old.txt").wait_for()
    visitor.send("?")
    wait_until(lambda: len(client.requests) == 1)
    assert text in prompt_of(client)


def test_a_refused_file_is_named(visit) -> None:
    visitor = visit().open()
    attach(visitor, file("e.pdf", b"%PDF-1.7\n"))
    visitor.page.locator("#toast.shown", has_text="e.pdf: The PDF is broken").wait_for()


def test_files_are_dropped_and_pasted(visit) -> None:
    visitor = visit().open()
    page = visitor.page
    transfer = page.evaluate_handle(
        "() => { const data = new DataTransfer();"
        " data.items.add(new File(['dropped'], 'drop.md')); return data; }"
    )
    page.dispatch_event("#messages", "dragover", {"dataTransfer": transfer})
    page.locator("#pagoda.dropping").wait_for()
    page.dispatch_event("#messages", "drop", {"dataTransfer": transfer})
    page.locator("#attachments .chip", has_text="drop.md").wait_for()
    expect(page.locator("#pagoda.dropping")).to_have_count(0)
    page.evaluate(
        "() => { const data = new DataTransfer();"
        " data.items.add(new File(['pasted'], 'paste.md'));"
        " document.querySelector('#prompt').dispatchEvent("
        "new ClipboardEvent('paste', {clipboardData: data, bubbles: true})); }"
    )
    page.locator("#attachments .chip", has_text="paste.md").wait_for()
    page.locator("#attachments .chip", has_text="drop.md").get_by_role("button").click()
    page.locator("#attachments .chip", has_text="drop.md").wait_for(state="detached")
    expect_chips(visitor, "paste.md")
    assert not visitor.problems


def test_names_and_texts_of_files_are_no_markup(visit) -> None:
    name = "<img src=x onerror='window.hacked=1'>"
    client = FakeClient()
    visitor = visit(client).open()
    attach(visitor, file(name + ".md", b"</file><script>window.hacked=2</script>"))
    visitor.page.locator("#attachments .chip").wait_for()
    visitor.send("hi")
    visitor.reply()
    visitor.page.locator("details.chip summary").click()
    visitor.page.locator("details.chip pre").wait_for()
    assert visitor.page.evaluate("window.hacked") is None
    assert "<img" not in prompt_of(client)


def test_a_long_message_is_folded(visit) -> None:
    visitor = visit().open()
    visitor.send("line\n" * 60)
    visitor.reply()
    bubble = visitor.page.locator(".bubble")
    folded = bubble.bounding_box()["height"]
    visitor.page.get_by_role("button", name="Show all").click()
    assert bubble.bounding_box()["height"] > 2 * folded
    visitor.page.get_by_role("button", name="Show less").click()
    assert bubble.bounding_box()["height"] == folded


def test_drafts_survive_a_reload_and_a_visit_to_another_chat(visit) -> None:
    visitor = visit().open()
    page = visitor.page
    visitor.send("first")
    visitor.reply()
    page.fill("#prompt", "not sent yet")
    attach(visitor, file("notes.md", b"notes"))
    page.locator("#attachments .chip").wait_for()
    page.click("#new-chat")
    expect(page.locator("#prompt")).to_have_value("")
    expect_chips(visitor)
    page.fill("#prompt", "of the new chat")
    page.reload()
    page.wait_for_selector("#pagoda:not(.locked)")
    expect(page.locator("#prompt")).to_have_value("of the new chat")
    page.locator(".chat-row .open", has_text="first").click()
    page.reload()
    visitor.reply()
    expect(page.locator("#prompt")).to_have_value("not sent yet")
    expect_chips(visitor, "notes.md")
    page.press("#prompt", "Enter")
    page.locator(".bubble", has_text="not sent yet").wait_for()
    page.reload()
    visitor.reply()
    expect(page.locator("#prompt")).to_have_value("")
    expect_chips(visitor)


def test_two_tabs_keep_their_own_drafts_of_one_chat(visit) -> None:
    client = FakeClient()
    one = visit(client).open()
    one.send("first")
    one.reply()
    one.page.fill("#prompt", "draft one")
    two = second_tab(one).open("/" + one.page.evaluate("location.hash"))
    expect(two.page.locator("#prompt")).to_have_value("")
    # What the other tab sends, and its reply that streams in, leave a draft alone.
    client.delay = 0.02
    two.send("second")
    one.page.locator(".bubble", has_text="second").wait_for()
    expect(one.page.locator("#prompt")).to_have_value("draft one")
    one.page.locator(".message.assistant", has_text=REPLY).nth(1).wait_for()
    one.page.reload()
    one.reply()
    expect(one.page.locator("#prompt")).to_have_value("draft one")
    expect(one.page.locator(".bubble")).to_have_text(["first", "second"])


def test_a_draft_outlives_its_chat(visit) -> None:
    """Another tab deletes the chat: what was typed here stays in the composer."""
    one = visit().open()
    one.send("gone")
    one.reply()
    one.page.fill("#prompt", "long thought")
    two = second_tab(one).open()
    row = two.page.locator(".chat-row", has_text="gone")
    row.hover()
    row.get_by_role("button", name="Delete").click()
    two.page.locator("dialog.ask").get_by_role("button", name="Delete").click()
    one.page.locator(".welcome").wait_for()
    expect(one.page.locator("#prompt")).to_have_value("long thought")
    one.page.reload()
    one.page.locator(".welcome").wait_for()
    expect(one.page.locator("#prompt")).to_have_value("long thought")
    assert two.page.evaluate("Object.keys(sessionStorage)") == []


# What a microphone gives, without one.
MICROPHONE = """navigator.mediaDevices.getUserMedia = async () => {
  const context = new AudioContext();
  const tone = context.createOscillator();
  const target = context.createMediaStreamDestination();
  tone.connect(target);
  tone.start();
  return target.stream;
};"""


def answer_as_model_that_hears(visitor: Visit) -> list[Any]:
    """The bodies of its requests."""
    bodies: list[Any] = []
    hearing = {"data": [{"id": "ears", "architecture": {"input_modalities": ["text", "audio"]}}]}
    visitor.page.route("**/v1/models", lambda route: route.fulfill(json=hearing))

    def reply(route: Any) -> None:
        bodies.append(route.request.post_data_json)
        told = {"choices": [{"index": 0, "delta": {"content": "A tone."}, "finish_reason": "stop"}]}
        body = f"data: {json.dumps(told)}\n\ndata: [DONE]\n\n"
        route.fulfill(body=body, content_type="text/event-stream")

    visitor.page.route("**/v1/chat/completions", reply)
    return bodies


def test_what_is_said_goes_along(visit) -> None:
    visitor = visit()
    bodies = answer_as_model_that_hears(visitor)
    visitor.page.add_init_script(MICROPHONE)
    visitor.open()
    button = visitor.page.locator("#record")
    button.click()
    expect(button).to_have_attribute("aria-label", "Stop recording")
    visitor.page.wait_for_timeout(300)
    button.click()
    expect(visitor.page.locator("#attachments .chip .facts")).to_have_text("sound")
    expect_chips(visitor, "Recording.webm")
    visitor.send("What is this?")
    visitor.reply()
    sound, text = bodies[0]["messages"][-1]["content"]
    assert text == {"type": "text", "text": "What is this?"}
    assert sound["type"] == "input_audio" and sound["input_audio"]["format"] == "webm"
    # EBML's mark, with which WebM begins.
    assert base64.b64decode(sound["input_audio"]["data"])[:4] == b"\x1aE\xdf\xa3"
    expect(visitor.page.locator(".message.user audio")).to_have_count(1)
    assert visitor.problems == []


def test_a_model_that_does_not_hear_has_no_microphone(visit) -> None:
    visitor = visit().open()
    expect(visitor.page.locator("#record")).to_be_hidden()
    attach(visitor, file("a.wav", b"RIFF", "audio/wav"))
    expect(visitor.page.locator("#toast")).to_contain_text("cannot hear, so a.wav was not added")


def test_a_microphone_that_is_refused_is_told(visit) -> None:
    visitor = visit()
    answer_as_model_that_hears(visitor)
    visitor.page.add_init_script(
        "navigator.mediaDevices.getUserMedia = () => Promise.reject(new Error('not allowed'));"
    )
    visitor.open()
    visitor.page.locator("#record").click()
    expect(visitor.page.locator("#toast")).to_contain_text("not allowed")
    expect(visitor.page.locator("#record")).to_have_attribute("aria-label", "Record what you say")
