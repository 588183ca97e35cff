"""A request on its way through one engine, or through several in turn."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from pagoda.core.messages import AddRequest, RequestDelta, Tiers
from pagoda.engine.processes.inbox import Inbox
from pagoda.text.media.base import Values

Hear = Callable[[RequestDelta], RequestDelta | None]


class DivergedError(Exception):
    """A request that ran again gave other tokens than its client already has."""


class FilteredInbox(Inbox):
    """Passes each delta through `hear` on its way to the reader."""

    def __init__(self, hear: Hear) -> None:
        super().__init__()
        self._hear = hear

    def put(self, delta: RequestDelta) -> None:
        told = self._hear(delta)
        if told is not None:
            super().put(told)


@dataclass
class Journey:
    """A request, and what its client has of the reply.

    The same request gives the same tokens on every engine of a model. If its engine dies, it runs
    again from the beginning on another. Tokens that the client already has are compared and left
    out. They are also sent along as a prediction: engines that guess verify many of them in a step.
    """

    request: AddRequest
    inbox: Inbox
    engine: int | None = None
    """The index of its engine; None while no engine serves."""
    media: Mapping[str, Values] = field(default_factory=dict)
    """Kept here while no engine has the request."""
    deaths: int = 0
    """Engines that died while they had the request, since its last new output."""
    begun: bool = False
    """The client has a part of the reply."""
    cause: str = ""
    """Why the request runs again."""
    _runs_again: bool = False
    _tokens: list[int] = field(default_factory=list)
    """All tokens that the client has."""
    _num_prompt: int = 0
    """Prompt positions whose log-probabilities the client has."""
    _replayed: int = 0
    """Tokens that this run has repeated."""
    _prompt_replayed: int = 0

    def again(self) -> AddRequest:
        """The request as the next engine gets it."""
        self._runs_again = True
        self._replayed = self._prompt_replayed = 0
        if not self._tokens:
            return self.request
        return msgspec.structs.replace(self.request, prediction_token_ids=list(self._tokens))

    def told(self, delta: RequestDelta) -> RequestDelta | None:
        """The part of a delta (not of mere progress) that is new to the client; None if nothing is.

        DivergedError if a repeated token differs from the one that the client has.
        """
        if not self._runs_again:
            self._keep(delta)
            return delta
        if self.begun:
            # Its client knows of the first time when it was admitted, and what was cached then.
            delta = msgspec.structs.replace(
                delta,
                num_cached_tokens=None, prefix_miss=None, cached_tiers=Tiers(), queue_seconds=None,
            )  # fmt: skip
        self._leave_out(delta)
        self._keep(delta)
        if not (delta.token_ids or delta.prompt_logprobs or delta.finish_reason):
            return None
        self.deaths = 0
        return delta

    def _keep(self, delta: RequestDelta) -> None:
        self.begun = True
        self._tokens += delta.token_ids
        self._replayed += len(delta.token_ids)
        if delta.prompt_logprobs is not None:
            self._num_prompt += len(delta.prompt_logprobs)
            self._prompt_replayed += len(delta.prompt_logprobs)

    def _leave_out(self, delta: RequestDelta) -> None:
        start, known = self._replayed, len(self._tokens)
        count = min(len(delta.token_ids), known - start)
        if delta.token_ids[:count] != self._tokens[start : start + count]:
            raise DivergedError
        ends = delta.finish_reason in ("stop", "length")
        if ends and start + len(delta.token_ids) < known:
            raise DivergedError
        self._replayed += count
        delta.token_ids = delta.token_ids[count:]
        if delta.logprobs is not None:
            delta.logprobs = delta.logprobs[count:] or None
        if delta.prompt_logprobs is not None:
            count = min(len(delta.prompt_logprobs), self._num_prompt - self._prompt_replayed)
            self._prompt_replayed += count
            delta.prompt_logprobs = delta.prompt_logprobs[count:] or None
