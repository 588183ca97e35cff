"""Reading a stream of server-sent events, and the errors of OpenAI-compatible servers."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from pagoda.base.errors import PagodaError


class ServerError(PagodaError):
    """A server answered with an error, or not at all."""

    def __init__(self, message: str, status: int | None = None):
        super().__init__(message)
        self.status = status


async def events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON payloads of a streamed reply, up to `[DONE]`.

    Raises ServerError for an error status, an error event, and a stream that is not SSE.
    """
    if response.status_code != httpx.codes.OK:
        await response.aread()
        raise ServerError(error_message(response), response.status_code)
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        try:
            payload = json.loads(data)
        except ValueError as error:
            raise ServerError(f"The server sent an event that is not JSON: {data!r}.") from error
        if payload.get("error"):
            raise ServerError(_message_of(payload["error"]))
        yield payload


def error_message(response: httpx.Response) -> str:
    """What a failed reply says, whichever server wrote it."""
    try:
        text = _message_of(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        text = response.text.strip()[:200] or response.reason_phrase
    return f"The server answered {response.status_code}: {text}"


def transport_message(error: Exception, url: str) -> str:
    """A sentence for a connection that failed; httpx often has no words of its own."""
    if isinstance(error, httpx.ConnectError):
        return f"Nothing answers at {url}; is the server running?"
    return f"The connection to {url} failed: {error or type(error).__name__}."


def _message_of(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
