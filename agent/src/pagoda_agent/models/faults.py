"""Why a model's server did not answer, in words, and whether asking again may help."""

import email.utils
import json
import re
import socket
import ssl
import time
from collections.abc import Iterator

import httpx

from pagoda_agent.base.errors import ModelError, sentence
from pagoda_agent.models.endpoint import Endpoint

MAX_WAIT = 120.0
"""Seconds; a server that wants a longer pause is not going to answer during this step."""
_PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}
"""529 is Anthropic's `overloaded`."""
# What servers say to a picture for a model that takes none, some with a status that may pass.
_BLIND = re.compile(
    r"reads text only"  # Pagoda
    r"|at most 0 image|is not a multimodal model"  # vLLM
    r"|image input is not supported"  # llama-server
    r"|not support image|missing data required for image input"  # Ollama
    r"|image_url is only supported by certain models",  # OpenAI
    re.IGNORECASE,
)

_KEY_PLACES = "It is taken from the page's settings, or from PAGODA_API_KEY where those have none."


class PassingError(Exception):
    """A fault that may pass; `wait` is what the server asked for, in seconds."""

    def __init__(self, message: str, wait: float | None = None):
        super().__init__(message)
        self.wait = wait


def blind(model: str, said: str) -> ModelError:
    """For a model that takes no pictures, as its server said."""
    return ModelError(
        f"{model} cannot see: {sentence(said)} Serve a model that takes pictures, such as "
        "Qwen3-VL-8B-Instruct (with its mmproj file if it is a GGUF), and name it with --model or "
        "in the settings."
    )


def of_transport(error: Exception, endpoint: Endpoint) -> ModelError | PassingError:
    """For a connection that failed, at its beginning or within the reply."""
    place = endpoint.place
    if isinstance(error, httpx.ConnectTimeout):
        return PassingError(f"{place} did not answer within {endpoint.connect_seconds:g} s")
    if isinstance(error, httpx.ReadTimeout):
        return PassingError(f"{place} was silent for {endpoint.read_seconds:g} s")
    causes = list(_chain(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ModelError(
                f"The certificate of {place} is not trusted ({cause.verify_message}). Give its "
                "authority as a CA file, or allow an insecure connection if you know the server."
            )
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            return ModelError(
                f"{place} does not speak TLS as it should ({cause.reason}); is it http?"
            )
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        host = httpx.URL(endpoint.base_url).host
        return ModelError(f"The name {host!r} is not known (DNS); is the base URL right?")
    if isinstance(error, httpx.ConnectError):
        return PassingError(f"nothing answers at {place}; is the server running?")
    if isinstance(error, httpx.TransportError):
        what = endpoint.clean(str(error))[:200] or type(error).__name__
        return PassingError(f"the connection to {place} broke ({what})")
    return ModelError(f"{place} cannot be asked: {endpoint.clean(str(error))[:200]}")


def of_status(
    response: httpx.Response, body: bytes, endpoint: Endpoint
) -> ModelError | PassingError:
    """For a status that is not 200; `body` is its beginning. 404 is told apart by the caller."""
    status, place = response.status_code, endpoint.place
    said = endpoint.clean(message_of(body))[:300] or response.reason_phrase
    if _BLIND.search(said):
        return blind(endpoint.model, said)
    if status == httpx.codes.UNAUTHORIZED:
        had = "refused the API key" if endpoint.api_key else "wants an API key"
        told = sentence(f"{place} {had} (401): {said}")
        return ModelError(f"{told} {_KEY_PLACES}")
    if status == httpx.codes.FORBIDDEN:
        return ModelError(f"{place} does not allow this with your API key (403): {said}")
    if status == httpx.codes.TOO_MANY_REQUESTS and b"insufficient_quota" in body:
        return ModelError(f"Your account at {place} has no credit left (429): {said}")
    if status in _PASSING:
        wait = _retry_after(response.headers.get("retry-after"))
        if wait is not None and wait > MAX_WAIT:
            return ModelError(f"{place} asks to wait {wait:.0f} s ({status}): {said}")
        return PassingError(f"{place} answered {status}: {said}", wait)
    return ModelError(f"{place} refused the request ({status}): {said}")


def message_of(body: bytes) -> str:
    """What an error's body says, whichever server wrote it."""
    text = body.decode(errors="replace").strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "an HTML page" if text[:1] == "<" else text
    for name in ("error", "message", "detail"):
        found = value.get(name) if isinstance(value, dict) else None
        if isinstance(found, dict):
            found = found.get("message")
        if isinstance(found, str) and found:
            return found
    return text


def _retry_after(text: str | None) -> float | None:
    """Seconds, from a number or a date (RFC 9110, 10.2.3); None for what is neither."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if seconds < 1e9 else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and everything it came from, groups' members included."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
