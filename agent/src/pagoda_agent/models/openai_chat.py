"""Chat completions, as Pagoda and every OpenAI-compatible server speak them.

https://platform.openai.com/docs/api-reference/chat; DashScope's compatible mode is one of them.
"""

import base64
import uuid
from collections.abc import Sequence
from typing import Any

from pagoda_agent.models.dialogue import Listed, Message, Picture, Reply, ToolCall, Usage
from pagoda_agent.models.endpoint import Endpoint
from pagoda_agent.models.reading import IncompleteError, Reader, count, items, mapping, text_of
from pagoda_agent.models.transport import Transport


class OpenAIChat:
    """`base_url` ends in /v1 (or whatever stands before /chat/completions)."""

    def __init__(self, endpoint: Endpoint):
        self._endpoint = endpoint
        self._transport = Transport(endpoint)

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()
    ) -> Reply:
        body: dict[str, Any] = {
            "model": self._endpoint.model,
            "messages": chat_messages(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._endpoint.max_tokens is not None:
            body["max_tokens"] = self._endpoint.max_tokens
        if tools:
            body["tools"] = list(tools)
        return await self._transport.ask(
            "chat/completions",
            body | dict(self._endpoint.extra),
            bearer(self._endpoint),
            ChatReader,
        )

    async def served(self) -> list[Listed]:
        return await self._transport.served(bearer(self._endpoint))

    async def close(self) -> None:
        await self._transport.close()


def bearer(endpoint: Endpoint) -> dict[str, str]:
    return {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}


def data_url(picture: Picture) -> str:
    return f"data:{picture.media_type};base64,{base64.b64encode(picture.data).decode()}"


def chat_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Tool messages hold text only here, so their pictures go into a user's message behind them."""
    sent: list[dict[str, Any]] = []
    pictures: list[Picture] = []
    for message in messages:
        if message.role == "tool":
            pictures += message.pictures
            sent.append(
                {
                    "role": "tool",
                    "tool_call_id": message.tool_call_id,
                    "content": message.text,
                }
            )
            continue
        if pictures and message.role != "user":
            sent.append({"role": "user", "content": _parts("", pictures)})
            pictures = []
        if message.role == "assistant":
            sent.append(_assistant(message))
        elif message.role == "user":
            content = _parts(message.text, [*pictures, *message.pictures])
            pictures = []
            sent.append({"role": "user", "content": content})
        else:
            sent.append({"role": "system", "content": message.text})
    if pictures:
        sent.append({"role": "user", "content": _parts("", pictures)})
    return sent


def _parts(text: str, pictures: Sequence[Picture]) -> str | list[dict[str, Any]]:
    """Text alone stays a string: not every server takes parts."""
    if not pictures:
        return text
    shown = [{"type": "image_url", "image_url": {"url": data_url(one)}} for one in pictures]
    return ([{"type": "text", "text": text}] if text else []) + shown


def _assistant(message: Message) -> dict[str, Any]:
    sent: dict[str, Any] = {"role": "assistant", "content": message.text}
    if message.tool_calls:
        sent["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return sent


class ChatReader(Reader):
    """The first choice of chunks (`delta`) or of a whole completion (`message`)."""

    def __init__(self) -> None:
        super().__init__()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._finish = ""
        self._usage = Usage()

    @property
    def complete(self) -> bool:
        return bool(self._finish)

    def feed(self, payload: dict[str, Any]) -> None:
        usage = payload.get("usage")
        if isinstance(usage, dict):
            self._usage = Usage(
                count(usage, "prompt_tokens"),
                count(usage, "prompt_tokens_details", "cached_tokens"),
                count(usage, "completion_tokens"),
            )
        for choice in items(payload.get("choices"), "`choices`")[:1]:
            self._delta(mapping(choice.get("delta") or choice.get("message"), "a message"))
            finish = choice.get("finish_reason")
            if isinstance(finish, str) and finish:
                self._finish = finish

    def whole(self, payload: dict[str, Any]) -> None:
        self.feed(payload)
        if not payload.get("choices"):
            raise IncompleteError("it has no choices")
        self._finish = self._finish or "stop"
        self.done = True

    def reply(self) -> Reply:
        calls = [self._calls[index] for index in sorted(self._calls)]
        return Reply(
            "".join(self._text),
            tuple(
                ToolCall(call["id"] or f"call_{uuid.uuid4().hex}", call["name"], call["arguments"])
                for call in calls
            ),
            "".join(self._reasoning),
            self._usage,
            self._finish or "length",
        )

    def _delta(self, delta: dict[str, Any]) -> None:
        text = text_of(delta.get("content"))
        # vLLM's later name, and the one that most servers use.
        thought = text_of(delta.get("reasoning") or delta.get("reasoning_content"))
        self._text.append(text)
        self._reasoning.append(thought)
        self.length += len(text) + len(thought)
        for position, call in enumerate(items(delta.get("tool_calls"), "`tool_calls`")):
            index = call.get("index", position)
            function = mapping(call.get("function"), "a call's function")
            known = self._calls.setdefault(
                index if isinstance(index, int) else position,
                {"id": "", "name": "", "arguments": ""},
            )
            known["id"] = known["id"] or text_of(call.get("id"))
            known["name"] = known["name"] or text_of(function.get("name"))
            arguments = text_of(function.get("arguments"))
            known["arguments"] += arguments
            self.length += len(arguments)
