"""Chat completions, whole and streamed."""

import uuid

from msgspec import UNSET

from pagoda.server.protocol.replies import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatLogprobs,
    FunctionCall,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
    Verbose,
)
from pagoda.server.replies.chat_job import ChatJob
from pagoda.server.replies.events import ReplyEvent
from pagoda.server.replies.openai import OpenAIReply
from pagoda.text.parsers.base import Delta


class ChatReply(OpenAIReply[ChatCompletionChunk]):
    def __init__(self, job: ChatJob):
        self._job, self._body = job, job.body
        super().__init__(
            job.stream(ended=self._count_end),
            job.body,
            job.head,
            ChatCompletionChunk,
            tells_logprobs=job.body.logprobs,
        )

    def whole(self) -> ChatCompletion:
        body, generation = self._body, self.generation
        choices = [self._choice(event) for event in self.sums]
        reply = ChatCompletion(choices=choices, **self._around())
        if body.prompt_logprobs is not None:
            reply.prompt_logprobs = self._formatter.prompt(self.sums[0].prompt_logprobs)
        if body.return_token_ids:
            reply.prompt_token_ids = generation.prompt_ids(0)
        if body.return_prompt_text:
            reply.prompt_text = self._job.prompt_texts[0]
        if body.verbose:
            reply.verbose = Verbose(self._job.prompt_texts[0])
        return reply

    def _choice(self, event: ReplyEvent) -> ChatChoice:
        message = AssistantMessage(content=self._echoed(event.index) + event.text)
        calls: list[ToolCall] = []
        for delta in event.deltas:
            if delta.tool_name is not None:
                calls.append(ToolCall(id=_call_id(), function=FunctionCall(delta.tool_name, "")))
            if delta.kind == "tool_call":
                calls[-1].function.arguments += delta.text
        if calls:
            message.content, message.tool_calls = message.content or None, calls
        if (thought := event.thought) and self._body.include_reasoning:
            message.reasoning = message.reasoning_content = thought
        return ChatChoice(
            index=event.index,
            message=message,
            logprobs=self._logprobs(event),
            finish_reason=event.finish_reason,
            stop_reason=event.stop_reason,
            token_ids=event.token_ids if self._body.return_token_ids else None,
        )

    def _chunks(self, event: ReplyEvent) -> list[ChatCompletionChunk]:
        chunks, delta = [], self._delta(event)
        if event.starts:
            chunks.append(self._first_chunk(event.index))
        told = event.finish_reason is not None or not _is_empty(delta)
        if told or (self._tells_tokens and event.token_ids):
            chunks.append(self._delta_chunk(event, delta))
        return chunks

    def _silent_choice(self) -> ChatChunkChoice:
        return ChatChunkChoice(index=0, delta=ChatDelta())

    def _delta(self, event: ReplyEvent) -> ChatDelta:
        delta = ChatDelta()
        if text := event.text:
            delta.content = text
        if (thought := event.thought) and self._body.include_reasoning:
            delta.reasoning = delta.reasoning_content = thought
        if calls := [_call_delta(part) for part in event.deltas if part.kind == "tool_call"]:
            delta.tool_calls = calls
        return delta

    def _first_chunk(self, index: int) -> ChatCompletionChunk:
        delta = ChatDelta(role="assistant", content=self._echoed(index))
        chunk = self._chunk([ChatChunkChoice(index=index, delta=delta)])
        if self._body.return_token_ids:
            chunk.prompt_token_ids = self.generation.prompt_ids(index)
        if self._body.return_prompt_text:
            chunk.prompt_text = self._job.prompt_texts[0]
        if self._body.verbose:
            chunk.verbose = Verbose(self._job.prompt_texts[0])
        return chunk

    def _delta_chunk(self, event: ReplyEvent, delta: ChatDelta) -> ChatCompletionChunk:
        choice = ChatChunkChoice(
            index=event.index,
            delta=delta,
            logprobs=self._logprobs(event),
            finish_reason=event.finish_reason,
        )
        if self._body.return_token_ids:
            choice.token_ids = event.token_ids
        if event.finish_reason is not None:
            choice.stop_reason = event.stop_reason
        elif _is_empty(delta):
            delta.content = ""
        return self._chunk([choice], event)

    def _logprobs(self, event: ReplyEvent) -> ChatLogprobs | None:
        if not self._body.logprobs:
            return None
        return self._formatter.chat(event.logprobs, self._body.top_logprobs or 0)

    def _echoed(self, index: int) -> str:
        return self._job.echoed[index // self._body.n] if self._body.echo else ""

    def _count_end(self, called: bool) -> None:
        if self._body.offered_tools:
            self.generation.metrics.count_tool_parsing(
                "chat_completions", streamed=self._body.stream, called=called
            )


def _call_delta(delta: Delta) -> ToolCallDelta:
    """With an id, type and name where the call begins."""
    function = FunctionDelta(arguments=delta.text)
    call = ToolCallDelta(index=delta.tool_index or 0, function=function)
    if delta.tool_name is not None:
        call.id, call.type, function.name = _call_id(), "function", delta.tool_name
    return call


def _is_empty(delta: ChatDelta) -> bool:
    return delta.content is UNSET and delta.reasoning is UNSET and delta.tool_calls is UNSET


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
