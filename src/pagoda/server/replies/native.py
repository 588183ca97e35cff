"""Replies of llama-server's /completion and /infill, whole and streamed."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from pagoda.core.messages import TokenLogprobs
from pagoda.engine.directory import ServedModel
from pagoda.engine.outputs import OutputDelta
from pagoda.server.context import ReplyHead
from pagoda.server.nativeparams import settings
from pagoda.server.protocol.native import (
    NativeBody,
    NativeChunk,
    NativeCompletion,
    PromptProgress,
)
from pagoda.server.replies.generation import Generation, Part
from pagoda.server.replies.logprobs import LogprobFormatter
from pagoda.server.replies.sse import EventSource, event
from pagoda.server.replies.timings import timings


@dataclass
class NativeJob:
    body: NativeBody
    served: ServedModel
    generation: Generation
    head: ReplyHead


@dataclass
class _Indentation:
    """Where a line begins with less white space than asked for, the text ends."""

    least: int
    ended: bool = False
    _found: int | None = None
    """White space at the beginning of the line; None behind it, and in the first line."""

    def feed(self, text: str) -> str:
        """As much of the text as counts."""
        for position, character in enumerate("" if self.ended else text):
            if character == "\n":
                self._found = 0
            elif self._found is not None and character in " \t":
                self._found += 1
            elif self._found is not None:
                if self._found < self.least:
                    self.ended = True
                    return text[:position]
                self._found = None
        return "" if self.ended else text


@dataclass
class _Choice:
    indentation: _Indentation | None = None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    has_new_line: bool = False
    num_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def stop_type(self) -> Any:
        if self.finish_reason == "stop":
            return "word" if isinstance(self.stop_reason, str) else "eos"
        return "limit" if self.finish_reason == "length" else "none"


class _NativeReply:
    """What the whole and the streamed form share."""

    def __init__(self, job: NativeJob):
        self.job = job
        self.body = job.body
        self.generation = job.generation
        least = job.body.n_indent
        self.choices = [
            _Choice(_Indentation(least) if least else None)
            for _ in range(job.generation.num_choices)
        ]
        self.formatter = LogprobFormatter(job.served.tokenizer, as_ids=False)

    def count(self, index: int, output: OutputDelta) -> None:
        """Take note of an output, and end the choice where a limit of its own says so."""
        choice = self.choices[index]
        if choice.indentation is not None:
            output.text = choice.indentation.feed(output.text)
        choice.num_tokens += len(output.token_ids)
        new_line = "\n" in output.text
        choice.has_new_line |= new_line
        if output.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = output.finish_reason, output.stop_reason
        elif (choice.indentation is not None and choice.indentation.ended) or (
            new_line and self._is_late(index)
        ):
            self.generation.cut(index)

    def _is_late(self, index: int) -> bool:
        limit = self.body.t_max_predict_ms
        return limit > 0 and self.generation.timers[index].decode_seconds * 1000 > limit

    def final(self, index: int, text: str, token_ids: list[int]) -> NativeCompletion:
        choice, generation = self.choices[index], self.generation
        ids, timer = generation.prompt_ids(index), generation.timers[index]
        full = len(ids) + choice.num_tokens >= self.job.served.max_model_len
        length = {"n_predict": self.body.n_predict, "max_tokens": self.body.n_predict}
        return NativeCompletion(
            index=index,
            content=text,
            tokens=token_ids,
            model=self.job.head.model,
            tokens_predicted=choice.num_tokens,
            tokens_evaluated=len(ids),
            generation_settings={**settings(generation.sampling, self.body), **length},
            prompt=self.job.served.tokenizer.decode(ids),
            has_new_line=choice.has_new_line,
            truncated=choice.stop_type == "limit" and full,
            stop_type=choice.stop_type,
            stopping_word=choice.stop_reason if isinstance(choice.stop_reason, str) else "",
            tokens_cached=timer.num_cached_tokens,
            timings=timings(timer),
        )

    def selected(self, reply: NativeCompletion) -> NativeCompletion | dict[str, Any]:
        """Only `response_fields`, where there are some."""
        if not self.body.response_fields:
            return reply
        found, whole = {}, msgspec.to_builtins(reply)
        for path in self.body.response_fields:
            value = whole
            for name in path.split("/"):
                value = value.get(name) if isinstance(value, dict) else None
            if value is not None:
                found[path] = value
        return found


class WholeNative(_NativeReply):
    async def reply(self) -> Any:
        """An object, or a list of them where there are several completions."""
        await self.generation.run(self._add)
        replies = [self.selected(self._choice(index)) for index in range(len(self.choices))]
        return replies[0] if len(replies) == 1 else replies

    def _add(self, index: int, output: OutputDelta) -> None:
        self.count(index, output)
        choice = self.choices[index]
        choice.text += output.text
        choice.token_ids += output.token_ids
        choice.logprobs += output.logprobs or []

    def _choice(self, index: int) -> NativeCompletion:
        choice = self.choices[index]
        reply = self.final(index, choice.text, choice.token_ids if self.body.return_tokens else [])
        if self.body.n_probs:
            reply.completion_probabilities = self.formatter.native(choice.logprobs)
        return reply


class StreamedNative(_NativeReply, EventSource):
    last = b""

    def events(self, parts: list[Part]) -> bytes:
        return b"".join([self._events(index, output) for index, output in parts])

    def end(self) -> bytes:
        return b""

    def _events(self, index: int, output: OutputDelta) -> bytes:
        choice = self.choices[index]
        first = choice.num_tokens == 0 and bool(output.token_ids)
        self.count(index, output)
        written = b""
        if output.text or output.token_ids:
            written = event(self._chunk(index, output, first))
        if choice.finish_reason is not None:
            written += event(self.selected(self.final(index, "", [])))
        return written

    def _chunk(self, index: int, output: OutputDelta, first: bool) -> NativeChunk:
        choice, timer = self.choices[index], self.generation.timers[index]
        chunk = NativeChunk(
            index=index,
            content=output.text,
            tokens=output.token_ids,
            tokens_predicted=choice.num_tokens,
            tokens_evaluated=timer.num_prompt_tokens,
        )
        if self.body.timings_per_token:
            chunk.timings = timings(timer)
        if first and self.body.return_progress:
            chunk.prompt_progress = PromptProgress(
                total=timer.num_prompt_tokens,
                cache=timer.num_cached_tokens,
                processed=timer.num_prompt_tokens,
                time_ms=timer.prompt_seconds * 1000,
            )
        if self.body.n_probs:
            chunk.completion_probabilities = self.formatter.native(output.logprobs or [])
        return chunk
