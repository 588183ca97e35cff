"""What the scheduler asks of the runner for one step, and what comes back."""

from collections.abc import Iterable
from typing import Self

import msgspec

from pagoda.core.messages import AddRequest, MediaItem, TokenLogprobs

ENCODE_AHEAD = 4
"""Media items that are encoded before the steps that need them, at most; so many of the largest are
kept."""
NO_STATES = (0, 0)


class PlannedRequest(msgspec.Struct, kw_only=True, gc=False):
    """One request's share of a step, as `StepPlan.requests` puts it together."""

    req_id: str
    num_computed_tokens: int
    """Tokens whose KV is in the cache; may be lower than in the last plan (rollback)."""
    num_tokens: int
    """1 or more; drafts counted in."""
    new_block_ids: list[list[int]]
    """Per attention group, blocks appended to the request's tables since the last plan; empty
    where there are none. Block 0 stands where a sliding window no longer reaches."""
    states: tuple[int, int] = NO_STATES
    """Of a model with recurrent layers: the block whose state the step goes on from (not read
    where it begins at position 0), and the block it writes."""
    draft_token_ids: list[int] = msgspec.field(default_factory=list)
    samples: bool = True
    """False for a prefill chunk that does not reach the last known token. For kind `pool` the
    plan that does asks for the embedding instead."""


class NewRow(msgspec.Struct, kw_only=True):
    """A request the runner has not seen (or a preempted one whose block tables start afresh)."""

    request: AddRequest | None
    """None when the runner already holds the row: the request was preempted and resumes."""
    req_id: str


class StepPlan(msgspec.Struct, kw_only=True):
    """The requests of a step in columns: hundreds of streams are planned, run and committed without
    an object for each of them.

    The runner computes `lens[i]` tokens of request i from position `starts[i] + ahead` on. Their
    ids live in the runner's row of the request, so the plan carries none but drafts. Read only:
    plans share columns that stay the same.
    """

    step_id: int
    rows: list[NewRow] = msgspec.field(default_factory=list)
    """Rows to create or to reset, before anything is computed."""
    req_ids: list[str] = msgspec.field(default_factory=list)
    starts: list[int] = msgspec.field(default_factory=list)
    """`num_computed_tokens` of each request, `ahead` steps ago."""
    ahead: int = 0
    lens: list[int] = msgspec.field(default_factory=list)
    """`num_tokens` of each."""
    new_blocks: dict[str, list[list[int]]] = msgspec.field(default_factory=dict)
    """By request, `new_block_ids` of those that get any."""
    drafts: dict[str, list[int]] = msgspec.field(default_factory=dict)
    """Likewise, `draft_token_ids`."""
    unsampled: set[str] = msgspec.field(default_factory=set)
    """The requests that sample nothing."""
    states: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """`states` of each request; empty for a model without recurrent layers."""
    encode: list[MediaItem] = msgspec.field(default_factory=list)
    """What `encode_for` needs next, to be worked on behind the requests for about as long as they
    took; whatever is not finished is asked for again."""
    encode_for: str = ""
    again: bool = False
    """The requests are those of the plan before, in its order, each a token further and with one
    token; nothing else is new but blocks. What a runner found out about them still holds."""
    freed: list[str] = msgspec.field(default_factory=list)
    """Requests that ended since the last plan; their rows go, before `rows` come: an id may
    be in both."""

    @classmethod
    def of(
        cls,
        step_id: int,
        requests: Iterable[PlannedRequest],
        rows: list[NewRow] | None = None,
        freed: list[str] | None = None,
    ) -> Self:
        plan = cls(step_id=step_id, rows=rows or [], freed=freed or [])
        for request in requests:
            plan.append(request)
        return plan

    def append(self, request: PlannedRequest) -> None:
        req_id = request.req_id
        self.req_ids.append(req_id)
        self.starts.append(request.num_computed_tokens)
        self.lens.append(request.num_tokens)
        if request.states != NO_STATES:
            self.states.append(request.states)
        if request.new_block_ids:
            self.new_blocks[req_id] = request.new_block_ids
        if request.draft_token_ids:
            self.drafts[req_id] = request.draft_token_ids
        if not request.samples:
            self.unsampled.add(req_id)

    @property
    def requests(self) -> list[PlannedRequest]:
        return [self.request(place) for place in range(len(self.req_ids))]

    def request(self, place: int) -> PlannedRequest:
        req_id = self.req_ids[place]
        return PlannedRequest(
            req_id=req_id,
            num_computed_tokens=self.starts[place] + self.ahead,
            num_tokens=self.lens[place],
            new_block_ids=self.new_blocks.get(req_id, []),
            states=self.states[place] if self.states else NO_STATES,
            draft_token_ids=self.drafts.get(req_id, []),
            samples=req_id not in self.unsampled,
        )

    @property
    def num_tokens(self) -> int:
        return sum(self.lens)


class RequestResult(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """What a step computed for one request."""

    req_id: str
    token_ids: list[int] = msgspec.field(default_factory=list)
    """0 (chunk) to k+1 (all drafts accepted, and one more) sampled tokens. 0 where a token was
    due makes the scheduler plan the last known token again."""
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Of the prompt tokens that this step's logits score, each once: not again when a preempted
    request is computed again."""
    embedding: bytes | None = None
    """fp32 in native byte order, not normalized: [hidden], or [labels] for `classify`, or
    [tokens, hidden] for `token_embed`."""
    error: str | None = None
    """A fault in this request alone; the others of the step are good."""
    bad_request: bool = False
    """What the request asks for is its own fault: no server error."""


class StepResult(msgspec.Struct, kw_only=True):
    step_id: int
    results: list[RequestResult] = msgspec.field(default_factory=list)
    tokens: list[int] = msgspec.field(default_factory=list)
    """Instead of results, where each of the plan's requests got one token and there is nothing
    else to tell: these, in the plan's order."""
    encoded: list[str] = msgspec.field(default_factory=list)
    """Content hashes of the plan's media items that a step can take up now."""
