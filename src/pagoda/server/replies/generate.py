"""Replies of /inference/v1/generate, whole and streamed: tokens, and their text where asked."""

from msgspec import UNSET

from pagoda.server.context import ReplyHead
from pagoda.server.protocol.common import StreamOptions
from pagoda.server.protocol.generate import (
    Generated,
    GeneratedChoice,
    GeneratedChunk,
    GenerateRequest,
    IdLogprobs,
)
from pagoda.server.protocol.replies import ChatLogprobs
from pagoda.server.replies.events import ReplyEvent, ReplyStream
from pagoda.server.replies.generation import Generation
from pagoda.server.replies.logprobs import LogprobFormatter, id_logprobs
from pagoda.server.replies.reply import Reply
from pagoda.server.replies.sse import data_event


class GenerateReply(Reply):
    def __init__(self, generation: Generation, body: GenerateRequest, head: ReplyHead):
        super().__init__(ReplyStream(generation))
        self._body, self._head = body, head
        self._options = body.stream_options or StreamOptions()
        self._formatter = LogprobFormatter(generation.served.tokenizer, as_ids=False)
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
            usage=self.stream.usage(),
        )
        if generation.sampling.prompt_logprobs is not None:
            reply.prompt_logprobs = self._formatter.prompt(self.sums[0].prompt_logprobs)
        if self._body.return_token_ids:
            reply.prompt_token_ids = generation.prompt_ids(0)
        return reply

    def end(self) -> bytes:
        if not self._options.include_usage:
            return b""
        return data_event(self._chunk([], tells_usage=True))

    def tell(self, event: ReplyEvent) -> bytes:
        if not (event.token_ids or event.deltas or event.finish_reason):
            return b""
        chunk = self._chunk([self._choice(event)], tells_usage=self._options.continuous_usage_stats)
        if self._body.return_token_ids and not self._begun:
            chunk.prompt_token_ids = self.generation.prompt_ids(0)
        self._begun = True
        return data_event(chunk)

    def waiting(self) -> bytes:
        return data_event(self._chunk([], tells_usage=False))

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

    def _chunk(self, choices: list[GeneratedChoice], *, tells_usage: bool) -> GeneratedChunk:
        return GeneratedChunk(
            request_id=self._head.id,
            output_mode=self._body.output_mode,
            choices=choices,
            usage=self.stream.usage() if tells_usage else UNSET,
        )
