"""Runs the choices of one HTTP request: prompts x n, each an engine request of its own."""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pagoda.base.errors import RequestError
from pagoda.core.messages import AddRequest, RequestDelta, SpeechRules, is_progress
from pagoda.core.sampling import SamplingParams
from pagoda.engine.media import payloads
from pagoda.engine.outputs import OutputDelta, OutputProcessor
from pagoda.engine.processes.inbox import Inbox
from pagoda.engine.served.model import ServedModel, fan_out
from pagoda.server.bodies.prompts import Prompt
from pagoda.server.errors import ApiError, unavailable
from pagoda.server.keys.account import asking, meter_of
from pagoda.server.metrics import Metrics, RequestTimer, Siblings
from pagoda.server.params import check_volume
from pagoda.server.protocol.common import TextBody

Part = tuple[int, OutputDelta]
"""Index of the choice, and what was added to it."""
Watch = Callable[[int, OutputDelta], None]

# Clients choose response ids, so engine ids carry a number that never repeats.
_serial = itertools.count()


@dataclass(frozen=True)
class ReplyRules:
    """What holds for the replies of a request beside its sampling."""

    grammar: str | None = None
    """What each reply follows."""
    shown_ids: Set[int] = frozenset()
    """Special tokens that are text all the same."""
    prediction: Sequence[int] = ()
    """Token ids that the client expects."""
    speech: SpeechRules | None = None
    """For texts that write down a sound."""


PLAIN_REPLY = ReplyRules()


class Generation:
    """All choices of one request, in the order prompt 0's n choices, prompt 1's, ..."""

    def __init__(
        self,
        served: ServedModel,
        prompts: list[Prompt],
        sampling: SamplingParams,
        body: TextBody,
        response_id: str,
        metrics: Metrics,
        rules: ReplyRules = PLAIN_REPLY,
    ):
        """Raises RequestError (too long, bad ids) before anything reaches the engine."""
        check_volume(sampling, len(prompts) * sampling.n)
        self.id = response_id
        self.served = served
        self.prompts = prompts
        self.sampling = sampling
        self.metrics = metrics.of(served)
        self._meter = meter_of(served.names[0])
        self.is_predicted = bool(rules.prediction)
        """The client said what it expects of the reply."""
        self.watch: Watch | None = None
        """Hears of what is added to each choice."""
        self.kv_transfer_params: dict[str, Any] | None = None
        """Where another engine finds the KV of the prompt, once the first choice has ended."""
        self._inbox: Inbox | None = None
        self._requests: list[AddRequest] = []
        self.timers: list[RequestTimer] = []
        """One per choice."""
        for prompt in prompts:
            req_id = f"{response_id}-{next(_serial)}"
            request = prepared_request(served, req_id, prompt, sampling, body, rules)
            choices = fan_out(request, sampling.n)
            siblings = Siblings(sampling.n, self._meter)
            self._requests += choices
            self.timers += [RequestTimer(self.metrics, choice, siblings) for choice in choices]
        self._running = {
            request.req_id: _Choice(
                index,
                OutputProcessor(
                    served.tokenizer, sampling, request.prompt_token_ids, rules.shown_ids
                ),
                self.timers[index],
            )
            for index, request in enumerate(self._requests)
        }

    @property
    def num_choices(self) -> int:
        return len(self._requests)

    def prompt_ids(self, index: int) -> list[int]:
        """The prompt of a choice as the engine sees it (truncation applied)."""
        return self._requests[index].prompt_token_ids

    def prompt_text(self, index: int, most: int, start: int = 0) -> str:
        """At most so many characters of the prompt of a choice, from its token `start` on."""
        # A token has one at least, special ones apart.
        return self.served.tokenizer.decode(self.prompt_ids(index)[start : start + most])[:most]

    @property
    def num_prompt_tokens(self) -> int:
        """Each prompt once: its choices share it."""
        return sum(len(self.prompt_ids(i)) for i in range(0, self.num_choices, self.sampling.n))

    @contextmanager
    def started(self) -> Iterator[None]:
        """The engine has all of it inside; leaving aborts what still runs.

        Entering raises QueueFullError or EngineDeadError where the engine takes no more, and
        ApiError 429 where the key has no tokens left.
        """
        client = self.served.client
        if self._meter is not None:
            self._meter.check()
        media = payloads(placed for prompt in self.prompts for placed in prompt.media)
        self._inbox = client.submit(self._requests, media)
        if self._meter is not None:
            self._meter.count(prompt=self.num_prompt_tokens)
        try:
            yield
        finally:
            client.drop([request.req_id for request in self._requests])
            for timer in self.timers:
                timer.close()

    @property
    def running(self) -> bool:
        """Whether there is more to come."""
        return bool(self._running)

    @property
    def running_requests(self) -> list[tuple[AddRequest, RequestTimer]]:
        """What the engine still works at, or has in its queue."""
        return [
            (request, timer)
            for request, timer in zip(self._requests, self.timers, strict=True)
            if request.req_id in self._running
        ]

    def abort(self) -> None:
        """End what still runs, from outside; its reader gets the finish reason `abort`."""
        for request, _ in self.running_requests:
            self._end(request.req_id, "abort")

    def cut(self, index: int) -> None:
        """End a choice for its length; another part of it follows, with the finish reason."""
        req_id = self._requests[index].req_id
        if req_id in self._running:
            self._end(req_id, "length")

    def _end(self, req_id: str, reason: str) -> None:
        if self._inbox is not None:
            self.served.client.drop([req_id])
            self._inbox.put(RequestDelta(req_id=req_id, finish_reason=reason))

    def arrival(self) -> "asyncio.Future[None]":
        """Done as soon as `take` has something to tell."""
        assert self._inbox is not None
        return self._inbox.arrival()

    def wake(self) -> None:
        """Have who waits for an arrival look around."""
        if self._inbox is not None:
            self._inbox.wake()

    @property
    def waiting_timer(self) -> RequestTimer | None:
        """The timer of the first choice whose prompt is still worked on."""
        return next((timer for _, timer in self.running_requests if not timer.num_tokens), None)

    def take(self) -> list[Part]:
        """What arrived since the last look.

        Raises RequestError or ApiError when a choice fails and EngineDeadError when the engine
        does.
        """
        assert self._inbox is not None
        parts = []
        for delta in self._inbox.take():
            choice = self._running.get(delta.req_id)
            if choice is None:
                continue
            if is_progress(delta):
                choice.timer.observe(delta, 0, None)
            else:
                parts.append((choice.index, self._process(choice, delta)))
        return parts

    def _process(self, choice: "_Choice", delta: RequestDelta) -> OutputDelta:
        output = choice.processor.process(delta)
        choice.timer.observe(delta, len(output.token_ids), output.finish_reason)
        if self.watch is not None:
            self.watch(choice.index, output)
        if output.finish_reason is not None:
            self.kv_transfer_params = self.kv_transfer_params or delta.kv_transfer_params
            del self._running[delta.req_id]
            if choice.processor.matched_stop:
                self.served.client.drop([delta.req_id])
            if output.bad_request:
                raise RequestError(output.error or "The request cannot be served.")
            if output.error is not None or output.finish_reason == "error":
                raise ApiError(500, f"The request failed: {output.error or 'unknown cause'}")
        return output


