"""What replies in OpenAI's two dialects, chats and completions, share."""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from pagoda.engine.served.model import ServedModel
from pagoda.server.context import ReplyHead
from pagoda.server.protocol.common import GenerationBody, StreamOptions
from pagoda.server.protocol.replies import (
    CachedTokens,
    ChatCompletionChunk,
    CompletionChunk,
    CompletionTokensDetails,
    PrefixReport,
    Usage,
)
from pagoda.server.replies.events import ReplyEvent, ReplyStream
from pagoda.server.replies.logprobs import LogprobFormatter
from pagoda.server.replies.reply import Reply
from pagoda.server.replies.sse import TextEvent, data_event
from pagoda.server.replies.timings import prompt_progress, timings
from pagoda.text.parsers.base import Delta
from pagoda.version import __version__

ChunkT = TypeVar("ChunkT", ChatCompletionChunk, CompletionChunk)


class OpenAIReply(Reply, Generic[ChunkT]):
    def __init__(
        self,
        stream: ReplyStream,
        body: GenerationBody,
        head: ReplyHead,
        chunk: type[ChunkT],
        *,
        tells_logprobs: bool,
    ):
        super().__init__(stream)
        options = body.stream_options or StreamOptions()
        self._includes_usage = options.include_usage
        self._counts = options.continuous_usage_stats
        self._times = body.timings_per_token
        self._reports_prefix = body.return_prefix_report
        self._tells_tokens = body.return_token_ids or tells_logprobs or self._counts
        """There is a chunk for a token even where it adds no text."""
        self._head = {"id": head.id, "created": head.created, "model": head.model}
        self._chunk_type: Callable[..., ChunkT] = chunk
        self._texts: dict[int, TextEvent] = {}
        self._formatter = LogprobFormatter(
            self.generation.served.tokenizer, body.return_tokens_as_token_ids
        )

    def tell(self, event: ReplyEvent) -> bytes:
        deltas = event.deltas
        if not (self._tells_tokens or self._times or event.starts or event.finish_reason):
            # The short way of nearly all events: nothing to tell but a piece of text.
            if not deltas:
                return b""
            if len(deltas) == 1 and deltas[0].kind == "text":
                return self._text(event.index).of(deltas[0].text)
        return b"".join(map(data_event, self._chunks(event)))

    def end(self) -> bytes:
        if not self._includes_usage:
            return b""
        chunk = self._chunk([])
        chunk.usage = final_usage(self.stream, reports_prefix=self._reports_prefix)
        return data_event(chunk)

    def waiting(self) -> bytes:
        # With a choice, though it says nothing: many clients look at the first one of each chunk.
        timer = self.generation.waiting_timer
        chunk = self._chunk([self._silent_choice()])
        if timer is not None:
            chunk.prompt_progress = prompt_progress(timer)
        return data_event(chunk)

    @abstractmethod
    def _silent_choice(self) -> Any:
        """The choice of a chunk that says nothing of it."""

    @abstractmethod
    def _chunks(self, event: ReplyEvent) -> list[ChunkT]:
        """The chunks that tell an event; none if there is nothing to tell yet."""

    def _chunk(self, choices: Sequence[Any], event: ReplyEvent | None = None) -> ChunkT:
        """With what chunks of an event say beside its choice."""
        chunk = self._chunk_type(**self._head, choices=choices)
        if self._counts:
            chunk.usage = self.stream.usage()
        if event is not None and (self._times or event.finish_reason is not None):
            chunk.timings = timings(self.generation.timers[event.index])
        if event is not None and event.finish_reason is not None:
            chunk.system_fingerprint = fingerprint(self.generation.served)
        return chunk

    def _around(self) -> dict[str, Any]:
        """What whole replies say beside their choices."""
        return {
            **self._head,
            "system_fingerprint": fingerprint(self.generation.served),
            "usage": final_usage(self.stream, reports_prefix=self._reports_prefix),
            "kv_transfer_params": self.generation.kv_transfer_params,
            "timings": timings(self.generation.timers[0]),
        }

    def _text(self, index: int) -> TextEvent:
        found = self._texts.get(index)
        if found is None:
            found = TextEvent(
                lambda text: self._chunks(ReplyEvent(index, deltas=[Delta("text", text)]))[0]
            )
            self._texts[index] = found
        return found


def final_usage(stream: ReplyStream, *, reports_prefix: bool) -> Usage:
    usage, thought = stream.usage(), stream.count_thought()
    if thought or stream.generation.is_predicted:
        usage.completion_tokens_details = details = CompletionTokensDetails(thought)
        if stream.generation.is_predicted:
            timers = stream.generation.timers
            accepted = sum(timer.num_accepted_tokens for timer in timers)
            details.accepted_prediction_tokens = accepted
            details.rejected_prediction_tokens = (
                sum(timer.num_draft_tokens for timer in timers) - accepted
            )
    if reports_prefix:
        usage.prompt_tokens_details.prefix_report = _prefix_report(stream)
    return usage


def _prefix_report(stream: ReplyStream) -> PrefixReport:
    """How much of the first choice's prompt was cached."""
    first, served = stream.readers[0], stream.generation.served
    if first.prefix_miss == "off":
        return PrefixReport(reason="off")
    at, (host, disk) = first.num_cached_tokens or 0, first.cached_tiers
    report = PrefixReport(reason="all", cached=CachedTokens(at - host - disk, host, disk))
    if first.prefix_miss is not None:
        ready = served.client.ready
        size = ready.block_size if ready is not None else 0
        block = stream.generation.prompt_ids(0)[at : at + size]
        report.reason, report.at_token = first.prefix_miss, at
        report.text = served.tokenizer.decode(block)
    return report


def fingerprint(served: ServedModel) -> str:
    """Changes when the program, the model or its shape does: seeds repeat only within one."""
    ready = served.client.ready
    shape = (served.root, ready and (ready.max_model_len, ready.vocab_size, ready.block_size))
    return f"pagoda-{__version__}-{hashlib.sha256(repr(shape).encode()).hexdigest()[:8]}"
