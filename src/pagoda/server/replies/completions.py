"""Completion replies, whole and streamed, from the parts of a Generation."""

from dataclasses import dataclass, field

from msgspec import UNSET

from pagoda.core.messages import TokenLogprobs
from pagoda.engine.directory import ServedModel
from pagoda.engine.outputs import OutputDelta
from pagoda.server.context import ReplyHead
from pagoda.server.protocol.completions import CompletionRequest
from pagoda.server.protocol.replies import (
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionLogprobs,
    Usage,
)
from pagoda.server.replies.generation import Generation, Part
from pagoda.server.replies.logprobs import LogprobFormatter
from pagoda.server.replies.sse import EventSource, TextEvent, event
from pagoda.server.replies.timings import timings
from pagoda.server.replies.usage import UsageCounter, fingerprint


@dataclass
class CompletionJob:
    body: CompletionRequest
    served: ServedModel
    generation: Generation
    head: ReplyHead
    prompt_texts: list[str]
    """With echo, one per prompt; else empty."""


@dataclass
class _Choice:
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    offset: int = 0
    """Characters that the logprobs have named so far."""
    started: bool = False
    text_event: TextEvent | None = None


class _CompletionReply:
    """What the whole and the streamed form share."""

    def __init__(self, job: CompletionJob):
        self.job = job
        self.body = job.body
        self.usage = UsageCounter(job.generation.num_prompt_tokens)
        self.choices = [_Choice() for _ in range(job.generation.num_choices)]
        self._formatter = LogprobFormatter(
            job.served.tokenizer, job.body.return_tokens_as_token_ids
        )

    def count(self, index: int, output: OutputDelta) -> None:
        self.choices[index].prompt_logprobs += output.prompt_logprobs or []
        self.usage.add(index, len(output.token_ids), output.num_cached_tokens, output.prefix_miss)

    def final_usage(self) -> Usage:
        return self.usage.final(self.body, self.job.served, self.job.generation)

    def echoed(self, index: int) -> str:
        return self.job.prompt_texts[index // self.body.n] if self.body.echo else ""

    def logprobs(
        self, index: int, entries: list[TokenLogprobs], *, with_prompt: bool
    ) -> CompletionLogprobs | None:
        if self.body.logprobs is None:
            return None
        choice = self.choices[index]
        named: list[TokenLogprobs | int] = []
        if with_prompt:
            ids = self.job.generation.prompt_ids(index)
            named += [
                token if known is None else known
                for token, known in zip(ids, choice.prompt_logprobs, strict=False)
            ]
        result, choice.offset = self._formatter.completion([*named, *entries], choice.offset)
        return result


class WholeCompletion(_CompletionReply):
    async def reply(self) -> Completion:
        await self.job.generation.run(self._add)
        head = self.job.head
        return Completion(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[self._choice(i) for i in range(len(self.choices))],
            system_fingerprint=fingerprint(self.job.served),
            usage=self.final_usage(),
            timings=timings(self.job.generation.timers[0]),
        )

    def _add(self, index: int, output: OutputDelta) -> None:
        self.count(index, output)
        choice = self.choices[index]
        choice.text += output.text
        choice.token_ids += output.token_ids
        choice.logprobs += output.logprobs or []
        if output.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = output.finish_reason, output.stop_reason

    def _choice(self, index: int) -> CompletionChoice:
        choice, body = self.choices[index], self.body
        prompt_logprobs = None
        if body.prompt_logprobs is not None:
            prompt_logprobs = self._formatter.prompt(choice.prompt_logprobs)
        return CompletionChoice(
            index=index,
            text=self.echoed(index) + choice.text,
            logprobs=self.logprobs(index, choice.logprobs, with_prompt=body.echo),
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            token_ids=choice.token_ids if body.return_token_ids else None,
            prompt_logprobs=prompt_logprobs,
            prompt_token_ids=(
                self.job.generation.prompt_ids(index) if body.return_token_ids else None
            ),
        )


class StreamedCompletion(_CompletionReply, EventSource):
    def __init__(self, job: CompletionJob):
        super().__init__(job)
        body, options = job.body, job.body.stream_options
        self._counts = options is not None and options.continuous_usage_stats
        self._tells_tokens = body.return_token_ids or body.logprobs is not None or self._counts
        """There is a chunk for a token even where it adds no text."""

    def events(self, parts: list[Part]) -> bytes:
        return b"".join([self._part(index, output) for index, output in parts])

    def end(self) -> bytes:
        options = self.body.stream_options
        if options is None or not options.include_usage:
            return b""
        return event(self._chunk([], usage=self.final_usage()))

    def _part(self, index: int, output: OutputDelta) -> bytes:
        self.count(index, output)
        choice, body = self.choices[index], self.body
        finished = output.finish_reason is not None
        if choice.started and not (finished or self._tells_tokens or body.timings_per_token):
            return self._text(index, output.text)
        first = not choice.started and bool(output.token_ids or finished)
        choice.started |= first
        text = output.text if not first else self.echoed(index) + output.text
        if not (text or finished or (self._tells_tokens and output.token_ids)):
            return b""
        reply = CompletionChunkChoice(
            index=index,
            text=text,
            logprobs=self.logprobs(index, output.logprobs or [], with_prompt=first and body.echo),
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
        )
        if body.return_token_ids:
            reply.token_ids = output.token_ids
            if first:
                reply.prompt_token_ids = self.job.generation.prompt_ids(index)
        chunk = self._chunk([reply], self.usage.usage(body.n) if self._counts else None)
        if body.timings_per_token or finished:
            chunk.timings = timings(self.job.generation.timers[index])
        if finished:
            chunk.system_fingerprint = fingerprint(self.job.served)
        return event(chunk)

    def _text(self, index: int, text: str) -> bytes:
        choice = self.choices[index]
        if choice.text_event is None:
            choice.text_event = TextEvent(
                lambda found: self._chunk([CompletionChunkChoice(index=index, text=found)])
            )
        return choice.text_event.of(text) if text else b""

    def _chunk(
        self, choices: list[CompletionChunkChoice], usage: Usage | None = None
    ) -> CompletionChunk:
        head = self.job.head
        return CompletionChunk(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=choices,
            usage=UNSET if usage is None else usage,
        )