@dataclass
class _Choice:
    index: int
    processor: OutputProcessor
    timer: RequestTimer


def prepared_request(
    served: ServedModel,
    req_id: str,
    prompt: Prompt,
    sampling: SamplingParams,
    body: TextBody,
    rules: ReplyRules = PLAIN_REPLY,
) -> AddRequest:
    """A prompt as the engine gets it; RequestError if it is too long or has bad ids, ApiError 503
    while the engine is not there, 403 for adapters by number where the key names its models."""
    check_ready(served)
    request = served.make_request(
        req_id,
        prompt.ids,
        sampling,
        media=prompt.media,
        grammar=rules.grammar,
        prediction=rules.prediction,
        priority=body.priority,
        cache_salt=body.cache_salt,
    )
    account = asking()
    if body.lora is not None and account is not None and account.entry.models is not None:
        raise ApiError(403, "The key names its models; ask for an adapter by its name.",
                       param="lora")  # fmt: skip
    scales = None if body.lora is None else {each.id: each.scale for each in body.lora}
    served.client.adapters.apply(request, body.model, scales)
    request.kv_transfer = body.kv_transfer
    request.session, request.agent = body.asker
    request.speech = rules.speech
    if sampling.max_tokens is None:
        # A default never asks for more than the context has left: nobody chose it.
        default = body.default_length(served.defaults.get("max_tokens"))
        room = request.sampling.max_tokens
        if default is not None and room is not None:
            request.sampling.max_tokens = min(default, room)
    return request


def check_ready(served: ServedModel) -> None:
    """ApiError 503 while the engine is not there."""
    if served.client.state != "ready":
        raise unavailable(_not_ready(served))


def _not_ready(served: ServedModel) -> str:
    client = served.client
    if client.state == "starting":
        said = f"The model {served.names[0]} is loading"
        if client.cause is None:
            return f"{said} (phase: {client.phase})."
        return f"{said} again (phase: {client.phase}), after its engine died: {client.cause}"
    return f"The engine is not running: {client.cause or client.state}"
