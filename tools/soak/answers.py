"""What a reply says, whichever route sent it, and whether that is what it must say."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from httpx_sse import EventSource

# "Not now" on most routes, and in Anthropic's API.
_NOT_NOW = (503, 529)
Channels = dict[str, str]
"""Everything that a reply tells, by place: texts grow in a stream, ends stand once."""


@dataclass
class Reply:
    status: int = 0
    """0: none came."""
    channels: Channels = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    """Error events of a stream, a failed body's words, a connection that broke."""
    broken: bool = False
    """The connection failed, or never was."""
    retry_after: bool = False
    tokens: int = 0
    late: bool = False
    """Something came behind an error event."""

    def add(self, channel: str, text: str | None) -> None:
        if text:
            self.channels[channel] = self.channels.get(channel, "") + text

    def fold(self, event: Mapping[str, Any]) -> None:
        """Take an event of a stream, or a whole body."""
        before = sum(map(len, self.channels.values()))
        failed = _error_of(event)
        if failed is not None:
            self.errors.append(failed)
            return
        _fold_openai(self, event)
        _fold_responses(self, event)
        _fold_anthropic(self, event)
        _fold_others(self, event)
        usage = event.get("usage") or event.get("response", {}).get("usage") or {}
        for key in ("completion_tokens", "output_tokens"):
            self.tokens = usage.get(key, self.tokens)
        self.tokens = event.get("tokens_predicted", self.tokens)
        if self.errors and sum(map(len, self.channels.values())) > before:
            self.late = True


def _error_of(event: Mapping[str, Any]) -> str | None:
    if event.get("type") == "response.failed":
        return str((event["response"].get("error") or {}).get("message", "response.failed"))
    error = event.get("error")
    if error:
        return str(error.get("message", error)) if isinstance(error, dict) else str(error)
    return str(event.get("message", event)) if event.get("type") == "error" else None


def _fold_openai(reply: Reply, event: Mapping[str, Any]) -> None:
    for choice in event.get("choices", ()):
        at = choice["index"]
        said = choice.get("delta") or choice.get("message") or {}
        reply.add(f"{at}/text", choice.get("text") or said.get("content"))
        for number, call in enumerate(said.get("tool_calls") or ()):
            place = f"{at}/call{call.get('index', number)}"
            reply.add(f"{place}/name", call["function"].get("name"))
            reply.add(f"{place}/arguments", call["function"].get("arguments"))
        chances = choice.get("logprobs") or {}
        pairs = [(one["token"], one["logprob"]) for one in chances.get("content") or ()]
        pairs += zip(chances.get("tokens", ()), chances.get("token_logprobs", ()), strict=True)
        reply.add(f"{at}/logprobs", "".join(f"{token!r} {value};" for token, value in pairs))
        reply.add(f"{at}/end", choice.get("finish_reason"))


def _fold_responses(reply: Reply, event: Mapping[str, Any]) -> None:
    kind = event.get("type", "")
    if kind == "response.output_text.delta":
        reply.add("0/text", event["delta"])
    elif kind in ("response.completed", "response.incomplete"):
        reply.add("0/end", event["response"]["status"])
    elif event.get("object") == "response":
        for item in event["output"]:
            for part in item.get("content", ()):
                reply.add("0/text", part.get("text"))
        reply.add("0/end", event["status"])


def _fold_anthropic(reply: Reply, event: Mapping[str, Any]) -> None:
    kind = event.get("type", "")
    if kind == "content_block_delta":
        reply.add("0/text", event["delta"].get("text"))
    elif kind == "message_delta":
        reply.add("0/end", event["delta"]["stop_reason"])
    elif kind == "message":
        for block in event["content"]:
            reply.add("0/text", block.get("text"))
        reply.add("0/end", event["stop_reason"])


def _fold_others(reply: Reply, event: Mapping[str, Any]) -> None:
    """llama-server's completions, vectors, and lists of tokens."""
    if "content" in event and "stop" in event:
        reply.add("0/text", event["content"])
        if event["stop"]:
            reply.add("0/end", event["stop_type"])
    if event.get("object") == "list":
        for entry in event["data"]:
            reply.add(f"{entry['index']}/vector", json.dumps(entry["embedding"]))
    if isinstance(event.get("tokens"), list) and "count" in event:
        reply.add("0/tokens", json.dumps(event["tokens"]))
    if isinstance(event.get("prompt"), str) and "stop" not in event:
        reply.add("0/text", event["prompt"])


async def events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Every JSON payload of a stream, errors among them, to the end of the connection."""
    async for event in EventSource(answer).aiter_sse():
        if event.data not in ("", "[DONE]"):
            yield json.loads(event.data)


@dataclass(frozen=True)
class Verdict:
    kind: str
    """complete, cut, refused or wrong."""
    fault: str = ""


def judge(reply: Reply, known: Channels, *, troubled: bool, down: bool) -> Verdict:
    """Whether a reply is the known one, or ends as it may.

    `troubled`: its engine was harmed meanwhile; `down`: the server itself was away.
    """
    if reply.status == 200 and not reply.errors:
        if reply.channels == known:
            return Verdict("complete")
        return Verdict("wrong", f"another answer: {_difference(reply.channels, known)}")
    words = "; ".join(reply.errors) or "no reply"
    if reply.broken and not down:
        return Verdict("wrong", f"the connection broke: {words}")
    if not troubled:
        return Verdict("wrong", f"an error ({reply.status}) without a cause: {words}")
    if reply.status == 200:
        if len(reply.errors) > 1:
            return Verdict("wrong", f"{len(reply.errors)} errors in one stream: {words}")
        if reply.late:
            return Verdict("wrong", f"text behind an error: {words}")
        ends = [place for place, text in reply.channels.items() if not _begins(place, text, known)]
        if ends:
            return Verdict("wrong", f"no beginning of it: {_difference(reply.channels, known)}")
        return Verdict("cut")
    if reply.broken or (reply.status in _NOT_NOW and reply.retry_after):
        return Verdict("refused")
    return Verdict(
        "wrong", f"refused with {reply.status}, Retry-After {reply.retry_after}: {words}"
    )


def _begins(place: str, text: str, known: Channels) -> bool:
    """An end is whole or not there; all else may stop anywhere."""
    whole = known.get(place, "")
    return text == whole if place.endswith("/end") else whole.startswith(text)


def _difference(found: Channels, known: Channels) -> str:
    for place in sorted(found.keys() | known.keys()):
        ours, theirs = found.get(place, ""), known.get(place, "")
        if ours != theirs:
            pairs = enumerate(zip(ours, theirs, strict=False))
            same = next((at for at, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
            return f"{place} at {same}: {ours[same:][:60]!r}, not {theirs[same:][:60]!r}"
    return "none"
