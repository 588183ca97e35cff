"""Replies of llama-server's /completion and /infill, whole and streamed."""

from dataclasses import dataclass
from typing import Any

import msgspec

from pagoda.engine.outputs import OutputDelta
from pagoda.server.context import ReplyHead
from pagoda.server.nativeparams import settings
from pagoda.server.protocol.native import (
    NativeBody,
    NativeChunk,
    NativeCompletion,
    StopType,
    TokenProbs,
)
from pagoda.server.protocol.replies import PromptProgress
from pagoda.server.replies.events import ReplyEvent, ReplyReader, ReplyStream
from pagoda.server.replies.generation import Generation
from pagoda.server.replies.logprobs import LogprobFormatter
from pagoda.server.replies.reply import Answer, Reply
from pagoda.server.replies.sse import data_event
from pagoda.server.replies.timings import prompt_progress, timings


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


class _LineReader(ReplyReader):
    """Ends its choice where a limit of lines says so."""

    def __init__(self, index: int, generation: Generation, body: NativeBody):
        super().__init__(index)
        self.has_new_line = False
        self._generation = generation
        self._indentation = _Indentation(body.n_indent) if body.n_indent else None
        self._most_ms = body.t_max_predict_ms

    def read(self, output: OutputDelta) -> ReplyEvent:
        if self._indentation is not None:
            output.text = self._indentation.feed(output.text)
        new_line = "\n" in output.text
        self.has_new_line |= new_line
        ended = self._indentation is not None and self._indentation.ended
        if output.finish_reason is None and (ended or (new_line and self._is_late())):
            self._generation.cut(self.index)
        return super().read(output)

    def _is_late(self) -> bool:
        decode_ms = self._generation.timers[self.index].decode_seconds * 1000
        return 0 < self._most_ms < decode_ms


class NativeReply(Reply):
    last = b""

    def __init__(self, generation: Generation, body: NativeBody, head: ReplyHead):
        self._readers = [_LineReader(i, generation, body) for i in range(generation.num_choices)]
        super().__init__(ReplyStream(generation, [*self._readers]))
        self._body, self._head = body, head
        self._formatter = LogprobFormatter(generation.served.tokenizer, as_ids=False)

    def whole(self) -> Answer:
        """An object, or a list of them where there are several completions."""
        replies = [self._selected(self._choice(event)) for event in self.sums]
        return replies[0] if len(replies) == 1 else replies

    def tell(self, event: ReplyEvent) -> bytes:
        told = data_event(self._chunk(event)) if event.deltas or event.token_ids else b""
        if event.finish_reason is not None:
            told += data_event(self._selected(self._final(event, "", [])))
        return told

    def waiting(self) -> bytes:
        chunk, timer = self._chunk(ReplyEvent(0)), self.generation.waiting_timer
        if timer is not None:
            chunk.prompt_progress = prompt_progress(timer)
        return data_event(chunk)

    def _chunk(self, event: ReplyEvent) -> NativeChunk:
        body, timer = self._body, self.generation.timers[event.index]
        chunk = NativeChunk(
            index=event.index,
            content=event.text,
            tokens=event.token_ids,
            tokens_predicted=self._readers[event.index].num_tokens,
            tokens_evaluated=timer.num_prompt_tokens,
        )
        if body.timings_per_token:
            chunk.timings = timings(timer)
        if body.return_progress and event.starts and event.token_ids:
            chunk.prompt_progress = PromptProgress(
                total=timer.num_prompt_tokens,
                cache=timer.num_cached_tokens,
                processed=timer.num_prompt_tokens,
                time_ms=timer.prompt_seconds * 1000,
            )
        if body.n_probs:
            chunk.completion_probabilities = self._probabilities(event)
        return chunk

    def _choice(self, event: ReplyEvent) -> NativeCompletion:
        tokens = event.token_ids if self._body.return_tokens else []
        reply = self._final(event, event.text, tokens)
        if self._body.n_probs:
            reply.completion_probabilities = self._probabilities(event)
        return reply

    def _probabilities(self, event: ReplyEvent) -> list[TokenProbs]:
        if self._body.post_sampling_probs:
            return self._formatter.drawn(event.logprobs)
        return self._formatter.native(event.logprobs)

    def _final(self, event: ReplyEvent, text: str, token_ids: list[int]) -> NativeCompletion:
        """At the end of a choice, which has this to tell."""
        generation, body, reader = self.generation, self._body, self._readers[event.index]
        ids, timer = generation.prompt_ids(event.index), generation.timers[event.index]
        served, word = generation.served, event.stop_reason
        kind: StopType = "limit" if event.finish_reason == "length" else "none"
        if event.finish_reason == "stop":
            kind = "word" if isinstance(word, str) else "eos"
        full = len(ids) + reader.num_tokens >= served.max_model_len
        length = {"n_predict": body.n_predict, "max_tokens": body.n_predict}
        return NativeCompletion(
            index=event.index,
            content=text,
            tokens=token_ids,
            model=self._head.model,
            tokens_predicted=reader.num_tokens,
            tokens_evaluated=len(ids),
            generation_settings={**settings(generation.sampling, body), **length},
            prompt=served.tokenizer.decode(ids),
            has_new_line=reader.has_new_line,
            truncated=kind == "limit" and full,
            stop_type=kind,
            stopping_word=word if isinstance(word, str) else "",
            tokens_cached=timer.num_cached_tokens,
            timings=timings(timer),
        )

    def _selected(self, reply: NativeCompletion) -> NativeCompletion | dict[str, Any]:
        """Only `response_fields`, where there are some."""
        if not self._body.response_fields:
            return reply
        found, whole = {}, msgspec.to_builtins(reply)
        for path in self._body.response_fields:
            value = whole
            for name in path.split("/"):
                value = value.get(name) if isinstance(value, dict) else None
            if value is not None:
                found[path] = value
        return found
