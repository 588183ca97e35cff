"""POST /extract-text: what a model can read of a file that it cannot."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.server.context import context_of
from pagoda.server.errors import ApiError
from pagoda.server.openapi import describe
from pagoda.server.replies.respond import json_reply
from pagoda.text.pdf import PdfText

router = APIRouter()

_PDF = "application/pdf"


def _described() -> dict[str, Any]:
    schema = {"type": "string", "format": "binary"}
    body = {"required": True, "content": {_PDF: {"schema": schema}}}
    return {**describe(None, PdfText), "requestBody": body}


@router.post("/extract-text", openapi_extra=_described())
async def extract_text(request: Request) -> Response:
    """The text of the PDF that is the body, page by page, within bounds on time, memory, pages and
    characters."""
    content_type = request.headers.get("content-type", "")
    # Pages of other sites send no such type without asking first.
    if content_type.partition(";")[0].strip().lower() != _PDF:
        raise ApiError(
            400, f"The Content-Type is {content_type[:100]!r}; send a PDF as {_PDF!r}.",
            kind="Bad Request",
        )  # fmt: skip
    context = context_of(request)
    loaded = [entry.names[0] for entry in context.models() if entry.served is not None]
    # A file is not a model's; any model's workers read it.
    served = await context.served(request, loaded[0] if loaded else None)
    return json_reply(await served.aside.read_pdf(await request.body()))
