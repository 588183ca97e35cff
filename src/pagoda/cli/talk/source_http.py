"""Replies from an OpenAI-compatible server."""

from collections.abc import AsyncIterator
from typing import Any

import httpx

from pagoda.base.errors import ConfigError
from pagoda.base.words import say
from pagoda.bench.sse import ServerError, error_message, events, is_this_machine, transport_message
from pagoda.cli.talk.source import Clock, Piece, Usage, piece_of
from pagoda.config.sampling import NUMBERS
from pagoda.text.parsers.select import parser_for

_CONNECT_SECONDS = 5.0
_PROBE_SECONDS = 0.5


class HttpSource:
    """A model behind `base_url` (which ends in /v1)."""

    def __init__(self, client: httpx.AsyncClient, base_url: str, card: dict[str, Any]):
        """`card` is the model's, of the server's list."""
        self.model: str = card["id"]
        self.place = say("at {url}", url=base_url)
        self._base_url = base_url
        self.max_model_len: int | None = card.get("max_model_len")
        inputs = (card.get("architecture") or {}).get("input_modalities")
        self.sees = None if inputs is None else "image" in inputs
        self.defaults: dict[str, Any] = {}
        self._client = client

    @classmethod
    async def connect(
        cls, base_url: str, *, model: str | None = None, api_key: str | None = None
    ) -> "HttpSource":
        """Ask the server which models it has; `model` None takes the first.

        Raises ServerError if it does not answer, ConfigError for a model it does not serve.
        """
        client = _client(api_key, _CONNECT_SECONDS, is_this_machine(base_url))
        try:
            cards = await _models(client, base_url)
            card = _choose(cards, model, base_url)
            source = cls(client, base_url, card)
            await source.ask_defaults()
        except BaseException:
            await client.aclose()
            raise
        return source

    async def ask_defaults(self) -> None:
        """As llama-server's /props tells them; other servers have none."""
        url = self._base_url.removesuffix("/v1") + "/props"
        try:
            response = await self._client.get(
                url, params={"model": self.model}, timeout=_PROBE_SECONDS
            )
            found = response.raise_for_status().json()["default_generation_settings"]["params"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return
        if not isinstance(found, dict):
            return
        self.defaults = found | {
            number.name: found[number.native] for number in NUMBERS if number.native in found
        }
        for unset in ("max_tokens", "seed"):
            if self.defaults.get(unset) == -1:
                self.defaults[unset] = None

    async def chat(
        self, messages: list[dict[str, Any]], options: dict[str, Any]
    ) -> AsyncIterator[Piece | Usage]:
        body = {"messages": messages, **options}
        async for item in self._stream("/chat/completions", body):
            yield item

    async def complete(self, prompt: str, options: dict[str, Any]) -> AsyncIterator[Piece | Usage]:
        # Completions come raw, and nothing tells the model's family: think tags are for all.
        parser = parser_for(None, reasoning="generic")(prompt)
        async for item in self._stream("/completions", {"prompt": prompt, **options}):
            deltas = parser.finish() if isinstance(item, Usage) else parser.feed(item.text)
            for delta in deltas:
                yield piece_of(delta)
            if isinstance(item, Usage):
                yield item

    async def count(self, messages: list[dict[str, Any]]) -> int | None:
        """As vLLM's /tokenize counts them; other servers have none."""
        body = {"model": self.model, "messages": messages, "add_generation_prompt": False}
        url = self._base_url.removesuffix("/v1") + "/tokenize"
        try:
            response = await self._client.post(url, json=body, timeout=_PROBE_SECONDS)
            return int(response.raise_for_status().json()["count"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None

    async def close(self) -> None:
        await self._client.aclose()

    async def _stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[Piece | Usage]:
        body |= {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        clock, finish, count = Clock(), None, 0
        usage: dict[str, Any] = {}
        timings: dict[str, Any] = {}
        try:
            async with self._client.stream("POST", self._base_url + path, json=body) as response:
                async for event in events(response):
                    usage = event.get("usage") or usage
                    timings = event.get("timings") or timings
                    for choice in event.get("choices") or ():
                        finish = choice.get("finish_reason") or finish
                        for piece in _pieces(choice):
                            clock.mark()
                            count += 1
                            yield piece
        except httpx.HTTPError as error:
            raise ServerError(transport_message(error, self._base_url)) from error
        details = usage.get("prompt_tokens_details") or {}
        yield clock.usage(
            usage.get("prompt_tokens", 0),
            usage.get("completion_tokens", count),
            details.get("cached_tokens") or 0,
            finish,
            (timings.get("draft_n") or 0, timings.get("draft_n_accepted") or 0),
        )


async def find_local(port: int, model: str | None, api_key: str | None) -> HttpSource | None:
    """A server on this machine's `port` that serves `model` (None: any), or None.

    Raises ServerError where any would do but the server wants a key.
    """
    url = f"http://127.0.0.1:{port}/v1"
    client = _client(api_key, _PROBE_SECONDS, local=True)
    try:
        cards = await _models(client, url, timeout=_PROBE_SECONDS)
    except ServerError as error:
        await client.aclose()
        if model is None and error.status == httpx.codes.UNAUTHORIZED:
            raise
        return None
    card = next((card for card in cards if _fits(card, model)), None)
    if card is None:
        await client.aclose()
        return None
    source = HttpSource(client, url, card)
    await source.ask_defaults()
    return source


def _client(api_key: str | None, connect: float, local: bool) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    # A reply may take as long as it takes; only the connection has a limit. A proxy from the
    # environment never leads to this machine.
    timeout = httpx.Timeout(None, connect=connect)
    return httpx.AsyncClient(headers=headers, timeout=timeout, trust_env=not local)


async def _models(
    client: httpx.AsyncClient, base_url: str, timeout: float = _CONNECT_SECONDS
) -> list[dict[str, Any]]:
    try:
        response = await client.get(base_url + "/models", timeout=timeout)
    except httpx.RemoteProtocolError as error:
        raise ServerError(_foreign(base_url)) from error
    except httpx.TimeoutException as error:
        raise ServerError(f"{base_url} did not answer within {timeout:g} seconds.") from error
    except httpx.HTTPError as error:
        raise ServerError(transport_message(error, base_url)) from error
    if response.status_code == httpx.codes.NOT_FOUND:
        raise ServerError(_foreign(base_url), response.status_code)
    if response.status_code != httpx.codes.OK:
        raise ServerError(error_message(response), response.status_code)
    try:
        cards = response.json()["data"]
        return [card for card in cards if isinstance(card["id"], str)]
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(_foreign(base_url)) from error


def _foreign(base_url: str) -> str:
    return f"{base_url} answers, but not as an OpenAI-compatible server."


def _choose(cards: list[dict[str, Any]], model: str | None, url: str) -> dict[str, Any]:
    for card in cards:
        if _fits(card, model):
            return card
    if not cards:
        raise ConfigError(f"The server at {url} has no model.")
    names = ", ".join(card["id"] for card in cards)
    raise ConfigError(f"The server at {url} has no model {model!r}; it has {names}.")


def _fits(card: dict[str, Any], model: str | None) -> bool:
    return model is None or model in (card["id"], card.get("root"))


def _pieces(choice: dict[str, Any]) -> list[Piece]:
    """Text of one choice: chat replies carry a delta, completions a text."""
    delta = choice.get("delta") or {}
    thought = delta.get("reasoning") or delta.get("reasoning_content")
    text = delta.get("content") or choice.get("text")
    pieces = [Piece("reasoning", thought)] if thought else []
    return [*pieces, Piece("text", text)] if text else pieces
