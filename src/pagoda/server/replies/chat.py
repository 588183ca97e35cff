"""Chat replies, whole and streamed, from the parts of a Generation."""

import uuid
from dataclasses import dataclass, field

from msgspec import UNSET

from pagoda.core.messages import TokenLogprobs
from pagoda.engine.outputs import OutputDelta
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
    Usage,
)
from pagoda.server.replies.chat_job import ChatJob
from pagoda.server.replies.generation import Part
from pagoda.server.replies.logprobs import LogprobFormatter
from pagoda.server.replies.reading import ReplyReader
from pagoda.server.replies.sse import EventSource, TextEvent, event
from pagoda.server.replies.timings import timings
from pagoda.server.replies.usage import UsageCounter, fingerprint
from pagoda.text.parsers.base import Delta
from pagoda.text.parsers.reply import ParsedReply


@dataclass
class _Choice:
    reader: ReplyReader
    parsed: ParsedReply = field(default_factory=ParsedReply)
    """Of a whole reply; what was streamed is not kept."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    started: bool = False
    text_event: TextEvent | None = None


class _ChatReply:
    """What the whole and the streamed form share."""

    def __init__(self, job: ChatJob):
        self.job = job
        self.body = job.body
        self.usage = UsageCounter(job.generation.num_prompt_tokens)
        self.choices = [_Choice(job.reader(i)) for i in range(job.generation.num_choices)]
        self._formatter = LogprobFormatter(
            job.served.tokenizer, job.body.return_tokens_as_token_ids
        )

    def echoed(self, index: int) -> str:
        return self.job.echoed[index // self.body.n] if self.body.echo else ""

    def feed(self, index: int, output: OutputDelta, *, streamed: bool) -> list[Delta]:
        """What became certain of a choice with this output."""
        reader = self.choices[index].reader
        deltas = reader.feed(output)
        if output.finish_reason is not None and self.body.offered_tools:
            self.job.generation.metrics.count_tool_parsing(
                "chat_completions", streamed=streamed, called=reader.called
            )
        return deltas

    def logprobs(self, entries: list[TokenLogprobs] | None) -> ChatLogprobs | None:
        if not self.body.logprobs:
            return None
        return self._formatter.chat(entries or [], self.body.top_logprobs or 0)

    def final_usage(self) -> Usage:
        encode = self.job.served.tokenizer.encode
        thought = sum(choice.reader.count_thought(encode) for choice in self.choices)
        self.usage.reasoning = thought or None
        return self.usage.final(self.body, self.job.served, self.job.generation)


class WholeChat(_ChatReply):
    async def reply(self) -> ChatCompletion:
        await self.job.generation.run(self._add)
        body, job, first = self.body, self.job, self.choices[0]
        return ChatCompletion(
            id=job.head.id,
            created=job.head.created,
            model=job.head.model,
            choices=[self._choice(i) for i in range(len(self.choices))],
            system_fingerprint=fingerprint(job.served),
            usage=self.final_usage(),
            prompt_logprobs=(
                None
                if body.prompt_logprobs is None
                else self._formatter.prompt(first.prompt_logprobs)
            ),
            prompt_token_ids=job.generation.prompt_ids(0) if body.return_token_ids else None,
            prompt_text=job.prompt_texts[0] if body.return_prompt_text else None,
            timings=timings(job.generation.timers[0]),
        )

    def _add(self, index: int, output: OutputDelta) -> None:
        choice = self.choices[index]
        choice.parsed.add(self.feed(index, output, streamed=False))
        choice.token_ids += output.token_ids
        choice.logprobs += output.logprobs or []
        choice.prompt_logprobs += output.prompt_logprobs or []
        self.usage.add(index, len(output.token_ids), output.num_cached_tokens, output.prefix_miss)

    def _choice(self, index: int) -> ChatChoice:
        choice = self.choices[index]
        parsed = choice.parsed
        message = AssistantMessage(content=self.echoed(index) + parsed.text)
        if parsed.reasoning and self.body.include_reasoning:
            message.reasoning = message.reasoning_content = parsed.reasoning
        if parsed.tool_calls:
            message.content = message.content or None
            message.tool_calls = [
                ToolCall(id=_call_id(), function=FunctionCall(call.name, call.arguments))
                for call in parsed.tool_calls
            ]
        return ChatChoice(
            index=index,
            message=message,
            logprobs=self.logprobs(choice.logprobs),
            finish_reason=choice.reader.finish_reason,
            stop_reason=choice.reader.stop_reason,
            token_ids=choice.token_ids if self.body.return_token_ids else None,
        )


class StreamedChat(_ChatReply, EventSource):
    def __init__(self, job: ChatJob):
        super().__init__(job)
        body, options = job.body, job.body.stream_options
        self._counts = options is not None and options.continuous_usage_stats
        self._tells_tokens = body.return_token_ids or body.logprobs or self._counts
        """There is a chunk for a token even where it adds no text."""

    def events(self, parts: list[Part]) -> bytes:
        return b"".join([self._events(index, output) for index, output in parts])

    def end(self) -> bytes:
        options = self.body.stream_options
        if options is None or not options.include_usage:
            return b""
        return event(self._chunk([], usage=self.final_usage()))

    def _events(self, index: int, output: OutputDelta) -> bytes:
        choice, finished = self.choices[index], output.finish_reason is not None
        self.usage.add(index, len(output.token_ids), output.num_cached_tokens, output.prefix_miss)
        deltas = self.feed(index, output, streamed=True)
        if choice.started and not finished and self._is_plain(deltas):
            return self._text(index, "".join([part.text for part in deltas]))
        delta = self._delta(deltas)
        written = b""
        if not choice.started and (output.token_ids or finished):
            choice.started = True
            written = self._event(self._first_chunk(index))
        if not _is_empty(delta) or finished or (self._tells_tokens and output.token_ids):
            written += self._event(self._delta_chunk(index, delta, output))
        return written

    def _is_plain(self, deltas: list[Delta]) -> bool:
        """Whether there is nothing to tell but text."""
        return not (self._tells_tokens or self.body.timings_per_token) and all(
            part.kind == "text" for part in deltas
        )

    def _text(self, index: int, text: str) -> bytes:
        choice = self.choices[index]
        if choice.text_event is None:
            choice.text_event = TextEvent(
                lambda content: self._chunk(
                    [ChatChunkChoice(index=index, delta=ChatDelta(content=content))]
                )
            )
        return choice.text_event.of(text) if text else b""

    def _event(self, chunk: ChatCompletionChunk) -> bytes:
        if self._counts:
            chunk.usage = self.usage.usage(self.body.n)
        return event(chunk)

    def _delta(self, deltas: list[Delta]) -> ChatDelta:
        text = reasoning = ""
        delta = ChatDelta()
        for part in deltas:
            if part.kind == "text":
                text += part.text
            elif part.kind == "reasoning":
                reasoning += part.text
            else:
                delta.tool_calls = [*(delta.tool_calls or ()), _call_delta(part)]
        if reasoning and self.body.include_reasoning:
            delta.reasoning = delta.reasoning_content = reasoning
        if text:
            delta.content = text
        return delta

    def _first_chunk(self, index: int) -> ChatCompletionChunk:
        delta = ChatDelta(role="assistant", content=self.echoed(index))
        chunk = self._chunk([ChatChunkChoice(index=index, delta=delta)])
        if self.body.return_token_ids:
            chunk.prompt_token_ids = self.job.generation.prompt_ids(index)
        if self.body.return_prompt_text:
            chunk.prompt_text = self.job.prompt_texts[0]
        return chunk

    def _delta_chunk(
        self, index: int, delta: ChatDelta, output: OutputDelta
    ) -> ChatCompletionChunk:
        choice = ChatChunkChoice(
            index=index,
            delta=delta,
            logprobs=self.logprobs(output.logprobs),
            finish_reason=self.choices[index].reader.finish_reason,
        )
        if self.body.return_token_ids:
            choice.token_ids = output.token_ids
        chunk = self._chunk([choice])
        if self.body.timings_per_token or output.finish_reason is not None:
            chunk.timings = timings(self.job.generation.timers[index])
        if output.finish_reason is not None:
            choice.stop_reason = output.stop_reason
            chunk.system_fingerprint = fingerprint(self.job.served)
        elif _is_empty(delta):
            delta.content = ""
        return chunk

    def _chunk(
        self, choices: list[ChatChunkChoice], usage: Usage | None = None
    ) -> ChatCompletionChunk:
        head = self.job.head
        return ChatCompletionChunk(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=choices,
            usage=UNSET if usage is None else usage,
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
