"""Completions, whole and streamed."""

from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from pagoda.core.messages import TokenLogprobs
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
from pagoda.server.replies.chunked import ChunkedReply
from pagoda.server.replies.events import ReplyEvent, ReplyStream
from pagoda.server.replies.generation import Generation
from pagoda.server.replies.sse import data_event
from pagoda.server.replies.timings import timings
from pagoda.server.replies.usage import final_usage, fingerprint

ChoiceT = TypeVar("ChoiceT", CompletionChoice, CompletionChunkChoice)


class CompletionReply(ChunkedReply):
    def __init__(
        self,
        generation: Generation,
        body: CompletionRequest,
        head: ReplyHead,
        prompt_texts: list[str],
    ):
        """`prompt_texts`: with echo, one per prompt."""
        super().__init__(
            ReplyStream(generation),
            body.stream_options,
            tells_tokens=body.return_token_ids or body.logprobs is not None,
            tells_more=body.timings_per_token,
            as_ids=body.return_tokens_as_token_ids,
        )
        self._body, self._head, self._prompt_texts = body, head, prompt_texts
        self._offsets = [0] * generation.num_choices
        """Characters that the logprobs of each choice have named so far."""

    def whole(self) -> Completion:
        choices = [self._choice(event, CompletionChoice) for event in self.sums]
        if self._body.prompt_logprobs is not None:
            for choice, event in zip(choices, self.sums, strict=True):
                choice.prompt_logprobs = self._formatter.prompt(event.prompt_logprobs)
        return Completion(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=choices,
            system_fingerprint=fingerprint(self.generation.served),
            usage=self._final_usage(),
            timings=timings(self.generation.timers[0]),
        )

    def _told(self, event: ReplyEvent) -> bytes:
        choice = self._choice(event, CompletionChunkChoice)
        finished = event.finish_reason is not None
        if not (choice.text or finished or (self._tells_tokens and event.token_ids)):
            return b""
        chunk = self._chunk([choice], self._usage())
        if self._body.timings_per_token or finished:
            chunk.timings = timings(self.generation.timers[event.index])
        if finished:
            chunk.system_fingerprint = fingerprint(self.generation.served)
        return data_event(chunk)

    def _choice(self, event: ReplyEvent, kind: type[ChoiceT]) -> ChoiceT:
        body, index, text = self._body, event.index, event.text
        if event.starts and body.echo:
            text = self._prompt_texts[index // body.n] + text
        choice = kind(
            index=index,
            text=text,
            logprobs=self._logprobs(event) if body.logprobs is not None else None,
            finish_reason=event.finish_reason,
            stop_reason=event.stop_reason,
        )
        if body.return_token_ids:
            choice.token_ids = event.token_ids
            if event.starts:
                choice.prompt_token_ids = self.generation.prompt_ids(index)
        return choice

    def _logprobs(self, event: ReplyEvent) -> CompletionLogprobs:
        index, named = event.index, list[TokenLogprobs | int]()
        if event.starts and self._body.echo:
            ids = self.generation.prompt_ids(index)
            named += [
                token if known is None else known
                for token, known in zip(ids, event.prompt_logprobs, strict=False)
            ]
        named += event.logprobs
        told, self._offsets[index] = self._formatter.completion(named, self._offsets[index])
        return told

    def _text_choice(self, index: int, text: str) -> CompletionChunkChoice:
        return CompletionChunkChoice(index=index, text=text)

    def _chunk(self, choices: Sequence[Any], usage: Usage | UnsetType = UNSET) -> CompletionChunk:
        head = self._head
        return CompletionChunk(
            id=head.id, created=head.created, model=head.model, choices=list(choices), usage=usage
        )

    def _final_usage(self) -> Usage:
        return final_usage(self.stream, self._body)
