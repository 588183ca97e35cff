"""A reply as one stream of events: what every dialect tells, and what whole replies add up."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from pagoda.core.messages import Tiers, TokenLogprobs
from pagoda.engine.outputs import OutputDelta
from pagoda.server.protocol.replies import PromptTokensDetails, Usage
from pagoda.server.replies.generation import Generation
from pagoda.server.replies.textlogprobs import TextLogprobs
from pagoda.text.parsers.base import Delta, OutputParser, append_delta


class ReplyEvent(msgspec.Struct):
    """What one output of the engine adds to a choice. The sum of a choice's events is one, too,
    and says the whole reply."""

    index: int
    """Which choice it is of."""
    starts: bool = False
    """Its first token is here, or its end."""
    deltas: list[Delta] = []
    """Text, thought and calls, in order; none where tokens add no text yet."""
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    """Logprobs of the tokens, whatever they are part of."""
    text_logprobs: Sequence[list[TokenLogprobs]] = ()
    """For each delta those of its text, where a reader was asked for them."""
    prompt_logprobs: Sequence[TokenLogprobs | None] = ()
    """All of them, where the choice starts."""
    finish_reason: str | None = None
    """Where it ends."""
    stop_reason: int | str | None = None

    @property
    def text(self) -> str:
        return "".join([delta.text for delta in self.deltas if delta.kind == "text"])

    @property
    def thought(self) -> str:
        return "".join([delta.text for delta in self.deltas if delta.kind == "reasoning"])

    def add(self, later: "ReplyEvent") -> None:
        for delta in later.deltas:
            append_delta(self.deltas, delta)
        self.token_ids += later.token_ids
        if later.logprobs:
            self.logprobs += later.logprobs
        if later.starts:
            self.prompt_logprobs = later.prompt_logprobs
        if later.finish_reason is not None:
            self.finish_reason, self.stop_reason = later.finish_reason, later.stop_reason


@dataclass
class ReplyReader:
    """Makes the events of one choice, and keeps what counts at its end."""

    index: int
    parser: OutputParser | None = None
    """None: all is text."""
    parallel_calls: bool = True
    """False drops all calls but the first."""
    named_call: bool = False
    """A call was asked for by name: the reply ends with `stop`, as OpenAI's."""
    text_logprobs: TextLogprobs | None = None
    ended: Callable[[bool], None] | None = None
    """Hears at the end whether there was a call."""
    thought: list[str] = field(default_factory=list)
    called: bool = False
    num_tokens: int = 0
    num_cached_tokens: int | None = None
    prefix_miss: str | None = "off"
    cached_tiers: Tiers = Tiers()
    _started: bool = False
    _prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)

    def read(self, output: OutputDelta) -> ReplyEvent:
        if output.num_cached_tokens is not None and self.num_cached_tokens is None:
            self.num_cached_tokens = output.num_cached_tokens
            self.prefix_miss = output.prefix_miss
            self.cached_tiers = output.cached_tiers
        self.num_tokens += len(output.token_ids)
        deltas = self._deltas(output)
        event = ReplyEvent(self.index, False, deltas, output.token_ids, output.logprobs or [])
        if output.prompt_logprobs:
            self._prompt_logprobs += output.prompt_logprobs
        if not self._started and (output.token_ids or output.finish_reason is not None):
            self._started = event.starts = True
            event.prompt_logprobs = self._prompt_logprobs
        if self.text_logprobs is not None:
            event.text_logprobs = self.text_logprobs.of(output, deltas)
        if output.finish_reason is not None:
            called = self.called and not self.named_call and output.finish_reason == "stop"
            event.finish_reason = "tool_calls" if called else output.finish_reason
            event.stop_reason = output.stop_reason
            if self.ended is not None:
                self.ended(self.called)
        return event

    def _deltas(self, output: OutputDelta) -> list[Delta]:
        """What became certain with this output."""
        parser, text = self.parser, output.text
        if parser is None:
            return [Delta("text", text)] if text else []
        deltas = parser.feed(text) if text else []
        if output.finish_reason is not None:
            deltas = [*deltas, *parser.finish()]
        if not self.parallel_calls:
            deltas = [delta for delta in deltas if not delta.tool_index]
        for delta in deltas:
            if delta.kind == "reasoning":
                self.thought.append(delta.text)
            elif delta.kind == "tool_call":
                self.called = True
        return deltas


class ReplyStream:
    """The events of a generation, in the order in which they come, and the counts of its usage."""

    def __init__(self, generation: Generation, readers: list[ReplyReader] | None = None):
        """`readers`, one for each choice; without them all is text."""
        self.generation = generation
        self.readers = readers or [ReplyReader(i) for i in range(generation.num_choices)]
        self._num_tokens = 0

    def take(self) -> Iterator[ReplyEvent]:
        """Events of what arrived since the last look; raises as `Generation.take`. Usage counts up
        to the event that was given last."""
        for index, output in self.generation.take():
            self._num_tokens += len(output.token_ids)
            yield self.readers[index].read(output)

    def usage(self) -> Usage:
        # The n choices of a prompt share it, so the first one's hits are the prompt's.
        firsts = self.readers[:: self.generation.sampling.n]
        prompt = self.generation.num_prompt_tokens
        return Usage(
            prompt_tokens=prompt,
            total_tokens=prompt + self._num_tokens,
            completion_tokens=self._num_tokens,
            prompt_tokens_details=PromptTokensDetails(
                sum(reader.num_cached_tokens or 0 for reader in firsts)
            ),
        )

    def count_thought(self) -> int:
        """Tokens of what the choices have thought so far."""
        encode = self.generation.served.tokenizer.encode
        return sum(
            len(encode("".join(reader.thought), add_special_tokens=False))
            for reader in self.readers
            if reader.thought
        )
