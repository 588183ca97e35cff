"""Replies of /inference/v1/generate, whole and streamed: tokens, and their text where asked."""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from pagoda.server.context import ReplyHead
from pagoda.server.protocol.generate import (
    Generated,
    GeneratedChoice,
    GeneratedChunk,
    GenerateRequest,
    IdLogprobs,
)
from pagoda.server.protocol.replies import ChatLogprobs, Usage
from pagoda.server.replies.chunked import ChunkedReply
from pagoda.server.replies.events import ReplyEvent, ReplyStream
from pagoda.server.replies.generation import Generation
from pagoda.server.replies.logprobs import id_logprobs
from pagoda.server.replies.sse import data_event


class GenerateReply(ChunkedReply):
    def __init__(self, generation: Generation, body: GenerateRequest, head: ReplyHead):
        super().__init__(ReplyStream(generation), body.stream_options, tells_tokens=True)
        self._body, self._head = body, head
        self._with_text = body.output_mode == "text"
        self._begun = False

    def whole(self) -> Generated:
        head, generation = self._head, self.generation
        reply = Generated(
            request_id=head.id,
            output_mode=self._body.output_mode,
            model=head.model,
            created=head.created,
            choices=[self._choice(event) for event in self.sums],
            usage=self._final_usage(),
        )
        if generation.sampling.prompt_logprobs is not None:
            reply.prompt_logprobs = self._formatter.prompt(self.sums[0].prompt_logprobs)
        if self._body.return_token_ids:
            reply.prompt_token_ids = generation.prompt_ids(0)
        return reply

    def _told(self, event: ReplyEvent) -> bytes:
        if not (event.token_ids or event.deltas or event.finish_reason):
            return b""
        chunk = self._chunk([self._choice(event)], self._usage())
        if self._body.return_token_ids and not self._begun:
            chunk.prompt_token_ids = self.generation.prompt_ids(0)
        self._begun = True
        return data_event(chunk)

    def _choice(self, event: ReplyEvent) -> GeneratedChoice:
        return GeneratedChoice(
            index=event.index,
            finish_reason=event.finish_reason,
            stop_reason=event.stop_reason,
            token_ids=event.token_ids,
            text=event.text if self._with_text else UNSET,
            logprobs=self._logprobs(event),
        )

    def _logprobs(self, event: ReplyEvent) -> IdLogprobs | ChatLogprobs | None:
        count = self.generation.sampling.logprobs
        if count is None:
            return None
        if self._with_text:
            return self._formatter.chat(event.logprobs, count)
        return IdLogprobs(id_logprobs(event.logprobs))

    def _text_choice(self, index: int, text: str) -> GeneratedChoice:
        return GeneratedChoice(index=index, token_ids=[], text=text)

    def _chunk(self, choices: Sequence[Any], usage: Usage | UnsetType = UNSET) -> GeneratedChunk:
        mode = self._body.output_mode
        return GeneratedChunk(
            request_id=self._head.id, output_mode=mode, choices=list(choices), usage=usage
        )

    def _final_usage(self) -> Usage:
        return self.stream.usage()
