"""From the body of /v1/messages to a chat request."""

from typing import Any, NamedTuple

from pagoda.base.errors import RequestError
from pagoda.server.anthropic.blocks import is_hosted, part_of, unread
from pagoda.server.bodies.body import parse_fields
from pagoda.server.protocol.anthropic import Blocks, CountTokensRequest, MessagesRequest
from pagoda.server.protocol.chat import ChatCompletionRequest
from pagoda.server.replies.translation import (
    Conversation,
    Part,
    field_of,
    text_part,
    unseal,
    wrong_kind,
)

NAMES = {
    "max_completion_tokens": "max_tokens",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
}
"""Fields by the chat API's names."""

# Claude Code begins its system prompt with this line, which is another one in each request: kept,
# no prefix would ever be found again.
_BILLING = "x-anthropic-billing-header"
_CHOICES: dict[str, Any] = {"auto": "auto", "any": "required", "none": "none"}


class Translated(NamedTuple):
    chat: ChatCompletionRequest
    ignored: list[str]
    """Types of tools and blocks that do nothing here, and fields."""


def chat_request(body: CountTokensRequest, route: str) -> Translated:
    """RequestError or ApiError for what cannot be said in a chat request."""
    fields = body.sampling_fields()
    messages, ignored = _messages(body)
    fields["messages"] = messages
    if isinstance(body, MessagesRequest):
        _check_budget(body)
        fields["max_completion_tokens"] = body.max_tokens
        fields["stop"] = body.stop_sequences
    last = messages[-1]
    if last["role"] == "assistant" and last["content"] and "tool_calls" not in last:
        # A reply that is begun: the model goes on where it ends.
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    variables = dict(body.chat_template_kwargs)
    if body.thinking is not None:
        variables.setdefault("enable_thinking", body.thinking.type != "disabled")
        if body.thinking.type == "enabled":
            fields["thinking_token_budget"] = body.thinking.budget_tokens
    fields["chat_template_kwargs"] = variables
    fields["reasoning_effort"] = body.output_config.effort
    ours = [(i, tool) for i, tool in enumerate(body.tools) if not _is_hosted(tool)]
    fields["tools"] = [_tool(tool, f"tools.{i}") for i, tool in ours]
    fields |= _format(body) | _choice(body, {str(tool.get("name")) for _, tool in ours})
    ignored = [str(tool["type"]) for tool in body.tools if _is_hosted(tool)] + ignored
    if (body.model_extra or {}).get("context_management"):
        ignored.append("context_management")
    return Translated(parse_fields(fields, ChatCompletionRequest, route), ignored)


def _format(body: CountTokensRequest) -> dict[str, Any]:
    """The field that says which form the text must have."""
    fields: dict[str, Any] = {}
    form = body.output_config.format
    if form is not None:
        if form.get("type") != "json_schema":
            raise wrong_kind(form, "output_config.format", "'json_schema'")
        schema = field_of(form, "schema", dict, "output_config.format")
        named = {"name": "output", "schema": schema, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": named}
    return fields


def _choice(body: CountTokensRequest, ours: set[str]) -> dict[str, Any]:
    """Fields that say which of our tools may be called, by name, and how many."""
    choice = body.tool_choice
    if choice is None:
        return {}
    hosted = {str(tool.get("name")) for tool in body.tools} - ours
    named: Any = {"type": "function", "function": {"name": choice.name}}
    if choice.type == "tool":
        wanted = "auto" if choice.name in hosted else named
    else:
        wanted = "auto" if hosted and not ours else _CHOICES[choice.type]
    return {
        "parallel_tool_calls": not choice.disable_parallel_tool_use, "tool_choice": wanted,
    }  # fmt: skip


def _check_budget(body: MessagesRequest) -> None:
    thinking = body.thinking
    if thinking is None or thinking.type != "enabled":
        return
    if thinking.budget_tokens is None or thinking.budget_tokens >= body.max_tokens:
        raise RequestError(
            "thinking.budget_tokens must be given, and be less than max_tokens.",
            "thinking.budget_tokens",
        )


def _is_hosted(tool: dict[str, Any]) -> bool:
    """Whether only Anthropic knows what the tool is, or runs it."""
    return tool.get("type") not in (None, "custom") and "input_schema" not in tool


def _tool(tool: dict[str, Any], path: str) -> dict[str, Any]:
    function = {
        "name": field_of(tool, "name", str, path),
        "description": tool.get("description"),
        "parameters": field_of(tool, "input_schema", dict, path),
        "strict": tool.get("strict"),
    }
    told = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": told}


def _messages(body: CountTokensRequest) -> tuple[list[dict[str, Any]], list[str]]:
    """Chat messages, and the types of blocks that are none."""
    conversation, ignored = Conversation(), []
    _add_system(conversation, body.system, "system")
    for index, message in enumerate(body.messages):
        path = f"messages.{index}.content"
        if message.role == "system":
            _add_system(conversation, message.content, path)
            continue
        add = _add_user if message.role == "user" else _add_assistant
        for number, block in enumerate(_blocks(message.content)):
            if is_hosted(block):
                ignored.append(str(block["type"]))
            else:
                ignored += unread(block)
                add(conversation, block, f"{path}.{number}")
    if not conversation.messages:
        raise RequestError("messages say nothing.", "messages")
    return conversation.messages, ignored


def _blocks(content: Blocks) -> list[Part]:
    return [text_part(content)] if isinstance(content, str) else content


def _add_system(conversation: Conversation, content: Blocks, path: str) -> None:
    for number, block in enumerate(_blocks(content)):
        text = field_of(block, "text", str, f"{path}.{number}")
        if text.startswith(_BILLING):
            text = text.partition("\n")[2]
        if text:
            conversation.say("system", [text_part(text)])


def _add_user(conversation: Conversation, block: Part, path: str) -> None:
    if block.get("type") != "tool_result":
        conversation.say("user", [part_of(block, path)])
        return
    content = block.get("content") or ""
    if not isinstance(content, str | list):
        raise RequestError(f"{path}.content must be a string or a list.", f"{path}.content")
    parts = []
    for number, inner in enumerate(_blocks(content)):
        if not isinstance(inner, dict):
            raise RequestError(f"{path}.content.{number} must be an object.", f"{path}.content")
        parts.append(part_of(inner, f"{path}.content.{number}"))
    if block.get("is_error") is True:
        parts.insert(0, text_part("Error:"))
    conversation.result(field_of(block, "tool_use_id", str, path), parts)


def _add_assistant(conversation: Conversation, block: Part, path: str) -> None:
    match block.get("type"):
        case "thinking":
            thought = field_of(block, "thinking", str, path) or unseal(block.get("signature"))
            conversation.think(thought)
        case "redacted_thinking":
            pass  # only who wrote it can read it
        case "tool_use":
            call_id, name = (field_of(block, key, str, path) for key in ("id", "name"))
            conversation.call(call_id, name, field_of(block, "input", dict, path))
        case _:
            conversation.say("assistant", [part_of(block, path)])
