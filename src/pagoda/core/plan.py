"""What the scheduler asks of the runner for one step, and what comes back."""

import msgspec

from pagoda.core.messages import AddRequest, MediaItem, TokenLogprobs

ENCODE_AHEAD = 4
"""Media items that are encoded before the steps that need them, at most; so many of the largest are
kept."""


class PlannedRequest(msgspec.Struct, kw_only=True):
    """One request's share of a step.

    The runner computes positions `num_computed_tokens .. num_computed_tokens + num_tokens`.
    Token ids live in the runner's row of the request, so the plan carries none but drafts.
    """

    req_id: str
    num_computed_tokens: int
    """Tokens whose KV is in the cache; may be lower than in the last plan (rollback)."""
    num_tokens: int
    """1 or more; drafts counted in."""
    new_block_ids: list[list[int]]
    """Per attention group, blocks appended to the request's tables since the last plan; read only.
    Block 0 stands where a sliding window no longer reaches."""
    states: tuple[int, int] = (0, 0)
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
    step_id: int
    rows: list[NewRow] = msgspec.field(default_factory=list)
    """Rows to create or to reset, before anything is computed."""
    requests: list[PlannedRequest] = msgspec.field(default_factory=list)
    encode: list[MediaItem] = msgspec.field(default_factory=list)
    """What `encode_for` needs next, to be worked on behind the requests for about as long as they
    took; whatever is not finished is asked for again."""
    encode_for: str = ""
    freed: list[str] = msgspec.field(default_factory=list)
    """Requests that ended since the last plan; their rows go, before `rows` come: an id may
    be in both."""

    @property
    def num_tokens(self) -> int:
        return sum(request.num_tokens for request in self.requests)


class RequestResult(msgspec.Struct, kw_only=True, omit_defaults=True):
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
    encoded: list[str] = msgspec.field(default_factory=list)
    """Content hashes of the plan's media items that a step can take up now."""
