"""GET /docs and /redoc, with assets from the machine itself: a server may have no internet."""

from pathlib import Path

import fastapi_offline
from fastapi import APIRouter, FastAPI
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from fastapi.staticfiles import StaticFiles
from starlette.requests import Request
from starlette.responses import HTMLResponse

_ASSETS = "/docs-assets"
_TITLE = "Pagoda API"

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    root = request.scope["root_path"]
    return get_swagger_ui_html(
        openapi_url=f"{root}/openapi.json",
        title=_TITLE,
        swagger_js_url=f"{root}{_ASSETS}/swagger-ui-bundle.js",
        swagger_css_url=f"{root}{_ASSETS}/swagger-ui.css",
        swagger_favicon_url=f"{root}{_ASSETS}/favicon.png",
    )


@router.get("/redoc")
async def redoc(request: Request) -> HTMLResponse:
    root = request.scope["root_path"]
    return get_redoc_html(
        openapi_url=f"{root}/openapi.json",
        title=_TITLE,
        redoc_js_url=f"{root}{_ASSETS}/redoc.standalone.js",
        redoc_favicon_url=f"{root}{_ASSETS}/favicon.png",
        with_google_fonts=False,
    )


def mount_assets(app: FastAPI) -> None:
    folder = Path(fastapi_offline.__file__).parent / "static"
    app.mount(_ASSETS, StaticFiles(directory=folder), name="docs-assets")
