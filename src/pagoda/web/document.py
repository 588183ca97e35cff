"""Prints the chat page's document as NiceGUI renders it: `python -m pagoda.web.document`.

A program of its own: importing NiceGUI takes a second of CPU and 100 MB, which a server in the
middle of streams does not have to spare. The document is the same for everyone.
"""

import asyncio
from pathlib import Path

import httpx
from fastapi import FastAPI
from nicegui import ui

from pagoda.web.paths import ASSETS_PATH

_ASSETS = Path(__file__).parent / "assets"
_HEAD = (
    f'<script src="{ASSETS_PATH}theme.js"></script>'
    f'<link rel="stylesheet" href="{ASSETS_PATH}page.css">'
    f'<link rel="stylesheet" href="{ASSETS_PATH}text.css">'
    f'<script type="module" src="{ASSETS_PATH}main.js"></script>'
)
# Asked for at once, instead of one after the other as they import each other.
_PRELOAD = "".join(
    f'<link rel="modulepreload" href="{ASSETS_PATH}{path.name}">'
    for path in sorted(_ASSETS.glob("*.js"))
    if path.name not in ("theme.js", "nosocket.js")
)


# With the last part, a phone's keyboard moves the input field up instead of covering it.
_VIEWPORT = "width=device-width, initial-scale=1, interactive-widget=resizes-content"
_ICON = (_ASSETS / "icon.svg").read_text()


@ui.page("/", title="Pagoda", viewport=_VIEWPORT, favicon=_ICON, dark=None)
def chat() -> None:
    ui.add_head_html(_HEAD + _PRELOAD)
    ui.add_body_html((_ASSETS / "body.html").read_text())


async def render() -> str:
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
    print(asyncio.run(render()))
