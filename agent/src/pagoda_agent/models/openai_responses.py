"""OpenAI's Responses API, the only one that has its computer tools. Nothing is stored there: each
request brings the whole conversation.

A `computer_call` becomes a tool call named `computer` with the arguments
`{"actions": [...], "pending_safety_checks": [...]}`.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pagoda_agent.base.errors import ModelError
from pagoda_agent.models.dialogue import Listed, Message, Picture, Reply, ToolCall, Usage
from pagoda_agent.models.endpoint import Endpoint
from pagoda_agent.models.openai_chat import bearer, data_url
from pagoda_agent.models.reading import IncompleteError, Reader, count, items, mapping, text_of
from pagoda_agent.models.transport import Transport


class OpenAIResponses:
    """`base_url` ends in /v1 (or whatever stands before /responses)."""

    def __init__(self, endpoint: Endpoint):
        self._endpoint = endpoint
        self._transport = Transport(endpoint)

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()
    ) -> Reply:
        system = "\n\n".join(message.text for message in messages if message.role == "system")
        body: dict[str, Any] = {
            "model": self._endpoint.model,
            "input": list(_Input(messages).items()),
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "stream": True,
        }
        if self._endpoint.max_tokens is not None:
            body["max_output_tokens"] = self._endpoint.max_tokens
        if system:
            body["instructions"] = system
        if tools:
            # Each call's answer is a picture of its own, and there is only one.
            body |= {"tools": list(tools), "parallel_tool_calls": False, "truncation": "auto"}
        return await self._transport.ask(
            "responses",
            body | dict(self._endpoint.extra),
            bearer(self._endpoint),
            ResponseReader,
        )

    async def served(self) -> list[Listed]:
        return await self._transport.served(bearer(self._endpoint))

    async def close(self) -> None:
        await self._transport.close()


class _Input:
    """Items of the conversation. The API takes a picture as the only answer to a computer call,
    and none to a call whose safety checks the user did not allow; what it does not take is told
    in words, and the call with it."""

    def __init__(self, messages: Sequence[Message]):
        self._messages = messages
        self._answers = {m.tool_call_id: m for m in messages if m.role == "tool"}
        self._picture: Picture | None = None

    def items(self) -> Iterator[dict[str, Any]]:
        for number, message in enumerate(self._messages):
            if message.role == "assistant":
                yield from self._assistant(message)
            elif message.role == "tool":
                yield from self._tool(message, number)
            elif message.role == "user":
                self._picture = (*message.pictures, self._picture)[0]
                yield _user(message.text, message.pictures)

    def _assistant(self, message: Message) -> Iterator[dict[str, Any]]:
        if not all(self._takes(call) for call in message.tool_calls):
            told = [
                message.text,
                *(f"{call.name}: {call.arguments}" for call in message.tool_calls),
            ]
            yield _said("\n".join(filter(None, told)))
        elif message.opaque is not None:
            yield from message.opaque
        else:
            yield _said(message.text or "(nothing)")

    def _tool(self, message: Message, number: int) -> Iterator[dict[str, Any]]:
        call = next(
            call
            for before in reversed(self._messages[:number])
            for call in before.tool_calls
            if call.id == message.tool_call_id
        )
        # Its own, or the one before, which still holds.
        picture = (*message.pictures, self._picture)[0]
        if not self._takes(call) or picture is None:
            yield _user(message.text, message.pictures)
            return
        self._picture = picture
        answer: dict[str, Any] = {
            "type": "computer_call_output",
            "call_id": message.tool_call_id,
            "output": {"type": "computer_screenshot", "image_url": data_url(picture)},
        }
        checks = _checks(call)
        if checks:
            answer["acknowledged_safety_checks"] = checks
        yield answer
        if message.text or message.pictures[1:]:
            yield _user(message.text, message.pictures[1:])

    def _takes(self, call: ToolCall) -> bool:
        answer = self._answers.get(call.id)
        return answer is not None and (answer.consented or not _checks(call))


def _user(text: str, pictures: Sequence[Picture]) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "input_text", "text": text}] if text else []
    content += [
        {"type": "input_image", "image_url": data_url(one), "detail": "auto"} for one in pictures
    ]
    return {"role": "user", "content": content}


def _said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _checks(call: ToolCall) -> list[dict[str, Any]]:
    try:
        checks = json.loads(call.arguments).get("pending_safety_checks")
    except (ValueError, AttributeError):
        return []
    return list(checks or [])


class ResponseReader(Reader):
    """Pieces are only counted; the last event brings the whole response."""

    def __init__(self) -> None:
        super().__init__()
        self._response: dict[str, Any] = {}

    def feed(self, payload: dict[str, Any]) -> None:
        kind = text_of(payload.get("type"))
        if kind.endswith(".delta") and isinstance(payload.get("delta"), str):
            self.length += len(payload["delta"])
        if kind in ("response.completed", "response.incomplete", "response.failed"):
            self.whole(mapping(payload.get("response"), "the response"))

    def whole(self, payload: dict[str, Any]) -> None:
        self._response = payload
        if payload.get("status") == "failed":
            error = mapping(payload.get("error"), "the error")
            raise IncompleteError(f"{error.get('code')}: {error.get('message')}")
        if not isinstance(payload.get("output"), list):
            raise IncompleteError("it has no output")
        texts = (text_of(item.get("content")) for item in items(payload["output"], "`output`"))
        self.length = max(self.length, sum(map(len, texts)))
        self.done = True

    def reply(self) -> Reply:
        output = items(self._response.get("output"), "`output`")
        texts, reasoning, calls = [], [], []
        for item in output:
            match item.get("type"):
                case "message":
                    parts = items(item.get("content"), "`content`")
                    refused = [part["refusal"] for part in parts if part.get("refusal")]
                    if refused:
                        raise ModelError(f"The model declined: {text_of(refused[0])[:300]}")
                    texts.append(text_of(parts))
                case "reasoning":
                    reasoning.append(text_of(item.get("summary")))
                case "computer_call":
                    calls.append(_call(item))
        usage = self._response.get("usage")
        return Reply(
            "\n".join(texts),
            tuple(calls),
            "\n".join(reasoning),
            Usage(
                count(usage, "input_tokens"),
                count(usage, "input_tokens_details", "cached_tokens"),
                count(usage, "output_tokens"),
            ),
            "stop" if self._response.get("status") == "completed" else "length",
            opaque=output or None,
        )


def _call(item: dict[str, Any]) -> ToolCall:
    """The preview has one `action`, the later tool a list of `actions`."""
    actions = item.get("actions")
    if actions is None:
        actions = [item["action"]] if item.get("action") is not None else []
    checks = item.get("pending_safety_checks") or []
    arguments = {"actions": actions, "pending_safety_checks": checks}
    return ToolCall(text_of(item.get("call_id")), "computer", json.dumps(arguments))
