"""HTML and SVG of a reply, in a frame that can do nothing to the page."""

import contextlib
import socket
from typing import Any

import pytest

from pagoda.web.site import Site
from tests.server.conftest import wait_until
from tests.server.fakes import FakeClient
from tests.web.conftest import Visit, expect, served
from tests.web.test_chat_page import says

HTML = """```html
<style>h1 { color: rgb(1, 2, 3) }</style>
<h1>Shown</h1>
<script>
  const tried = {};
  for (const [name, act] of Object.entries({
    storage: () => localStorage.length, cookie: () => document.cookie,
    parent: () => parent.document.title, top: () => { top.location = "about:blank"; },
  })) {
    try { act(); tried[name] = "worked"; } catch { tried[name] = "refused"; }
  }
  fetch("/v1/models").then(() => "worked", () => "refused").then((word) => {
    tried.fetch = word;
    tried.popup = window.open("about:blank") ? "worked" : "refused";
    document.body.append(Object.entries(tried).map((one) => one.join(" ")).join(", "));
  });
</script>
```
"""


def opened(visitor: Visit) -> Any:
    visitor.reply().get_by_role("button", name="Preview").click()
    return visitor.page.frame_locator("dialog.preview iframe")


def test_html_is_shown_when_asked_and_reaches_nothing(visit) -> None:
    visitor = visit(says(HTML)).open()
    page = visitor.page
    page.evaluate("document.cookie = 'secret=1'")
    visitor.send("show")
    visitor.reply()
    expect(page.locator("iframe")).to_have_count(0)
    frame = opened(visitor)
    frame.get_by_text("refused").wait_for()
    told = frame.locator("body").inner_text().splitlines()[-1]
    expected = ("storage", "cookie", "parent", "top", "fetch", "popup")
    assert told == ", ".join(f"{name} refused" for name in expected)
    color = "node => getComputedStyle(node).color"
    assert frame.locator("h1").evaluate(color) == "rgb(1, 2, 3)"
    assert page.locator("dialog.preview iframe").get_attribute("sandbox") == "allow-scripts"
    page.keyboard.press("Escape")
    page.locator("dialog.preview").wait_for(state="detached")
    assert page.url.startswith(visitor.server.url)


def heard(listener: socket.socket) -> bytes:
    """The beginnings of what was sent there. Browsers connect ahead of what is then refused."""
    begun = b""
    listener.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            with listener.accept()[0] as connection, contextlib.suppress(BlockingIOError):
                connection.setblocking(False)
                begun += connection.recv(100)
    return begun


def test_the_frame_goes_nowhere(visit) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        away = f"http://127.0.0.1:{elsewhere.getsockname()[1]}"
        text = f"```html\n<img src='{away}/a.png'><script>location = '{away}'</script>\n```"
        visitor = visit(says(text)).open()
        visitor.send("show")
        opened(visitor)
        # Asking the page lets what it reports arrive.
        wait_until(lambda: visitor.page.evaluate("1") and len(visitor.problems) >= 2)
        assert all("Content Security Policy" in problem for problem in visitor.problems)
        assert heard(elsewhere) == b""


@pytest.mark.parametrize("language", ["svg", "xml"])
def test_svg_is_shown(visit, language: str) -> None:
    picture = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="50" height="50"><circle r="9" /></svg>'
    )
    visitor = visit(says(f"```{language}\n{picture}\n```")).open()
    visitor.send("draw")
    opened(visitor).locator("svg circle").wait_for()
    assert not visitor.problems


def test_other_code_has_no_preview(visit) -> None:
    visitor = visit(says("```xml\n<a/>\n```\n\n```python\nx = 1\n```")).open()
    visitor.send("show")
    assert visitor.reply().get_by_role("button", name="Preview").count() == 0


def test_the_frame_s_policy_holds_wherever_it_is_opened() -> None:
    with served(FakeClient(), wrap=Site) as server:
        reply = server.http.get("/pages/chat/preview.html")
        again = server.http.get(
            "/pages/chat/preview.html", headers={"If-None-Match": reply.headers["etag"]}
        )
    for answer in (reply, again):
        policy = answer.headers["content-security-policy"]
        rules = dict((*rule.split(" ", 1), "")[:2] for rule in policy.split("; "))
        assert rules["sandbox"] == "allow-scripts" and rules["default-src"] == "'none'"
        assert rules["frame-ancestors"] == "'self'" and rules["form-action"] == "'none'"
        assert "connect-src" not in rules


def test_the_frame_shows_what_its_parent_sends_and_nobody_else(visit) -> None:
    """Opened on its own it takes no text: no address of the server shows what others wrote."""
    visitor = visit()
    page = visitor.page
    page.goto(visitor.server.url + "/pages/chat/preview.html")
    page.evaluate(
        "() => { postMessage('<h1>forged</h1>', '*');"
        " return new Promise((done) => setTimeout(done)); }"
    )
    expect(page.locator("h1")).to_have_count(0)
