"""One request of a load test against an OpenAI-compatible server, timed as its stream comes."""

import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from pagoda.bench.sse import ServerError, error_message, events, transport_message
from pagoda.bench.stats import RequestRecord


@dataclass(frozen=True)
class Prompt:
    """Text or token ids, and how much is generated from it."""

    content: str | list[int]
    prompt_tokens: int
    """As far as known before; the server's own count replaces it."""
    output_tokens: int


@dataclass
class LoadClient:
    http: httpx.AsyncClient
    """Its base URL is the server's."""
    endpoint: str
    """/v1/completions or /v1/chat/completions."""
    model: str
    fields: dict[str, Any] = field(default_factory=dict)
    """Further fields of every request's body."""

    @property
    def is_chat(self) -> bool:
        return self.endpoint.endswith("/chat/completions")

    async def send(self, prompt: Prompt) -> RequestRecord:
        """Stream one reply. A failure is in the record's `error`, never raised."""
        record = RequestRecord(prompt.prompt_tokens, started=time.perf_counter())
        try:
            async with self.http.stream("POST", self.endpoint, json=self._body(prompt)) as response:
                await self._read(response, record)
        except ServerError as error:
            record.error = str(error)
        except httpx.HTTPError as error:
            record.error = transport_message(error, str(self.http.base_url))
        return record

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        if self.is_chat:
            start: dict[str, Any] = {"messages": [{"role": "user", "content": prompt.content}]}
        else:
            start = {"prompt": prompt.content}
        return {
            "model": self.model,
            **start,
            "max_tokens": prompt.output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.fields,
        }

    async def _read(self, response: httpx.Response, record: RequestRecord) -> None:
        last, chunks = record.started, 0
        usage: dict[str, Any] = {}
        async for event in events(response):
            usage = event.get("usage") or usage
            text = "".join(_text(choice) for choice in event.get("choices") or ())
            if not text:
                continue
            now = time.perf_counter()
            if chunks:
                record.itls.append(now - last)
            else:
                record.ttft = now - record.started
            chunks, last = chunks + 1, now
            record.text += text
        record.latency = last - record.started
        record.output_tokens = usage.get("completion_tokens") or chunks
        record.prompt_tokens = usage.get("prompt_tokens") or record.prompt_tokens
        if not chunks:
            record.error = "The server sent no token."


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta") or {}
    thought = delta.get("reasoning") or delta.get("reasoning_content") or ""
    return thought + (delta.get("content") or choice.get("text") or "")


class ServerTokenizer:
    """The server's own tokenizer (`/tokenize` of Pagoda and vLLM), where it has one."""

    def __init__(self, http: httpx.AsyncClient, model: str):
        self._http = http
        self._model = model
        self._works = True

    async def ids(self, text: str) -> list[int] | None:
        """Token ids of `text`; None where the server does not tell."""
        if not self._works:
            return None
        body = {"model": self._model, "prompt": text, "content": text, "add_special_tokens": False}
        try:
            response = await self._http.post("/tokenize", json=body)
            tokens = response.json()["tokens"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            self._works = False
            return None
        return [int(token) for token in tokens]

    async def count(self, text: str) -> int:
        """Tokens of `text`; where the server does not tell, a token has 4 characters."""
        ids = await self.ids(text)
        return len(ids) if ids is not None else max(1, len(text) // 4)


async def first_model(http: httpx.AsyncClient) -> str:
    """The name of the server's first model. Raises ServerError if it does not answer."""
    try:
        response = await http.get("/v1/models")
    except httpx.HTTPError as error:
        raise ServerError(transport_message(error, str(http.base_url))) from error
    if response.status_code != httpx.codes.OK:
        raise ServerError(error_message(response), response.status_code)
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as error:
        raise ServerError(f"{http.base_url} lists no models; name one with --model.") from error
