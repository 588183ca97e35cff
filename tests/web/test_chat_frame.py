"""What stands around the messages of a chat: its name, and short words about what was done."""

from tests.web.conftest import expect


def test_an_edited_first_message_names_its_chat_anew(visit) -> None:
    """Unless its user has given it another name."""
    visitor = visit().open()
    page = visitor.page
    title = page.locator(".chat-row .open")

    def edit(text: str) -> None:
        message = page.locator(".message.user").first
        message.hover()
        message.get_by_role("button", name="Edit").click()
        page.locator(".editor textarea").fill(text)
        page.locator(".editor").get_by_role("button", name="Send").click()
        visitor.reply()

    visitor.send("first words")
    visitor.reply()
    expect(title).to_have_text("first words")
    edit("second words")
    expect(title).to_have_text("second words")
    page.locator(".chat-row").hover()
    page.get_by_role("button", name="Rename").click()
    page.locator(".chat-row input").fill("Mine")
    page.locator(".chat-row input").press("Enter")
    edit("third words")
    expect(title).to_have_text("Mine")
    assert not visitor.problems


def test_a_toast_stays_with_its_chat(visit) -> None:
    """It is in the middle of the chat's column, and gone where another chat is shown."""
    visitor = visit().open()
    page = visitor.page
    visitor.send("one")
    visitor.reply()
    for words in ("Short", "words that need some room " * 3):
        page.evaluate("text => import('/pages/chat/dom.js').then((dom) => dom.toast(text))", words)
        toast = page.locator("#toast.shown")
        expect(toast).to_have_text(words)
        boxes = [found.bounding_box() for found in (toast, page.locator("#composer"))]
        middles = [box["x"] + box["width"] / 2 for box in boxes]
        assert abs(middles[0] - middles[1]) < 2
    page.get_by_role("button", name="New chat").click()
    expect(toast).to_have_count(0)
    assert not visitor.problems
