"""Errors as Anthropic's clients read them: `{"type": "error", "error": {"type", "message"}}`."""

from typing import Literal

import msgspec
from starlette.types import Scope

PREFIX = "/v1/messages"
REQUEST_ID = "pagoda.request_id"
"""The key in the scope of what the request is called in the reply's headers and in the access
log."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class ErrorDetail(msgspec.Struct):
    type: str
    message: str


class AnthropicError(msgspec.Struct, kw_only=True):
    type: Literal["error"] = "error"
    error: ErrorDetail
    request_id: str | None


def is_anthropic(scope: Scope) -> bool:
    """Whether the request's path, served or not, belongs to Anthropic's API."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path == PREFIX or path.startswith(PREFIX + "/")


def status_of(status: int) -> int:
    """Anthropic's API says 529 where others say 503."""
    return 529 if status == 503 else status


def error_reply(status: int, message: str, request_id: str | None) -> bytes:
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return msgspec.json.encode(
        AnthropicError(error=ErrorDetail(kind, message), request_id=request_id)
    )
