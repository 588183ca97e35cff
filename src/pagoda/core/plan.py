"""What the scheduler asks of the runner for one step, and what comes back."""

from collections.abc import Collection

import msgspec
import numpy as np

from pagoda.core.batch import Ints
from pagoda.core.messages import AddRequest, MediaItem, TokenLogprobs

ENCODE_AHEAD = 4
"""Media items that are encoded before the steps that need them, at most; so many of the largest are
kept."""


_NO_COLUMN: Ints = np.zeros(0, np.int64)


def _no_column() -> Ints:
    return _NO_COLUMN


class NewRow(msgspec.Struct, kw_only=True):
    """A request the runner has not seen (or a preempted one whose block tables start afresh)."""

    row: int
    req_id: str
    request: AddRequest | None
    """None when the runner already holds the row: the request was preempted and resumes."""


class NewBlocks(msgspec.Struct, gc=False):
    """Entries of one attention group's block tables, appended since the last plan."""

    rows: Ints
    columns: Ints
    blocks: Ints
    """Block 0 stands where a sliding window no longer reaches."""


class BlockCopy(msgspec.Struct, array_like=True, gc=False):
    """A block that is copied between the KV pool and the host's memory."""

    group: int
    block: int
    """In the pool."""
    slot: int
    """In the host's memory, which is laid out as the pool."""
    to_host: bool


class StepPlan(msgspec.Struct, kw_only=True):
    """The requests of a step in columns: hundreds of streams are planned, run and committed without
    an object for each of them.

    The runner computes `lens[i]` tokens of the request in row `rows[i]` from position `starts[i]`
    on. Their ids live in that row, so the plan carries none but drafts. A plan never changes, for
    columns are shared with other plans.

    A step has one of five shapes: one token of each request, which are those of the step before;
    the same of other requests; some with more tokens, which are of prompts or (as `drafts` says)
    guesses; no request at all, where media are encoded or rows given up.
    """

    step_id: int
    freed: list[int] = msgspec.field(default_factory=list)
    """Rows of requests that ended since the last plan; they go before `new_rows` come."""
    new_rows: list[NewRow] = msgspec.field(default_factory=list)
    """Rows to create or to reset, before anything is computed."""
    new_blocks: list[NewBlocks] = msgspec.field(default_factory=list)
    """By attention group; empty where there are none."""
    req_ids: list[str] = msgspec.field(default_factory=list)
    rows: Ints = msgspec.field(default_factory=_no_column)
    starts: Ints = msgspec.field(default_factory=_no_column)
    """Tokens whose KV is in the cache; may be lower than in the last plan (rollback)."""
    lens: Ints = msgspec.field(default_factory=_no_column)
    """1 or more tokens; drafts counted in."""
    num_tokens: int = 0
    """All of them."""
    follows: bool = False
    """Its requests are those of the plan before, in the same order, and each of both plans gives
    each of them one token: `starts` is one further, nothing else has changed but block tables."""
    drafts: dict[int, list[int]] = msgspec.field(default_factory=dict)
    """By row."""
    unsampled: set[int] = msgspec.field(default_factory=set)
    """Rows that sample nothing: of prompt chunks that do not reach the last known token. For kind
    `pool` the plan that does asks for the embedding instead."""
    states: list[tuple[int, ...]] = msgspec.field(default_factory=list)
    """In a plan of a model with recurrent layers, for each request: the block whose state the step
    goes on from (not read where it begins at position 0), and the block it writes; with drafts, one
    for the last known token and one for each draft."""
    num_drafts: int = 0
    """Tokens that the runner is to guess behind those that it samples, where something of the
    model's own guesses."""
    copies: list[BlockCopy] = msgspec.field(default_factory=list)
    """To be done in this order, before anything is computed."""
    encode: list[MediaItem] = msgspec.field(default_factory=list)
    """What `encode_for` needs next, to be worked on behind the requests for about as long as they
    took; whatever is not finished is asked for again."""
    encode_for: str = ""

    def without(self, places: Collection[int]) -> "StepPlan":
        """The plan without some of its requests."""
        kept = [place for place in range(len(self.req_ids)) if place not in places]
        return msgspec.structs.replace(
            self,
            follows=False,
            req_ids=[self.req_ids[place] for place in kept],
            rows=self.rows[kept],
            starts=self.starts[kept],
            lens=self.lens[kept],
            num_tokens=int(self.lens[kept].sum()),
            states=[self.states[place] for place in kept] if self.states else [],
        )


def pack_column(column: object) -> bytes:
    """How msgspec sends the columns of a plan between processes of one machine."""
    if isinstance(column, np.ndarray):
        return column.astype(np.int64, copy=False).tobytes()
    raise NotImplementedError(f"A {type(column).__name__} is no part of a message.")


def unpack_column(kind: type, packed: bytes) -> Ints:
    """What `pack_column` made."""
    return np.frombuffer(packed, np.int64).copy()


class RequestResult(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """What a step computed for one request."""

    req_id: str
    token_ids: list[int] = msgspec.field(default_factory=list)
    """0 (chunk) to k+1 (all drafts accepted, and one more) sampled tokens. 0 where a token was
    due makes the scheduler plan the last known token again."""
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Logprobs of the prompt tokens that this step's logits score, each once: not again when a
    preempted request is computed again."""
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
    else to tell: these, in the plan's order, with any number for those that sample nothing."""
    drafts: dict[int, list[int]] = msgspec.field(default_factory=dict)
    """By row: what the runner guesses behind the last token of its result."""
    draft_seconds: float = 0.0
    """How long the runner took for these, and for reading what the guesses follow from."""
    copied: bool = True
    """Whether the plan's copies were done."""
    encoded: list[str] = msgspec.field(default_factory=list)
    """Content hashes of the plan's media items that a step can take up now."""
