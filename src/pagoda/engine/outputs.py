"""From the engine's token deltas to text, log-probabilities and results, with vLLM's names."""

import time
from collections.abc import Set
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from pagoda.core.messages import RequestDelta, Tiers, TokenLogprobs
from pagoda.core.sampling import SamplingParams
from pagoda.text.detokenizer import Detokenizer
from pagoda.text.parsers.base import OutputParser
from pagoda.text.parsers.reply import ToolCall, parse_reply
from pagoda.text.stop import StopMatcher
from pagoda.text.tokenizer import Tokenizer


class Logprob(NamedTuple):
    """One alternative at one position; `rank` is 1 for the most probable token."""

    logprob: float
    rank: int
    decoded_token: str


TokenTable = dict[int, Logprob]
"""Alternatives by token id; the token itself comes first, whatever its rank."""


class OutputDelta(msgspec.Struct):
    """What one step added to a request, as text."""

    text: str = ""
    """Final: later deltas never change it. May lag behind `token_ids` (partial characters,
    a stop string that may be beginning)."""
    token_ids: list[int] = msgspec.field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    text_ends: list[int] = msgspec.field(default_factory=list)
    """With log-probabilities: where the text of each token ends in the reply, in characters. The
    token that ended the reply has none, and a token that only begins a character ends before it."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int | None = None
    prefix_miss: str | None = None
    """As in RequestDelta; with the first delta."""
    cached_tiers: Tiers = Tiers()
    error: str | None = None
    bad_request: bool = False


class OutputProcessor:
    """Turns the deltas of one request into text and finds its stop strings.

    When `matched_stop` turns True the caller aborts the request: the engine knows only stop
    tokens, and what it still sends is not part of the result. `shown_ids`: special tokens that
    become text whatever the request says (`TextSide.markup_ids`, for a parser).
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: SamplingParams,
        prompt_ids: list[int],
        shown_ids: Set[int] = frozenset(),
    ):
        self._sampling = sampling
        self._detokenizer = (
            Detokenizer(
                tokenizer,
                skip_special_tokens=sampling.skip_special_tokens,
                spaces_between_special_tokens=sampling.spaces_between_special_tokens,
                prompt_ids=prompt_ids,
                shown_ids=shown_ids,
            )
            if sampling.detokenize
            else None
        )
        self._stop = StopMatcher(sampling.stop, include=sampling.include_stop_str_in_output)
        self._num_tokens = 0
        self._length = 0
        self.matched_stop = False

    def process(self, delta: RequestDelta) -> OutputDelta:
        output = OutputDelta(
            token_ids=delta.token_ids,
            logprobs=delta.logprobs,
            prompt_logprobs=delta.prompt_logprobs,
            # In process it is the scheduler's enum, over the wire a plain string.
            finish_reason=delta.finish_reason and str(delta.finish_reason),
            stop_reason=delta.stop_reason,
            num_cached_tokens=delta.num_cached_tokens,
            prefix_miss=delta.prefix_miss,
            cached_tiers=delta.cached_tiers,
            error=delta.error,
            bad_request=delta.bad_request,
        )
        if self._detokenizer is not None and not self.matched_stop:
            self._add_text(output, self._detokenizer)
        return output

    def _add_text(self, output: OutputDelta, detokenizer: Detokenizer) -> None:
        """Token by token where it matters: the middle one of several may complete a stop string,
        and a log-probability belongs to a place in the text."""
        ids = output.token_ids
        if output.finish_reason == "stop" and not self._sampling.include_stop_str_in_output:
            ids = ids[:-1]  # the token that ended it is no text
        if not self._sampling.stop and self._sampling.logprobs is None:
            output.text = detokenizer.append(ids)
            if output.finish_reason is not None:
                output.text += detokenizer.finish()
            return
        for count, token in enumerate(ids, start=1):
            self._num_tokens += 1
            text = detokenizer.append([token])
            self._length += len(text)
            output.text_ends.append(self._length)
            self._feed(output, text)
            if self.matched_stop:
                output.token_ids = ids[:count]
                output.logprobs = output.logprobs and output.logprobs[:count]
                return
        if output.finish_reason is not None:
            self._feed(output, detokenizer.finish())
            if not self.matched_stop:
                output.text += self._stop.flush()

    def _feed(self, output: OutputDelta, text: str) -> None:
        if self._num_tokens <= self._sampling.min_tokens:
            output.text += text
            return
        result = self._stop.feed(text)
        output.text += result.text
        if result.matched is not None:
            self.matched_stop = True
            output.finish_reason = "stop"
            output.stop_reason = result.matched


