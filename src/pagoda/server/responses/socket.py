"""Responses over a WebSocket: the client asks with `response.create`, and gets the events of a
stream, each as a text message. A client sends what is new alone: the connection remembers the
rest, whether or not it is stored."""

import asyncio
from contextlib import ExitStack
from typing import Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from pagoda.base.errors import RequestError
from pagoda.server.bodies.body import parse_fields, parse_object
from pagoda.server.context import LEASES, context_of
from pagoda.server.errors import ApiError, to_api_error
from pagoda.server.protocol.responses import ResponsesRequest
from pagoda.server.replies.respond import counted
from pagoda.server.responses.asked import Prepared, prepared
from pagoda.server.responses.registry import responses_of
from pagoda.server.responses.run import ResponseRun
from pagoda.server.responses.store import Stored

_CREATE = "response.create"
# Of HTTP alone: all is streamed here, and lives as long as the connection.
_TRANSPORT = ("type", "stream", "background", "generate")
_UNSUPPORTED_DATA = 1003


class ResponsesSocket:
    """One connection; one response at a time is written to it."""

    def __init__(self, websocket: WebSocket):
        self._socket = websocket
        self._context = context_of(websocket)
        self._turns: dict[str, Stored] = {}
        """The last response, and those that it follows."""

    async def serve(self) -> None:
        """Until the client leaves."""
        await self._socket.accept()
        try:
            while (text := await self._receive()) is not None:
                with ExitStack() as leases:
                    self._socket.scope[LEASES] = leases
                    await self._answer(text)
        except WebSocketDisconnect:
            return
        if self._socket.client_state is WebSocketState.CONNECTED:
            await self._socket.close(_UNSUPPORTED_DATA, "Messages are JSON texts.")

    async def _receive(self) -> str | None:
        """The next message; None for one that is no text."""
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1000))
        text: str | None = message.get("text")
        return text

    async def _answer(self, text: str) -> None:
        try:
            fields = await self._fields(text)
            generates = fields.get("generate") is not False
            body = self._body(fields, generates=generates)
            asked = await prepared(self._socket, body, self._turns)
            if not generates:
                asked.builder.leave_out()
            with counted(self._context.metrics):
                await self._write(asked, body)
        except (asyncio.CancelledError, WebSocketDisconnect):
            raise
        except Exception as error:  # noqa: BLE001  # the edge: it becomes an event
            await self._refuse(to_api_error(error))

    async def _fields(self, text: str) -> dict[str, Any]:
        fields = await parse_object(text.encode())
        if fields.get("type") != _CREATE:
            raise RequestError(f"The type of a message must be {_CREATE!r}.", "type")
        return fields

    def _body(self, fields: dict[str, Any], *, generates: bool) -> ResponsesRequest:
        asked = {name: value for name, value in fields.items() if name not in _TRANSPORT}
        if not generates:
            asked |= {"max_output_tokens": 1, "store": False}
        return parse_fields(asked, ResponsesRequest, self._socket.url.path)

    async def _write(self, asked: Prepared, body: ResponsesRequest) -> None:
        interval = self._context.config.sse_keep_alive_interval
        run = ResponseRun(asked.builder, asked.items, interval)
        if body.store:
            responses_of(self._socket).keep(run)
        watching = asyncio.create_task(self._watch(run))
        try:
            async for events in run.log.read(0):
                for event in events:
                    await self._send(_data_of(event))
        finally:
            watching.cancel()
            run.cancel()
            (ended,) = await asyncio.gather(watching, return_exceptions=True)
        if isinstance(ended, WebSocketDisconnect):
            raise ended
        if run.error is None:
            self._remember(asked)

    async def _watch(self, run: ResponseRun) -> None:
        """What the client says while it is written to."""
        try:
            while True:
                text = await self._receive()
                if text is not None and _type_of(text) == "response.cancel":
                    run.cancel()
                else:
                    await self._refuse(
                        ApiError(
                            409, "A response is being written; wait for its end, or open another "
                            "connection.", kind="response_in_progress",
                        )
                    )  # fmt: skip
        finally:
            run.cancel()

    def _remember(self, asked: Prepared) -> None:
        response = asked.builder.response
        if response.previous_response_id not in self._turns:
            self._turns.clear()
        self._turns[response.id] = Stored(
            id=response.id,
            previous_id=response.previous_response_id,
            # All that a conversation needs of it; tools and instructions come anew each time.
            response=msgspec.json.encode({"output": response.output}),
            input=msgspec.json.encode(asked.items),
        )

    async def _refuse(self, error: ApiError) -> None:
        info = error.info
        unknown = error.status == 404 and info.param == "previous_response_id"
        told = {
            "type": info.type,
            "code": "previous_response_not_found" if unknown else info.type,
            "message": info.message,
            "param": info.param,
        }
        event = {"type": "error", "status": error.status, "error": told}
        await self._send(msgspec.json.encode(event).decode())

    async def _send(self, text: str) -> None:
        await self._socket.send_text(text)


def _data_of(event: bytes) -> str:
    """An event of a stream without what server-sent events have around it."""
    return event.partition(b"\ndata: ")[2].rstrip(b"\n").decode()


def _type_of(text: str) -> object:
    try:
        fields = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return fields.get("type") if isinstance(fields, dict) else None
