"""DashScope's native API for models that see (its compatible mode is openai_chat.py).

POST /services/aigc/multimodal-generation/generation below https://dashscope.aliyuncs.com/api/v1:
contents are lists of `{"image": data URL}` and `{"text": ...}`.
"""

from collections.abc import Sequence
from typing import Any

from pagoda_agent.base.errors import ConfigError
from pagoda_agent.models.dialogue import Listed, Message, Reply, Usage
from pagoda_agent.models.endpoint import Endpoint
from pagoda_agent.models.openai_chat import bearer, data_url
from pagoda_agent.models.reading import IncompleteError, Reader, count, items, mapping, text_of
from pagoda_agent.models.transport import Transport


class DashScope:
    """For dialects that are plain text."""

    def __init__(self, endpoint: Endpoint):
        self._endpoint = endpoint
        self._transport = Transport(endpoint)

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()
    ) -> Reply:
        """Raises ConfigError for tools."""
        if tools:
            raise ConfigError(
                "DashScope's native API is spoken without tools here; choose a profile in text, "
                "or its compatible mode with the API `openai`."
            )
        most = self._endpoint.max_tokens
        body: dict[str, Any] = {
            "model": self._endpoint.model,
            "input": {"messages": [_sent(message) for message in messages]},
            "parameters": {
                "result_format": "message",
                "incremental_output": True,
                **({} if most is None else {"max_tokens": most}),
                **self._endpoint.extra,
            },
        }
        headers = {**bearer(self._endpoint), "X-DashScope-SSE": "enable"}
        path = "services/aigc/multimodal-generation/generation"
        return await self._transport.ask(path, body, headers, DashScopeReader)

    async def served(self) -> list[Listed]:
        return await self._transport.served(bearer(self._endpoint))

    async def close(self) -> None:
        await self._transport.close()


def _sent(message: Message) -> dict[str, Any]:
    content = [{"image": data_url(picture)} for picture in message.pictures]
    if message.text or not content:
        content.insert(0, {"text": message.text})
    return {"role": message.role, "content": content}


class DashScopeReader(Reader):
    """Whole replies and chunks have one form: `output.choices[0].message`."""

    def __init__(self) -> None:
        super().__init__()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._finish = ""
        self._usage = Usage()

    @property
    def complete(self) -> bool:
        return bool(self._finish)

    def feed(self, payload: dict[str, Any]) -> None:
        if "output" not in payload and payload.get("code"):
            raise IncompleteError(f"{payload['code']}: {payload.get('message')}")
        output = mapping(payload.get("output"), "`output`")
        for choice in items(output.get("choices"), "`choices`")[:1]:
            message = mapping(choice.get("message"), "a message")
            text = text_of(message.get("content"))
            thought = text_of(message.get("reasoning_content"))
            self._text.append(text)
            self._reasoning.append(thought)
            self.length += len(text) + len(thought)
            finish = choice.get("finish_reason")
            # Until the end the API says "null", in quotes.
            if isinstance(finish, str) and finish not in ("", "null"):
                self._finish = finish
        usage = payload.get("usage")
        if isinstance(usage, dict):
            self._usage = Usage(
                count(usage, "input_tokens"),
                count(usage, "prompt_tokens_details", "cached_tokens")
                or count(usage, "input_tokens_details", "cached_tokens"),
                count(usage, "output_tokens"),
            )

    def whole(self, payload: dict[str, Any]) -> None:
        self.feed(payload)
        if not mapping(payload.get("output"), "`output`").get("choices"):
            raise IncompleteError("it has no choices")
        self._finish = self._finish or "stop"
        self.done = True

    def reply(self) -> Reply:
        return Reply(
            "".join(self._text),
            reasoning="".join(self._reasoning),
            usage=self._usage,
            finish_reason=self._finish or "length",
        )
