"""What servers answer, in each API's own form: whole, and as the events of a stream."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.agent.model_server import Step


def whole(api: str, step: "Step") -> dict[str, Any]:
    maker = {"openai": _chat, "anthropic": _message, "responses": _response, "dashscope": _native}
    return maker[api](step)


def events(api: str, step: "Step") -> list[tuple[str, str]]:
    """(name, data) of each."""
    maker = {
        "openai": _chat_events,
        "anthropic": _message_events,
        "responses": _response_events,
        "dashscope": _native_events,
    }
    return [
        (name, data if isinstance(data, str) else json.dumps(data, ensure_ascii=False))
        for name, data in maker[api](step)
    ]


def _pieces(text: str) -> list[str]:
    """At least two, so that a stream has a middle."""
    size = max(1, -(-len(text) // 6))
    return [text[start : start + size] for start in range(0, len(text), size)]


def _chat_usage(step: "Step") -> dict[str, Any] | None:
    if step.usage is None:
        return None
    given, cached, made = step.usage
    return {
        "prompt_tokens": given,
        "completion_tokens": made,
        "total_tokens": given + made,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _chat_finish(step: "Step") -> str:
    return "tool_calls" if step.tool_calls and step.finish == "stop" else step.finish


def _chat_calls(step: "Step") -> list[dict[str, Any]]:
    return [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in step.tool_calls
    ]


def _chat(step: "Step") -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": step.text or None}
    if step.reasoning:
        message["reasoning_content"] = step.reasoning
    if step.tool_calls:
        message["tool_calls"] = _chat_calls(step)
    choice = {"index": 0, "message": message, "finish_reason": _chat_finish(step)}
    reply = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [choice],
    }
    return reply | ({"usage": _chat_usage(step)} if step.usage else {})


def _chat_events(step: "Step") -> Iterator[tuple[str, Any]]:
    base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> tuple[str, Any]:
        return "", {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(step.reasoning):
        yield chunk({"reasoning_content": piece})
    for piece in _pieces(step.text):
        yield chunk({"content": piece})
    for index, call in enumerate(_chat_calls(step)):
        first, *rest = _pieces(call["function"]["arguments"]) or [""]
        function = {**call["function"], "arguments": first}
        yield chunk({"tool_calls": [{**call, "index": index, "function": function}]})
        for piece in rest:
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, _chat_finish(step))
    if step.usage:
        yield "", {**base, "choices": [], "usage": _chat_usage(step)}
    yield "", "[DONE]"


def _message_usage(step: "Step") -> dict[str, Any]:
    given, cached, made = step.usage or (0, 0, 0)
    return {
        "input_tokens": given - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": made,
    }


def _message(step: "Step") -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if step.reasoning:
        content.append({"type": "thinking", "thinking": step.reasoning, "signature": "c2ln"})
    if step.text:
        content.append({"type": "text", "text": step.text})
    for call_id, name, arguments in step.tool_calls:
        used = {"type": "tool_use", "id": call_id, "name": name, "input": json.loads(arguments)}
        content.append(used)
    stop = "tool_use" if step.tool_calls else "end_turn"
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": content,
        "stop_reason": "max_tokens" if step.finish == "length" else stop,
        "stop_sequence": None,
        "usage": _message_usage(step),
    }


def _message_events(step: "Step") -> Iterator[tuple[str, Any]]:
    reply = _message(step)
    begun = {**reply, "content": [], "stop_reason": None}
    yield "message_start", {"type": "message_start", "message": begun}
    yield "ping", {"type": "ping"}
    for index, block in enumerate(reply["content"]):
        kind = block["type"]
        if kind == "tool_use":
            empty = {**block, "input": {}}
            deltas = [
                {"type": "input_json_delta", "partial_json": piece}
                for piece in ["", *_pieces(json.dumps(block["input"]))]
            ]
        else:
            name = "thinking" if kind == "thinking" else "text"
            empty = {**block, name: ""} | ({"signature": ""} if kind == "thinking" else {})
            deltas = [{"type": f"{name}_delta", name: piece} for piece in _pieces(block[name])]
            if kind == "thinking":
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
        yield (
            "content_block_start",
            {"type": "content_block_start", "index": index, "content_block": empty},
        )
        for delta in deltas:
            data = {"type": "content_block_delta", "index": index, "delta": delta}
            yield "content_block_delta", data
        yield "content_block_stop", {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": reply["usage"]["output_tokens"]}
    yield "message_delta", {"type": "message_delta", "delta": delta, "usage": usage}
    yield "message_stop", {"type": "message_stop"}


def _response(step: "Step") -> dict[str, Any]:
    """A tool call is a computer call; its arguments hold `actions` and perhaps
    `pending_safety_checks`."""
    output: list[dict[str, Any]] = []
    if step.reasoning:
        summary = [{"type": "summary_text", "text": step.reasoning}]
        output.append(
            {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "eA=="}
        )
    if step.text:
        part = {"type": "output_text", "text": step.text, "annotations": []}
        output.append(
            {
                "type": "message",
                "id": "m_1",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        )
    for call_id, _, arguments in step.tool_calls:
        call = {"type": "computer_call", "id": f"cu_{call_id}", "call_id": call_id}
        checks = {"pending_safety_checks": [], "status": "completed"}
        output.append({**call, **checks, **json.loads(arguments)})
    given, cached, made = step.usage or (0, 0, 0)
    usage = {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": given + made,
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed" if step.finish == "stop" else "incomplete",
        "model": "scripted",
        "output": output,
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage if step.usage else None,
    }


def _response_events(step: "Step") -> Iterator[tuple[str, Any]]:
    reply = _response(step)
    begun = {**reply, "status": "in_progress", "output": [], "usage": None}
    kind = "response.created"
    yield kind, {"type": kind, "sequence_number": 0, "response": begun}
    for index, item in enumerate(reply["output"]):
        yield from _item_events(index, item)
    kind = "response.completed" if step.finish == "stop" else "response.incomplete"
    yield kind, {"type": kind, "sequence_number": 99, "response": reply}


def _item_events(index: int, item: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    def event(kind: str, **fields: Any) -> tuple[str, Any]:
        return kind, {"type": kind, "sequence_number": 1, "output_index": index, **fields}

    if item["type"] != "message":
        yield event("response.output_item.added", item=item)
    else:
        (part,) = item["content"]
        place = {"item_id": item["id"], "content_index": 0}
        yield event("response.output_item.added", item={**item, "content": []})
        yield event("response.content_part.added", **place, part={**part, "text": ""})
        for piece in _pieces(part["text"]):
            yield event("response.output_text.delta", **place, delta=piece, logprobs=[])
        yield event("response.output_text.done", **place, text=part["text"], logprobs=[])
        yield event("response.content_part.done", **place, part=part)
    yield event("response.output_item.done", item=item)


def _native(step: "Step", text: str | None = None, finish: str | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": [{"text": step.text if text is None else text}],
    }
    if step.reasoning and text is None:
        message["reasoning_content"] = step.reasoning
    choice = {"message": message, "finish_reason": finish or step.finish}
    reply: dict[str, Any] = {"output": {"choices": [choice]}, "request_id": "r"}
    if step.usage:
        given, cached, made = step.usage
        reply["usage"] = {
            "input_tokens": given,
            "output_tokens": made,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
    return reply


def _native_events(step: "Step") -> Iterator[tuple[str, Any]]:
    for piece in _pieces(step.text):
        yield "result", _native(step, piece, "null")
    yield "result", _native(step, "", step.finish)
