"""How clients come in: as the server's own code does, or through the HTTP application."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pagoda.base.errors import PagodaError, RequestError
from pagoda.core.messages import RequestDelta
from pagoda.engine.requests import fan_out
from pagoda.engine.served.fleet import Fleet
from tests.simulation.model import pixels_of
from tests.simulation.scenario import Ask


@dataclass
class Outcome:
    """What a client has seen of a request."""

    ask: Ask
    model: str
    tokens: list[list[int]] = field(default_factory=list)
    """Of each choice."""
    reasons: list[str | None] = field(default_factory=list)
    vector: bytes | None = None
    errors: list[str] = field(default_factory=list)
    at_fault: bool = False
    """The error says that the request is wrong."""
    busy: bool = False
    """It was refused because others wait."""
    left: bool = False
    ended: bool = False
    broken: list[str] = field(default_factory=list)
    """What no client should see."""

    def __post_init__(self) -> None:
        self.tokens = [[] for _ in range(self.ask.n)]
        self.reasons = [None] * self.ask.n

    @property
    def complete(self) -> bool:
        return not self.errors and None not in self.reasons

    def add(self, index: int, token_ids: list[int], reason: str | None) -> None:
        if self.reasons[index] is not None or self.errors:
            self.broken.append(f"choice {index} goes on after its end")
        self.tokens[index] += token_ids
        self.reasons[index] = reason and str(reason)

    def fail(self, error: str) -> None:
        if self.errors:
            self.broken.append(f"a second error: {error}")
        self.errors.append(error)


Door = Callable[[Outcome], Awaitable[None]]


class DirectDoor:
    """Through fleet and client, as `Generation` goes."""

    def __init__(self, fleet: Fleet):
        self._fleet = fleet

    async def __call__(self, outcome: Outcome) -> None:
        ask = outcome.ask
        task = asyncio.current_task()
        assert task is not None
        leaving = None

        def leave() -> None:
            outcome.left = True
            task.cancel()

        if ask.leaves_after is not None:
            leaving = asyncio.get_running_loop().call_later(ask.leaves_after, leave)
        try:
            await self._ask(outcome)
        except PagodaError as error:
            outcome.fail(f"{type(error).__name__}: {error}")
            outcome.busy = type(error).__name__ == "QueueFullError"
            outcome.at_fault = isinstance(error, RequestError) and not outcome.busy
        except OSError as error:  # a picture that cannot be written
            outcome.fail(repr(error))
        except asyncio.CancelledError:
            if not outcome.left:
                raise
        finally:
            if leaving is not None:
                leaving.cancel()

    async def _ask(self, outcome: Outcome) -> None:
        ask = outcome.ask
        entry = self._fleet.find(outcome.model)
        with entry.used():
            client = (await self._fleet.ready(entry)).client
            # A copy of its own: paths of pictures are written into it.
            message = msgspec.msgpack.decode(
                msgspec.msgpack.encode(ask.message), type=type(ask.message)
            )
            requests = fan_out(message, ask.n)
            pixels = {item.content_hash: pixels_of(item.content_hash) for item in message.media}
            inbox = client.submit(requests, pixels)
            places = {request.req_id: i for i, request in enumerate(requests)}
            try:
                while None in outcome.reasons:
                    await inbox.arrival()
                    for delta in inbox.take():
                        self._take(outcome, places[delta.req_id], delta)
                    if ask.reads_every:
                        await asyncio.sleep(ask.reads_every)
            finally:
                client.drop(places)

    def _take(self, outcome: Outcome, index: int, delta: RequestDelta) -> None:
        outcome.add(index, delta.token_ids, delta.finish_reason)
        outcome.vector = delta.embedding or outcome.vector
        if outcome.ask.message.sampling.logprobs is not None:
            told = [entry.token_id for entry in delta.logprobs or []]
            if told != delta.token_ids:
                outcome.broken.append("log-probabilities of other tokens")
        if delta.error is not None:
            outcome.at_fault = outcome.at_fault or delta.bad_request
            # Each choice has its own; the others go on.
            outcome.reasons[index] = f"error: {delta.error}"


class HttpDoor:
    """As ASGI messages, to /inference/v1/generate; streams are read as server-sent events."""

    def __init__(self, app: Any):
        self._app = app
        self.num_requests = 0

    async def __call__(self, outcome: Outcome) -> None:
        ask = outcome.ask
        sampling = ask.message.sampling
        body = {
            "model": outcome.model,
            "token_ids": ask.message.prompt_token_ids,
            "stream": ask.stream,
            "priority": ask.message.priority,
            "cache_salt": ask.message.cache_salt,
            "sampling_params": {
                "n": ask.n,
                "temperature": 0,
                "max_tokens": sampling.max_tokens,
                "stop_token_ids": sampling.stop_token_ids,
                "ignore_eos": True,
                "logprobs": sampling.logprobs,
            },
        }
        self.num_requests += 1
        reply = _Reply(outcome)
        leaving = None
        if ask.leaves_after is not None:
            leaving = asyncio.get_running_loop().call_later(ask.leaves_after, reply.leave)
        await self._app(_scope("POST", "/inference/v1/generate"), reply.receiver(body), reply.send)
        if leaving is not None:
            leaving.cancel()
        reply.finish()

    async def get(self, path: str) -> tuple[int, bytes]:
        self.num_requests += 1
        messages: list[Any] = []

        async def send(message: Any) -> None:
            messages.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        await self._app(_scope("GET", path), receive, send)
        body = b"".join(message.get("body", b"") for message in messages[1:])
        return messages[0]["status"], body


class _Reply:
    """The client's side of one HTTP request."""

    def __init__(self, outcome: Outcome):
        self._outcome = outcome
        self._gone = asyncio.Event()
        self._status = 0
        self._rest = b""
        self._body = b""
        self._done = False

    def receiver(self, body: dict[str, Any]) -> Callable[[], Awaitable[Any]]:
        given = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

        async def receive() -> Any:
            if given:
                return given.pop()
            await self._gone.wait()
            return {"type": "http.disconnect"}

        return receive

    def leave(self) -> None:
        self._outcome.left = True
        self._gone.set()

    async def send(self, message: Any) -> None:
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
            return
        self._body += message["body"]
        if self._status == 200 and self._outcome.ask.stream:
            self._read_events(message["body"])
        if self._outcome.ask.reads_every:
            await asyncio.sleep(self._outcome.ask.reads_every)

    def finish(self) -> None:
        """The application has returned."""
        outcome = self._outcome
        if outcome.left:
            return
        if self._status != 200:
            error = json.loads(self._body)["error"]["message"]
            outcome.fail(f"{self._status}: {error}")
            outcome.busy = error.startswith("The server is busy")
            outcome.at_fault = 400 <= self._status < 500 and not outcome.busy
        elif not outcome.ask.stream:
            for choice in json.loads(self._body)["choices"]:
                outcome.add(choice["index"], choice["token_ids"], choice["finish_reason"])
        elif not self._done:
            outcome.broken.append("a stream ended without [DONE]")

    def _read_events(self, data: bytes) -> None:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for one in events:
            if one.startswith(b":"):
                continue
            if self._done:
                self._outcome.broken.append("an event behind the last one")
            if one == b"data: [DONE]":
                self._done = True
                continue
            chunk = json.loads(one.removeprefix(b"data: "))
            if "error" in chunk:
                self._outcome.fail(chunk["error"]["message"])
            for choice in chunk.get("choices", ()):
                reason = choice.get("finish_reason")
                self._outcome.add(choice["index"], choice.get("token_ids") or [], reason)


def _scope(method: str, path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
