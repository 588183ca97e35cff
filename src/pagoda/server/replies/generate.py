"""Replies of /inference/v1/generate, whole and streamed: tokens, and their text where asked."""

from dataclasses import dataclass, field

from msgspec import UNSET

from pagoda.core.messages import TokenLogprobs
from pagoda.engine.directory import ServedModel
from pagoda.engine.outputs import OutputDelta
from pagoda.server.context import ReplyHead
from pagoda.server.protocol.generate import (
    Generated,
    GeneratedChoice,
    GeneratedChunk,
    GenerateRequest,
    IdLogprobs,
)
from pagoda.server.protocol.replies import ChatLogprobs, Usage
from pagoda.server.replies.generation import Generation, Part
from pagoda.server.replies.logprobs import LogprobFormatter, id_logprobs
from pagoda.server.replies.sse import EventSource, event
from pagoda.server.replies.usage import UsageCounter


@dataclass
class GenerateJob:
    body: GenerateRequest
    served: ServedModel
    generation: Generation
    head: ReplyHead


@dataclass
class _Choice:
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _GenerateReply:
    """What the whole and the streamed form share."""

    def __init__(self, job: GenerateJob):
        self.job = job
        self.sampling = job.generation.sampling
        self.with_text = job.body.output_mode == "text"
        self.usage = UsageCounter(job.generation.num_prompt_tokens)
        self.formatter = LogprobFormatter(job.served.tokenizer, as_ids=False)

    def count(self, index: int, output: OutputDelta) -> None:
        self.usage.add(index, len(output.token_ids), output.num_cached_tokens)

    def logprobs(self, entries: list[TokenLogprobs] | None) -> IdLogprobs | ChatLogprobs | None:
        if self.sampling.logprobs is None:
            return None
        if self.with_text:
            return self.formatter.chat(entries or [], self.sampling.logprobs)
        return IdLogprobs(id_logprobs(entries or []))


class WholeGenerated(_GenerateReply):
    def __init__(self, job: GenerateJob):
        super().__init__(job)
        self._choices = [_Choice() for _ in range(job.generation.num_choices)]

    async def reply(self) -> Generated:
        job = self.job
        await job.generation.run(self._add)
        prompt_logprobs = None
        if self.sampling.prompt_logprobs is not None:
            prompt_logprobs = self.formatter.prompt(self._choices[0].prompt_logprobs)
        return Generated(
            request_id=job.head.id,
            output_mode=job.body.output_mode,
            model=job.head.model,
            created=job.head.created,
            choices=[self._choice(i, choice) for i, choice in enumerate(self._choices)],
            usage=self.usage.usage(self.sampling.n),
            prompt_logprobs=prompt_logprobs,
            prompt_token_ids=job.generation.prompt_ids(0) if job.body.return_token_ids else None,
        )

    def _add(self, index: int, output: OutputDelta) -> None:
        self.count(index, output)
        choice = self._choices[index]
        choice.text += output.text
        choice.token_ids += output.token_ids
        choice.logprobs += output.logprobs or []
        choice.prompt_logprobs += output.prompt_logprobs or []
        if output.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = output.finish_reason, output.stop_reason

    def _choice(self, index: int, choice: _Choice) -> GeneratedChoice:
        return GeneratedChoice(
            index=index,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            token_ids=choice.token_ids,
            text=choice.text if self.with_text else UNSET,
            logprobs=self.logprobs(choice.logprobs),
        )


class StreamedGenerated(_GenerateReply, EventSource):
    def __init__(self, job: GenerateJob):
        super().__init__(job)
        options = job.body.stream_options
        self._counts = options is not None and options.continuous_usage_stats
        self._includes_usage = options is not None and options.include_usage
        self._started = False

    def events(self, parts: list[Part]) -> bytes:
        return b"".join([self._event(index, output) for index, output in parts])

    def end(self) -> bytes:
        if not self._includes_usage:
            return b""
        return event(self._chunk([], self.usage.usage(self.sampling.n)))

    def _event(self, index: int, output: OutputDelta) -> bytes:
        self.count(index, output)
        if not (output.token_ids or output.text or output.finish_reason):
            return b""
        choice = GeneratedChoice(
            index=index,
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
            token_ids=output.token_ids,
            text=output.text if self.with_text else UNSET,
            logprobs=self.logprobs(output.logprobs),
        )
        chunk = self._chunk([choice], self.usage.usage(self.sampling.n) if self._counts else None)
        if self.job.body.return_token_ids and not self._started:
            chunk.prompt_token_ids = self.job.generation.prompt_ids(0)
        self._started = True
        return event(chunk)

    def _chunk(self, choices: list[GeneratedChoice], usage: Usage | None) -> GeneratedChunk:
        return GeneratedChunk(
            request_id=self.job.head.id,
            output_mode=self.job.body.output_mode,
            choices=choices,
            usage=UNSET if usage is None else usage,
        )
