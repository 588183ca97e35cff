"""Completions, whole and streamed."""

from typing import TypeVar

from pagoda.core.messages import TokenLogprobs
from pagoda.server.context import ReplyHead
from pagoda.server.protocol.completions import CompletionRequest
from pagoda.server.protocol.replies import (
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionLogprobs,
)
from pagoda.server.replies.events import ReplyEvent, ReplyStream
from pagoda.server.replies.generation import Generation
from pagoda.server.replies.openai import OpenAIReply

ChoiceT = TypeVar("ChoiceT", CompletionChoice, CompletionChunkChoice)


class CompletionReply(OpenAIReply[CompletionChunk]):
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
            body,
            head,
            CompletionChunk,
            tells_logprobs=body.logprobs is not None,
        )
        self._body, self._prompt_texts = body, prompt_texts
        self._offsets = [0] * generation.num_choices
        """Characters that the logprobs of each choice have named so far."""

    def whole(self) -> Completion:
        choices = [self._choice(event, CompletionChoice) for event in self.sums]
        if self._body.prompt_logprobs is not None:
            for choice, event in zip(choices, self.sums, strict=True):
                choice.prompt_logprobs = self._formatter.prompt(event.prompt_logprobs)
        return Completion(choices=choices, **self._around())

    def _chunks(self, event: ReplyEvent) -> list[CompletionChunk]:
        choice = self._choice(event, CompletionChunkChoice)
        told = choice.text or event.finish_reason or (self._tells_tokens and event.token_ids)
        return [self._chunk([choice], event)] if told else []

    def _silent_choice(self) -> CompletionChunkChoice:
        return CompletionChunkChoice(index=0, text="")

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
