"""Prints a page's document as NiceGUI renders it: `python -m pagoda.web.document chat`.

A program of its own: importing NiceGUI takes a second of CPU and 100 MB, which a server in the
middle of streams does not have to spare. The document is the same for everyone.
"""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx
from fastapi import FastAPI
from nicegui import ui

from pagoda.web.paths import ASSETS_PATH

_ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True)
class Page:
    title: str
    folder: str
    """Of its `body.html` and `main.js` below the assets, with a slash behind it."""
    styles: tuple[str, ...]


PAGES = {
    "chat": Page("Pagoda", "", ("page.css", "text.css")),
    "agent": Page("Pagoda agent", "agent/", ("page.css", "agent/agent.css")),
}
# With the last part, a phone's keyboard moves the input field up instead of covering it.
_VIEWPORT = "width=device-width, initial-scale=1, interactive-widget=resizes-content"
_ICON = (_ASSETS / "icon.svg").read_text()


def _head(page: Page) -> str:
    # Asked for at once, instead of one after the other as they import each other.
    preloaded = (
        f'<link rel="modulepreload" href="{ASSETS_PATH}{page.folder}{path.name}">'
        for path in sorted((_ASSETS / page.folder).glob("*.js"))
        if path.name not in ("theme.js", "nosocket.js")
    )
    styles = (f'<link rel="stylesheet" href="{ASSETS_PATH}{name}">' for name in page.styles)
    return "".join(
        [
            f'<script src="{ASSETS_PATH}theme.js"></script>',
            *styles,
            f'<script type="module" src="{ASSETS_PATH}{page.folder}main.js"></script>',
            *preloaded,
        ]
    )


async def render(page: Page) -> str:
    @ui.page("/", title=page.title, viewport=_VIEWPORT, favicon=_ICON, dark=None)
    def document() -> None:
        ui.add_head_html(_head(page))
        ui.add_body_html((_ASSETS / page.folder / "body.html").read_text())

    app = FastAPI()
    ui.run_with(app, tailwind=False, binding_refresh_interval=None, show_welcome_message=False)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://page") as client,
    ):
        # Relative paths work below a server's root path too.
        reply = await client.get("/", headers={"X-Forwarded-Prefix": "."})
    return reply.raise_for_status().text


if __name__ == "__main__":
    print(asyncio.run(render(PAGES[sys.argv[1]])))
