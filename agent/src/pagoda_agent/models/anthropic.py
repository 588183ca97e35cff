"""Anthropic's Messages API, with the beta header that its computer tools ask for.

https://docs.anthropic.com/en/api/messages; Pagoda speaks it too.
"""

import base64
import json
from collections.abc import Sequence
from typing import Any

from pagoda_agent.base.errors import ModelError
from pagoda_agent.models.dialogue import Listed, Message, Picture, Reply, ToolCall, Usage
from pagoda_agent.models.endpoint import Endpoint
from pagoda_agent.models.reading import IncompleteError, Reader, count, items, mapping, text_of
from pagoda_agent.models.transport import Transport

_VERSION = "2023-06-01"
_MAX_TOKENS = 4096
"""This API wants a limit; thoughts and an action take a few hundred."""
_BETAS = {
    "computer_20241022": "computer-use-2024-10-22",
    "computer_20250124": "computer-use-2025-01-24",
    "computer_20251124": "computer-use-2025-11-24",
}
_CACHE = {"cache_control": {"type": "ephemeral"}}


class AnthropicMessages:
    """`base_url` is https://api.anthropic.com/v1 or whatever stands before /messages."""

    def __init__(self, endpoint: Endpoint):
        self._endpoint = endpoint
        self._transport = Transport(endpoint)

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()
    ) -> Reply:
        system = "\n\n".join(message.text for message in messages if message.role == "system")
        body: dict[str, Any] = {
            "model": self._endpoint.model,
            "max_tokens": self._endpoint.max_tokens or _MAX_TOKENS,
            "messages": turns([message for message in messages if message.role != "system"]),
            "stream": True,
        }
        if system:
            body["system"] = [{"type": "text", "text": system, **_CACHE}]
        headers = _headers(self._endpoint)
        if tools:
            body["tools"] = list(tools)
            betas = {_BETAS[tool["type"]] for tool in tools if tool.get("type") in _BETAS}
            if betas:
                headers["anthropic-beta"] = ",".join(sorted(betas))
        body |= dict(self._endpoint.extra)
        return await self._transport.ask("messages", body, headers, MessageReader)

    async def served(self) -> list[Listed]:
        return await self._transport.served(_headers(self._endpoint))

    async def close(self) -> None:
        await self._transport.close()


def _headers(endpoint: Endpoint) -> dict[str, str]:
    headers = {"anthropic-version": _VERSION}
    if endpoint.api_key:
        headers["x-api-key"] = endpoint.api_key
    return headers


def turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Turns of the two roles that the API knows. The last block marks how far the server is to
    keep what it computed; with the system's mark the next request begins there."""
    sent: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if sent and sent[-1]["role"] == role:
            sent[-1]["content"] += blocks
        else:
            sent.append({"role": role, "content": blocks})
    if sent:
        sent[-1]["content"][-1] |= _CACHE
    return sent


def _blocks(message: Message) -> list[dict[str, Any]]:
    if message.role == "assistant":
        return _assistant(message)
    text: list[dict[str, Any]] = [{"type": "text", "text": message.text}] if message.text else []
    content = [*text, *map(_image, message.pictures)]
    if message.role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": content}
        return [result]
    return content or [{"type": "text", "text": "(nothing)"}]


def _assistant(message: Message) -> list[dict[str, Any]]:
    if message.opaque is not None:
        return [dict(block) for block in message.opaque]
    blocks: list[dict[str, Any]] = []
    if message.text.strip():
        blocks.append({"type": "text", "text": message.text.rstrip()})
    for call in message.tool_calls:
        used = json.loads(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": used})
    # The API refuses empty turns.
    return blocks or [{"type": "text", "text": "(nothing)"}]


def _image(picture: Picture) -> dict[str, Any]:
    data = base64.b64encode(picture.data).decode()
    source = {"type": "base64", "media_type": picture.media_type, "data": data}
    return {"type": "image", "source": source}


class MessageReader(Reader):
    """Content blocks, in pieces (message_start ... message_stop) or whole."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, list[str]] = {}
        self._usage: dict[str, Any] = {}
        self._stop = ""

    def feed(self, payload: dict[str, Any]) -> None:
        match payload.get("type"):
            case "message_start":
                message = mapping(payload.get("message"), "a message")
                self._usage |= mapping(message.get("usage"), "the usage")
            case "content_block_start":
                self._start(payload, mapping(payload.get("content_block"), "a block"))
            case "content_block_delta":
                self._extend(payload, mapping(payload.get("delta"), "a delta"))
            case "message_delta":
                self._usage |= mapping(payload.get("usage"), "the usage")
                self._stop = text_of(mapping(payload.get("delta"), "a delta").get("stop_reason"))
            case "message_stop":
                self.done = True

    def whole(self, payload: dict[str, Any]) -> None:
        for index, block in enumerate(items(payload.get("content"), "`content`")):
            self._start({"index": index}, block)
        self._usage = mapping(payload.get("usage"), "the usage")
        self._stop = text_of(payload.get("stop_reason"))
        if payload.get("type") != "message":
            raise IncompleteError("it is no message")
        self.done = True

    def reply(self) -> Reply:
        blocks = [self._whole_block(index) for index in sorted(self._blocks)]
        if self._stop == "refusal":
            raise ModelError("The model declined the request (its provider's safety rules).")
        calls = [block for block in blocks if block.get("type") == "tool_use"]
        cached = count(self._usage, "cache_read_input_tokens")
        fresh = count(self._usage, "input_tokens")
        written = count(self._usage, "cache_creation_input_tokens")
        cut = not self.done or self._stop in ("max_tokens", "model_context_window_exceeded")
        return Reply(
            "".join(text_of(block["text"]) for block in blocks if block.get("type") == "text"),
            tuple(
                ToolCall(text_of(call.get("id")), text_of(call.get("name")), _arguments(call))
                for call in calls
            ),
            "".join(text_of(block.get("thinking")) for block in blocks),
            Usage(fresh + cached + written, cached, count(self._usage, "output_tokens")),
            "length" if cut else self._stop,
            opaque=[block for block in blocks if block.get("text") != ""] or None,
        )

    def _start(self, payload: dict[str, Any], block: dict[str, Any]) -> None:
        self._blocks[self._index(payload)] = dict(block)
        self.length += len(json.dumps(block))

    def _extend(self, payload: dict[str, Any], delta: dict[str, Any]) -> None:
        index = self._index(payload)
        if index not in self._blocks:
            raise IncompleteError("it goes on with a block that did not begin")
        block = self._blocks[index]
        for name in ("text", "thinking", "signature"):
            piece = text_of(delta.get(name))
            if piece:
                block[name] = text_of(block.get(name)) + piece
                self.length += len(piece)
        piece = text_of(delta.get("partial_json"))
        self._inputs.setdefault(index, []).append(piece)
        self.length += len(piece)

    def _index(self, payload: dict[str, Any]) -> int:
        index = payload.get("index")
        if not isinstance(index, int):
            raise IncompleteError("a block has no number")
        return index

    def _whole_block(self, index: int) -> dict[str, Any]:
        """With its input, which comes as text and goes back as an object; text where it is none."""
        block = self._blocks[index]
        written = "".join(self._inputs.get(index, ()))
        if block.get("type") != "tool_use" or not written:
            return block
        try:
            value = json.loads(written)
        except (ValueError, RecursionError):
            value = None
        return block | {"input": value if isinstance(value, dict) else written}


def _arguments(call: dict[str, Any]) -> str:
    used = call.get("input")
    return used if isinstance(used, str) else json.dumps(used if used is not None else {})
