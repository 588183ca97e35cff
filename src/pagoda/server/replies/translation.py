"""What the translations of other dialects into chat requests share."""

import base64
import json
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.responses import Response

from pagoda.base.errors import PagodaError, RequestError
from pagoda.config.modality import Modality
from pagoda.server.errors import ApiError, to_api_error
from pagoda.server.protocol.chat import ChatCompletionRequest, ChatMessage

T = TypeVar("T")
Part = dict[str, Any]
# What a header may hold: proxies refuse more than a few kB.
_MAX_HEADER = 1000
_SEAL = "pagoda1:"
_KINDS: dict[type, str] = {str: "a string", dict: "an object", list: "a list"}


class Conversation:
    """Chat messages in the making. What one side says in a row is one message: many chat templates
    refuse anything else."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def say(self, role: str, parts: list[Part]) -> None:
        self._turn(role)["content"] += parts

    def think(self, text: str) -> None:
        if not text:
            return  # someone else sealed it
        turn = self._turn("assistant")
        turn["reasoning_content"] = turn.get("reasoning_content", "") + text

    def call(self, call_id: str, name: str, arguments: str | dict[str, Any]) -> None:
        function = {"name": name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        self._turn("assistant").setdefault("tool_calls", []).append(call)

    def result(self, call_id: str, parts: list[Part]) -> None:
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": parts})

    def _turn(self, role: str) -> dict[str, Any]:
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": []})
        return self.messages[-1]


def text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def media_part(modality: Modality, url: str) -> Part:
    return {"type": modality.url_part, modality.url_part: {"url": url}}


def field_of(item: Mapping[str, Any], name: str, kind: type[T], path: str) -> T:
    """A field of what was sent as any JSON object; RequestError names it where it is wrong."""
    value = item.get(name)
    if not isinstance(value, kind):
        raise RequestError(f"{path}.{name} must be {_KINDS[kind]}.", f"{path}.{name}")
    return value


def arguments_object(arguments: str) -> dict[str, Any]:
    """A call's arguments. What is no JSON object, since the reply was cut off or the model is
    wrong, is kept as Anthropic's clients keep it."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": arguments}


def wrong_kind(item: Mapping[str, Any], path: str, taken: str) -> RequestError:
    kind = str(item.get("type"))[:64]
    return RequestError(f"{path} has the type {kind!r}, which is not supported here; send {taken}.",
                        f"{path}.type")  # fmt: skip


def report_ignored(response: Response, ignored: list[str]) -> None:
    """Say in a header what of the request does nothing here."""
    if ignored:
        told = json.dumps(list(dict.fromkeys(ignored)))  # ASCII
        response.headers["Pagoda-Ignored"] = told[:_MAX_HEADER]


@contextmanager
def errors_about(names: Mapping[str, str]) -> Iterator[None]:
    """Errors name the fields of the dialect: `names` has them by the chat API's."""
    try:
        yield
    except PagodaError as error:
        told = to_api_error(error)
        info = told.info
        first, dot, rest = (info.param or "").partition(".")
        message = re.sub(r"\w*_\w*", lambda word: names.get(word[0], word[0]), info.message)
        param = names.get(first, first) + dot + rest or None
        raise ApiError(
            told.status, message, param=param, kind=info.type, headers=told.headers
        ) from error


async def unless_refused(
    chat: ChatCompletionRequest, work: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """Result of `work`, which is tried twice where there are system messages behind the first
    message: agents send such, and some chat templates take them only from the user. They stay in
    their places either way, or no prefix would be found again."""
    try:
        return await work()
    except RequestError:
        if all(message.role != "system" for message in chat.messages[1:]):
            raise
        chat.messages = _told_by_user(chat.messages)
        return await work()


def _told_by_user(messages: list[ChatMessage]) -> list[ChatMessage]:
    told = messages[:1]
    for message in messages[1:]:
        if message.role in ("system", "user") and told[-1].role == "user":
            told[-1].content = [*(told[-1].content or ()), *(message.content or ())]
        else:
            message.role = "user" if message.role == "system" else message.role
            told.append(message)
    return told


def seal(thought: str) -> str:
    """Thought for a client that is to send it back unread. It is wrapped, not encrypted."""
    return _SEAL + base64.b64encode(thought.encode()).decode()


def unseal(sealed: object) -> str:
    """The thought; empty if someone else sealed it."""
    if not isinstance(sealed, str) or not sealed.startswith(_SEAL):
        return ""
    try:
        return base64.b64decode(sealed[len(_SEAL) :], validate=True).decode()
    except ValueError:
        return ""
