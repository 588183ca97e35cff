"""What a stream of an OpenAI-compatible server says, and its errors."""

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
from httpx_sse import EventSource, SSEError

from pagoda.base.errors import ConfigError, PagodaError
from pagoda.base.words import say


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
    try:
        async for event in EventSource(response).aiter_sse():
            if event.data == "[DONE]":
                return
            if event.data:  # servers keep a connection alive with events that have none
                yield _payload(event.data)
    except SSEError as error:
        kind = response.headers.get("content-type") or "something unnamed"
        raise ServerError(f"The server answered with {kind} instead of a stream.") from error


def _payload(data: str) -> dict[str, Any]:
    try:
        payload: dict[str, Any] = json.loads(data)
    except ValueError as error:
        raise ServerError(f"The server sent an event that is not JSON: {data!r}.") from error
    if payload.get("error"):
        raise ServerError(_message_of(payload["error"]))
    return payload


def is_this_machine(url: str) -> bool:
    """Whether a server's address is this machine's, to which no proxy of the environment leads.

    Raises ConfigError for what is no address of a server.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(say("{url} is no address; write it as http://HOST:PORT.", url=url))
    return parts.hostname in ("127.0.0.1", "localhost", "::1")


def error_message(response: httpx.Response) -> str:
    """What a failed reply says, whichever server wrote it; of a key, which flag gives one."""
    if response.status_code == httpx.codes.UNAUTHORIZED:
        url = f"{response.url.scheme}://{response.url.netloc.decode()}"
        if "authorization" in response.request.headers:
            return say(
                "The server at {url} refuses the key (401); give another with --api-key or "
                "PAGODA_API_KEY.",
                url=url,
            )
        return say(
            "The server at {url} wants a key (401); give it with --api-key or PAGODA_API_KEY.",
            url=url,
        )
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
