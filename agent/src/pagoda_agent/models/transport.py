"""One request for a reply over HTTP: streams, time limits, retries."""

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import httpx

from pagoda_agent.base.errors import ModelError, sentence
from pagoda_agent.models import faults, sse
from pagoda_agent.models.dialogue import Listed, Reply
from pagoda_agent.models.endpoint import Endpoint
from pagoda_agent.models.faults import PassingError
from pagoda_agent.models.reading import MAX_REPLY, IncompleteError, Reader

log = logging.getLogger(__name__)

_MAX_BODY = 8 << 20
"""Bytes of a reply that is not streamed."""
_MAX_ERROR = 64 << 10
_MAX_BACKOFF = 30.0
# After the last event a server ends the stream at once; waiting for it keeps the connection.
_DRAIN_SECONDS = 0.5
_MODELS_SECONDS = 10.0
_LISTED = 20
# Whoever watches is told then that this takes time.
_LONG_SECONDS = 10.0


class Transport:
    """Asks one endpoint. Leaving `ask` by cancellation closes the connection, at which servers
    stop working on the reply."""

    def __init__(self, endpoint: Endpoint):
        self.endpoint = endpoint
        self._client = endpoint.client()

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(
        self,
        path: str,
        body: dict[str, Any],
        headers: Mapping[str, str],
        reader: Callable[[], Reader],
    ) -> Reply:
        """Post `body` and read the reply with a fresh reader at each try. Raises ModelError."""
        limit = self.endpoint.total_seconds
        last: list[str] = []
        waiting = asyncio.get_running_loop().call_later(
            _LONG_SECONDS, log.warning,
            "Waiting for the reply of %s at %s, for %g s at most.",
            self.endpoint.model, self.endpoint.place, limit,
        )  # fmt: skip
        try:
            async with asyncio.timeout(limit):
                return await self._persist(path, body, headers, reader, last)
        except TimeoutError:
            before = f" Before that, {sentence(last[-1])}" if last else ""
            raise ModelError(
                f"{self.endpoint.place} gave no whole reply within {limit:g} s.{before} If the "
                "model is slow, --reply-seconds gives it more time."
            ) from None
        finally:
            waiting.cancel()

    async def _persist(
        self,
        path: str,
        body: dict[str, Any],
        headers: Mapping[str, str],
        reader: Callable[[], Reader],
        last: list[str],
    ) -> Reply:
        tries = self.endpoint.retries + 1
        backoff = self.endpoint.backoff_seconds
        for number in range(1, tries + 1):
            try:
                return await self._try(path, body, headers, reader())
            except PassingError as fault:
                last.append(str(fault))
                if number == tries:
                    times = f" (tried {tries} times)" if tries > 1 else ""
                    raise ModelError(f"The model gave no reply: {fault}{times}.") from None
                wait = fault.wait
            if wait is None:
                wait = min(_MAX_BACKOFF, backoff * 2 ** (number - 1)) * random.uniform(0.75, 1.25)
            log.warning("%s Asking again in %.1f s.", sentence(last[-1]), wait)
            await asyncio.sleep(wait)
        raise AssertionError("unreachable")

    async def _try(
        self, path: str, body: dict[str, Any], headers: Mapping[str, str], reader: Reader
    ) -> Reply:
        url = self.endpoint.url(path)
        try:
            async with self._client.stream("POST", url, json=body, headers=headers) as response:
                if response.status_code != httpx.codes.OK:
                    raise await self._refusal(response, headers)
                kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind == "text/event-stream":
                    await self._stream(response, reader)
                elif kind.endswith("json"):
                    reader.whole(_object(await _beginning(response, _MAX_BODY)))
                else:
                    raise ModelError(
                        f"{url} answered with {kind or 'something unnamed'} instead of JSON; is "
                        "the base URL right?"
                    )
            return self._reply(reader)
        except IncompleteError as error:
            raise PassingError(f"{self.endpoint.place} sent a broken reply: {error}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise faults.of_transport(error, self.endpoint) from None

    def _reply(self, reader: Reader) -> Reply:
        if reader.length > MAX_REPLY:
            reply = reader.reply()
            return replace(reply, text=reply.text[:MAX_REPLY], finish_reason="length")
        if reader.complete:
            return reader.reply()
        raise IncompleteError("it ended in the middle")

    async def _stream(self, response: httpx.Response, reader: Reader) -> None:
        chunks = response.aiter_bytes()
        try:
            async for name, data in sse.events(chunks):
                if data == "[DONE]":
                    break
                payload = _object(data)
                _raise_error_event(name, payload, self.endpoint)
                reader.feed(payload)
                if reader.done or reader.length > MAX_REPLY:
                    break
        except sse.LineTooLongError as error:
            raise IncompleteError(str(error)) from error
        if reader.length <= MAX_REPLY:
            with contextlib.suppress(TimeoutError, httpx.HTTPError):
                async with asyncio.timeout(_DRAIN_SECONDS):
                    async for _ in chunks:
                        pass

    async def _refusal(
        self, response: httpx.Response, headers: Mapping[str, str]
    ) -> ModelError | PassingError:
        body = await _beginning(response, _MAX_ERROR)
        if response.status_code != httpx.codes.NOT_FOUND:
            return faults.of_status(response, body, self.endpoint)
        said = self.endpoint.clean(faults.message_of(body))[:300]
        model, place = self.endpoint.model, self.endpoint.place
        try:
            served = await self.served(headers)
        except ModelError:
            return ModelError(
                f"{response.url} is not there (404): {said}. Is the base URL right? It often ends "
                "in /v1."
            )
        if model in (listed.name for listed in served):
            return ModelError(f"{place} has the model {model!r}, but not this API (404): {said}")
        names = ", ".join(listed.name for listed in served[:_LISTED]) or "none"
        more = f" and {len(served) - _LISTED} more" if len(served) > _LISTED else ""
        return ModelError(f"{place} has no model {model!r}; it has: {names}{more}.")

    async def served(self, headers: Mapping[str, str]) -> list[Listed]:
        """The models that the server has. Raises ModelError where it does not say."""
        url = self.endpoint.url("models")
        try:
            response = await self._client.get(url, headers=headers, timeout=_MODELS_SECONDS)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _unlisted(faults.of_transport(error, self.endpoint)) from None
        if response.status_code != httpx.codes.OK:
            raise _unlisted(
                faults.of_status(response, response.content[:_MAX_ERROR], self.endpoint)
            )
        try:
            return [Listed(str(card["id"]), _sees(card)) for card in response.json()["data"]]
        except (ValueError, KeyError, TypeError):
            raise ModelError(f"{url} is no list of models; is the base URL right?") from None


def _unlisted(fault: Exception) -> ModelError:
    return ModelError(f"The models cannot be listed: {sentence(str(fault))}")


def _sees(card: Mapping[str, Any]) -> bool:
    """By `architecture.input_modalities`, as Pagoda, llama-server and OpenRouter write it."""
    architecture = card.get("architecture")
    takes = architecture.get("input_modalities") if isinstance(architecture, dict) else None
    return not isinstance(takes, list) or "image" in takes


async def _beginning(response: httpx.Response, limit: int) -> bytes:
    """The body; what is beyond `limit` is not read, so that no server fills the memory."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > limit:
            return bytes(body[:limit])
    return bytes(body)


def _object(data: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise IncompleteError("it is not JSON") from error
    if not isinstance(value, dict):
        raise IncompleteError("it is no JSON object")
    return value


def _raise_error_event(name: str, payload: dict[str, Any], endpoint: Endpoint) -> None:
    """Errors in the middle of a stream; the status was 200 already. They may pass: engines
    restart, and servers that are too busy say so here."""
    error = payload.get("error")
    if name != "error" and payload.get("type") != "error" and not error:
        return
    said = endpoint.clean(faults.message_of(json.dumps(payload).encode()))[:300]
    raise PassingError(f"{endpoint.place} broke off: {said}")
