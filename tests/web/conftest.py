"""The page before a fake engine, and a real browser before the page."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pagoda.web.site import Site
from tests.server.conftest import RunningServer, running
from tests.server.fakes import FakeClient

# Milliseconds until a test gives up waiting for what a page shows.
PATIENCE = 20_000
# The page asks nobody but its server, and the browser shall not either.
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture
def start() -> Iterator[Callable[..., RunningServer]]:
    """Start servers with the page in front."""
    with contextlib.ExitStack() as stack:
        yield lambda client: stack.enter_context(running(client, wrap=Site))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium of the system; nothing is downloaded. The shell without a user interface takes a
    third of the CPU time for each page.

    Playwright keeps an event loop running in this thread until it is closed: so it ends before
    modules with asynchronous tests.
    """
    sync_api = pytest.importorskip("playwright.sync_api")
    names = ("chromium-headless-shell", "chromium", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    if chromium is None:
        pytest.skip("no Chromium here (Debian: apt install chromium-headless-shell)")
    with sync_api.sync_playwright() as playwright:
        # Each launch has a profile folder of its own.
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield browser
        browser.close()


@contextlib.contextmanager
def served(*args: Any, **text: Any) -> Iterator[RunningServer]:
    """As `running`, closed in another thread: Playwright's event loop runs in this one."""
    server = running(*args, **text)
    yield server.__enter__()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(server.__exit__, None, None, None).result()


def expect(locator: Any) -> Any:
    """Playwright's assertions, which wait as long as the other waits here.

    What a page shows arrives some time after what caused it: a test never reads it once.
    """
    from playwright.sync_api import expect

    expect.set_options(timeout=PATIENCE)
    return expect(locator)


class Visit:
    """A visitor's page, and what went wrong on it."""

    def __init__(self, page: Any, server: RunningServer):
        self.page = page
        self.server = server
        self.problems: list[str] = []
        self.requested: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.requested.append(request.url))
        page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self.problems.append(message.text)

    def open(self, address: str = "/") -> "Visit":
        self.page.goto(self.server.url + address)
        self.page.wait_for_selector("#pagoda:not(.locked)")
        return self

    def send(self, text: str) -> None:
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")

    def reply(self) -> Any:
        """The last reply, once it is complete."""
        last = self.page.locator(".message.assistant").last
        last.locator("footer").wait_for()
        return last


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    """Start a server and open a page on it; `context` are Playwright's (locale, viewport)."""
    with contextlib.ExitStack() as stack:

        def start(
            client: FakeClient | None = None,
            config: Any = None,
            context: dict[str, Any] | None = None,
            **text: Any,
        ) -> Visit:
            options = {"locale": "en-US", "color_scheme": "light", **(context or {})}
            server = stack.enter_context(served(client or FakeClient(), config, Site, **text))
            page = stack.enter_context(
                contextlib.closing(browser.new_context(**options))
            ).new_page()
            page.set_default_timeout(PATIENCE)
            return Visit(page, server)

        yield start
