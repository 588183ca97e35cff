"""A model that says what a script tells it, behind the APIs that real ones have.

    with ModelServer(["mouse 500 500 1", Step(status=429, headers={"Retry-After": "0"})]) as server:
        ...  # server.url + "/v1"; server.requests

Every reply takes the next step of the script, in whichever API the request came. The server has
a thread and event loop of its own, so blocking tests and child processes can use it too.
"""

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tests.agent import model_replies

API_PATHS = {
    "/v1/chat/completions": "openai",
    "/v1/messages": "anthropic",
    "/v1/responses": "responses",
    "/api/v1/services/aigc/multimodal-generation/generation": "dashscope",
}


@dataclass(frozen=True)
class Step:
    """One answer. What goes wrong is in order of time: delay, status, hang, cut."""

    text: str = ""
    tool_calls: tuple[tuple[str, str, str], ...] = ()
    """(id, name, arguments as JSON) each."""
    reasoning: str = ""
    finish: Literal["stop", "length"] = "stop"
    usage: tuple[int, int, int] | None = (100, 40, 10)
    """Input (with cached), cached, output tokens; None leaves usage out."""
    delay: float = 0.0
    """Seconds before the answer begins."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    plain: bool = False
    """One JSON object, although a stream was asked for."""
    body: bytes | str | None = None
    """Sent instead of a reply, as `content_type`."""
    content_type: str = "application/json"
    hang: Literal["", "before headers", "in the stream"] = ""
    """Then nothing more comes until the client goes."""
    cut: bool = False
    """The connection ends in the middle of the answer's last JSON."""


@dataclass
class Request:
    """What a client sent."""

    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: dict[str, Any]
    raw: bytes
    left: threading.Event = field(default_factory=threading.Event)
    """The client closed the connection while the answer was under way."""

    @property
    def pictures(self) -> int:
        """How many pictures it holds, whatever the API."""
        return self.raw.count(b"base64,") + self.raw.count(b'"type":"base64"')

    def said(self) -> str:
        """All of it as text, for `in`."""
        return json.dumps(self.body, ensure_ascii=False)


Script = Sequence[Step | str | Callable[[Request], Step | str]]


class ModelServer:
    """Listens on a free port of 127.0.0.1 while it is entered."""

    def __init__(
        self,
        script: Script = (),
        models: Sequence[str | dict[str, Any]] = ("scripted",),
        tls: ssl.SSLContext | None = None,
    ):
        """`models`: names, or whole cards of the list."""
        self.requests: list[Request] = []
        self.lists: list[dict[str, str]] = []
        """Headers of each request for the list of models."""
        self.script = list(script)
        """May be added to at any time."""
        self._models = models
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    def __enter__(self) -> "ModelServer":
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _end(self) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request: each connection is closed behind its answer."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        except asyncio.CancelledError:
            pass  # the server's end; Python 3.11 logs connections' tasks that end so
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines if line)
        }
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        if method == "GET" and path == "/v1/models":
            self.lists.append(headers)
            cards = [
                {"id": model, "object": "model"} if isinstance(model, str) else model
                for model in self._models
            ]
            await _send(writer, Step(body=json.dumps({"data": cards})))
        elif path not in API_PATHS:
            page = Step(status=404, body="<html>Not here</html>", content_type="text/html")
            await _send(writer, page)
        else:
            request = Request(path, headers, json.loads(raw), raw)
            self.requests.append(request)
            await self._tell_until_left(request, reader, writer)

    async def _tell_until_left(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        gone = asyncio.ensure_future(reader.read(1))
        telling = asyncio.ensure_future(self._tell(request, writer))
        await asyncio.wait([gone, telling], return_when=asyncio.FIRST_COMPLETED)
        if not telling.done() or telling.exception() is not None:
            request.left.set()
        for task in (gone, telling):
            task.cancel()
        await asyncio.gather(gone, telling, return_exceptions=True)

    async def _tell(self, request: Request, writer: asyncio.StreamWriter) -> None:
        step = self._next(request)
        await asyncio.sleep(step.delay)
        if step.hang == "before headers":
            await asyncio.Event().wait()
        api = API_PATHS[request.path]
        streams = request.body.get("stream") or request.headers.get("x-dashscope-sse") == "enable"
        if step.body is not None or step.status != 200:
            await _send(writer, step)
        elif step.plain or not streams:
            whole = json.dumps(model_replies.whole(api, step))
            await _send(writer, replace(step, body=whole))
        else:
            await _stream(writer, step, model_replies.events(api, step))

    def _next(self, request: Request) -> Step:
        if not self.script:
            return Step(status=400, body='{"error": {"message": "The script is over."}}')
        step = self.script.pop(0)
        if callable(step):
            step = step(request)
        return Step(step) if isinstance(step, str) else step


async def _send(writer: asyncio.StreamWriter, step: Step) -> None:
    error = {"error": {"message": f"scripted error {step.status}", "type": "scripted"}}
    body = step.body if step.body is not None else json.dumps(error)
    data = body.encode() if isinstance(body, str) else body
    headers = {
        "Content-Type": step.content_type,
        "Content-Length": str(len(data)),
        "Connection": "close",
        **step.headers,
    }
    lines = [f"HTTP/1.1 {step.status} Scripted", *(f"{k}: {v}" for k, v in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    writer.write(data[: len(data) // 2] if step.cut else data)
    await writer.drain()


async def _stream(
    writer: asyncio.StreamWriter, step: Step, events: Sequence[tuple[str, str]]
) -> None:
    headers = {
        "Content-Type": "text/event-stream",
        "Transfer-Encoding": "chunked",
        "Connection": "close",
        **step.headers,
    }
    lines = ["HTTP/1.1 200 OK", *(f"{k}: {v}" for k, v in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    middle = len(events) // 2
    for number, (name, data) in enumerate(events):
        text = (f"event: {name}\n" if name else "") + f"data: {data}\n\n"
        if number == middle and step.cut:
            writer.write(_chunk(text[: len(text) // 2]))
            await writer.drain()
            return
        writer.write(_chunk(text))
        if number == middle and step.hang == "in the stream":
            await writer.drain()
            await asyncio.Event().wait()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def _chunk(text: str) -> bytes:
    data = text.encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