def token_table(tokenizer: Tokenizer, entry: TokenLogprobs) -> TokenTable:
    text = tokenizer.token_text
    table = {entry.token_id: Logprob(entry.logprob, entry.rank, text(entry.token_id))}
    for rank, (token, logprob) in enumerate(
        zip(entry.top_ids, entry.top_logprobs, strict=True), start=1
    ):
        if token not in table:
            table[token] = Logprob(logprob, rank, text(token))
    return table


@dataclass
class CompletionOutput:
    """One of the `n` completions of a prompt."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    """Sum over the generated tokens, where log-probabilities were asked for."""
    logprobs: list[TokenTable] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    reasoning: str | None = None
    """With `LLM.chat`: the model's thought, None where it had none. `text` is all that it wrote."""
    content: str | None = None
    """With `LLM.chat`: the answer."""
    tool_calls: list[ToolCall] = field(default_factory=list)
    """With `LLM.chat`: names and arguments, which are JSON."""

    def finished(self) -> bool:
        return self.finish_reason is not None

    def parse(self, parser: OutputParser) -> None:
        """Tell thought, answer and calls apart; the text is complete."""
        reply = parse_reply(parser, self.text)
        self.reasoning, self.content = reply.reasoning or None, reply.text
        self.tool_calls = reply.tool_calls

    def add(self, delta: OutputDelta, tokenizer: Tokenizer) -> None:
        self.text += delta.text
        self.token_ids.extend(delta.token_ids)
        if delta.logprobs is not None:
            self.logprobs = self.logprobs if self.logprobs is not None else []
            self.logprobs.extend(token_table(tokenizer, entry) for entry in delta.logprobs)
            earlier = self.cumulative_logprob or 0.0
            self.cumulative_logprob = earlier + sum(entry.logprob for entry in delta.logprobs)
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


@dataclass
class RequestMetrics:
    """Moments of a request, as time.time()."""

    arrival_time: float = field(default_factory=time.time)
    first_token_time: float | None = None
    finished_time: float | None = None


@dataclass
class RequestOutput:
    """The result of one prompt."""

    request_id: str
    prompt: str | None
    """None where the prompt came as token ids."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: list[TokenTable | None] | None = None
    """Per prompt token; the first has none."""
    num_cached_tokens: int | None = None
    metrics: RequestMetrics = field(default_factory=RequestMetrics)

    def add(self, index: int, delta: OutputDelta, tokenizer: Tokenizer) -> None:
        """Add what a step gave to completion `index`."""
        self.outputs[index].add(delta, tokenizer)
        if delta.token_ids and self.metrics.first_token_time is None:
            self.metrics.first_token_time = time.time()
        if index == 0:
            if delta.prompt_logprobs is not None:
                self.prompt_logprobs = (self.prompt_logprobs or []) + [
                    None if entry is None else token_table(tokenizer, entry)
                    for entry in delta.prompt_logprobs
                ]
            if delta.num_cached_tokens is not None:
                self.num_cached_tokens = delta.num_cached_tokens
        if not self.finished and all(output.finished() for output in self.outputs):
            self.finished = True
            self.metrics.finished_time = time.time()
