"""One chat in two tabs of a browser: nothing that either shows is lost."""

from typing import Any

from tests.server.conftest import wait_until
from tests.server.fakes import FakeClient
from tests.web.conftest import Visit, expect

SLOW = 0.05


def echo(request: Any) -> bytes:
    """Answers the last line, for half a minute unless the client is hurried."""
    question = bytes(request.prompt_token_ids).decode().removesuffix("\nassistant: ")
    return f"About {question.split()[-1]}: {'more and ' * 60}the end.".encode()


def second_tab(first: Visit) -> Visit:
    page = first.page.context.new_page()
    page.set_default_timeout(20_000)
    return Visit(page, first.server)


def stored(visitor: Visit) -> list[str]:
    """What all chats hold, in the order in which it was written."""
    nodes = visitor.page.evaluate(
        "Object.keys(localStorage).filter((key) => key.startsWith('pagoda.chat.'))"
        ".flatMap((key) => Object.values(JSON.parse(localStorage[key]).nodes))"
    )
    return [node["content"] for node in sorted(nodes, key=lambda node: node["created"])]


def questions(visitor: Visit) -> list[str]:
    return [text for text in stored(visitor) if ":" not in text]


def titles(visitor: Visit) -> list[str]:
    return visitor.page.locator("#chats .open").all_inner_texts()


def replies_to(visitor: Visit, *questions: str) -> None:
    """Wait until the tab shows the whole reply to each."""
    for question in questions:
        reply = visitor.page.locator(".message.assistant", has_text=f"About {question}:")
        reply.filter(has_text="the end.").locator("footer").wait_for()


def test_each_tab_shows_what_the_other_writes(visit) -> None:
    client = FakeClient(script=echo)
    one = visit(client).open()
    one.send("first")
    replies_to(one, "first")
    two = second_tab(one).open("/" + one.page.evaluate("location.hash"))
    client.delay = SLOW
    one.send("second")
    two.page.locator(".bubble", has_text="second").wait_for()
    two.send("third")
    one.page.locator(".bubble", has_text="third").wait_for()
    wait_until(lambda: len(client.running) == 2)
    expect(one.page.get_by_text("connection was lost")).to_have_count(0)
    client.delay = 0
    for visitor in (one, two):
        replies_to(visitor, "first", "second", "third")
        expect(visitor.page.locator(".bubble")).to_have_text(["first", "second", "third"])
        assert not visitor.problems
    for visitor in (one, two):
        wait_until(lambda visitor=visitor: questions(visitor) == ["first", "second", "third"])
    wait_until(lambda: stored(one) == stored(two))
    for visitor in (one, two):
        visitor.page.reload()
        replies_to(visitor, "first", "second", "third")


def test_messages_sent_at_once_are_versions(visit) -> None:
    one = visit(FakeClient(script=echo)).open()
    one.send("first")
    replies_to(one, "first")
    two = second_tab(one).open("/" + one.page.evaluate("location.hash"))
    # One that hears of nothing, and reads what was stored before the other sent.
    three = second_tab(one)
    three.page.add_init_script(
        "addEventListener('storage', (event) => event.stopImmediatePropagation());"
    )
    three.open("/" + one.page.evaluate("location.hash"))
    three.page.evaluate(
        "() => { const get = Storage.prototype.getItem; const before = {...localStorage};"
        " Storage.prototype.getItem = (key) => before[key] ?? null;"
        " window.goOn = () => { Storage.prototype.getItem = get; }; }"
    )
    one.send("here")
    one.page.locator(".bubble", has_text="here").wait_for()
    three.send("there")
    three.page.locator(".bubble", has_text="there").wait_for()
    three.page.evaluate("goOn()")
    replies_to(one, "here")
    replies_to(three, "there")
    for visitor in (one, two):
        visitor.page.locator(".pager", has_text="/2").wait_for()
    wait_until(lambda: len(stored(one)) == 6)
    assert questions(one) == ["first", "here", "there"]
    for visitor in (one, two, three):
        visitor.page.reload()
        visitor.page.locator(".pager", has_text="/2").first.wait_for()


def delete(visitor: Visit, title: str) -> None:
    row = visitor.page.locator(".chat-row", has_text=title)
    row.hover()
    row.get_by_role("button", name="Delete").click()
    visitor.page.locator("dialog.ask").get_by_role("button", name="Delete").click()


def test_a_chat_is_deleted_while_the_other_tab_writes(visit) -> None:
    client = FakeClient(script=echo)
    one = visit(client).open()
    for question in ("keep", "drop"):
        one.page.click("#new-chat")
        one.send(question)
        replies_to(one, question)
    two = second_tab(one).open()
    two.page.locator(".chat-row .open", has_text="keep").click()
    client.delay = SLOW
    two.send("again")
    two.page.locator(".message.assistant", has_text="About again").wait_for()
    delete(one, "drop")
    assert client.running
    client.delay = 0
    replies_to(two, "keep", "again")
    one.page.locator(".chat-row .open", has_text="keep").click()
    for visitor in (one, two):
        replies_to(visitor, "keep", "again")
        wait_until(lambda visitor=visitor: titles(visitor) == ["keep"])
        assert not visitor.problems


def test_a_chat_that_is_deleted_is_not_written_again(visit) -> None:
    """Neither by the tab that writes in it nor by one that did not hear of it."""
    client = FakeClient(script=echo, delay=SLOW)
    one = visit(client).open()
    one.send("gone")
    one.page.locator(".message.assistant", has_text="About").wait_for()
    two = second_tab(one).open()
    two.page.locator(".chat-row", has_text="gone").wait_for()
    saved = two.page.evaluate("Object.entries(localStorage).find(([key]) => key.includes('chat.'))")
    delete(two, "gone")
    wait_until(lambda: len(client.aborted) == 1)
    one.page.locator(".welcome").wait_for()
    # A save that was on its way.
    one.page.evaluate("([key, value]) => localStorage.setItem(key, value)", saved)
    wait_until(lambda: two.page.evaluate("(key) => !(key in localStorage)", saved[0]))
    for visitor in (one, two):
        wait_until(lambda visitor=visitor: not stored(visitor) and not titles(visitor))
        visitor.page.reload()
        visitor.page.locator(".welcome").wait_for()
        assert not visitor.problems
