"""What the scheduler knows of one request."""

from collections.abc import Sequence
from enum import Enum, StrEnum, auto

from pagoda.core.batch import NEVER, NO_ROW, RunningBatch
from pagoda.core.kvcache.block_hash import BlockHashes
from pagoda.core.kvcache.tables import BlockTables
from pagoda.core.messages import AddRequest, MediaItem, Tiers
from pagoda.core.plan import ENCODE_AHEAD


class RequestStatus(Enum):
    WAITING = auto()
    """In the queue: never run yet, or preempted."""
    HELD = auto()
    """Outside the queue until every `holds` reason is released."""
    RUNNING = auto()
    FINISHED = auto()


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Request:
    """One request and how far it is.

    Three counters run one after the other, in tokens:

        num_computed_tokens <= num_expected_tokens, len(token_ids) <= num_expected_tokens

    `token_ids` are the known values (prompt and delivered output). `num_expected_tokens` adds the
    tokens that plans in flight are sampling. `num_computed_tokens` counts the KV that exists once
    all plans in flight are done; it moves when a plan is made, and back when drafts are rejected.
    Once the request has a row, the counters are in the batch's columns; plans move them at once.
    """

    __slots__ = (
        "_batch", "block_hashes", "cached_tiers", "compute_limit", "delta_sent",
        "draft_token_ids", "encoded", "eos_ids", "generates", "holds", "key", "max_tokens_total",
        "message", "min_tokens_total", "num_accepted_tokens", "num_cached_tokens",
        "num_draft_tokens", "num_preemptions", "num_prompt_counted", "num_prompt_logprobs",
        "pools", "prefix_miss", "prompt_len", "queue_seconds", "req_id", "reset_step", "row",
        "sits_out", "status", "stop_ids", "tables", "token_ids", "waiting_for",
    )  # fmt: skip

    def __init__(
        self,
        message: AddRequest,
        key: tuple[int, int],
        max_model_len: int,
        tables: BlockTables,
        block_hashes: BlockHashes | None,
        batch: RunningBatch,
    ):
        sampling = message.sampling
        self.message = message
        self.req_id = message.req_id
        self.key = key
        """(priority, arrival): smaller is served earlier and preempted later; unique."""
        self.status = RequestStatus.WAITING
        self.holds: set[str] = set()
        self.token_ids = list(message.prompt_token_ids)
        self.prompt_len = len(self.token_ids)
        self.draft_token_ids: list[int] = []
        """Guesses of the next tokens, for the next plan."""
        self.sits_out = False
        """Nothing of it is planned until a result is in: how many guesses come true, or a token
        that passes through the stages of a pipeline."""
        self.num_draft_tokens = 0
        """Guesses that were verified so far,"""
        self.num_accepted_tokens = 0
        """and those that came true."""
        self.encoded: set[str] = set()
        """Content hashes of media whose embeddings wait for a step since the last preemption."""
        self.tables = tables
        self.block_hashes = block_hashes
        """None without prefix caching."""
        self.waiting_for: bytes | None = None
        """Hash of a block that a running request was computing when admission was last tried."""
        self._batch = batch
        self.row = NO_ROW
        """In the batch and in the runner, which holds this request's token ids there, also while
        it is preempted."""
        self.reset_step = 0
        """Plans up to this one wrote into block tables that the request has given back."""
        self.num_preemptions = 0
        self.num_cached_tokens = 0
        """Prompt tokens found in the prefix cache when it came, and then when it was admitted."""
        self.prefix_miss: str | None = "off"
        """Why no more of them were found there, as in `RequestDelta`."""
        self.cached_tiers = Tiers()
        self.queue_seconds = 0.0
        """From the client's clock to the first admission."""
        self.num_prompt_counted = 0
        """Prompt tokens already in the statistics, so that recomputed ones count once."""
        self.num_prompt_logprobs = 0
        """Prompt logprobs delivered, so that recomputed ones are not sent again."""
        self.delta_sent = False
        self.pools = message.kind == "pool"
        self.generates = not self.pools and sampling.max_tokens != 0
        room = max_model_len - self.prompt_len
        asked = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        self.max_tokens_total = self.prompt_len + (asked if self.generates else 0)
        self.compute_limit = self.max_tokens_total - int(self.generates)
        """Tokens whose KV is of use: the last sampled one is not computed."""
        self.min_tokens_total = self.prompt_len + sampling.min_tokens
        self.eos_ids = frozenset(() if sampling.ignore_eos else message.eos_token_ids)
        self.stop_ids = self.eos_ids.union(sampling.stop_token_ids)

    @property
    def is_running(self) -> bool:
        return self.status is RequestStatus.RUNNING

    @property
    def has_row(self) -> bool:
        return self.row != NO_ROW

    def take_row(self) -> None:
        stream_from = self.prompt_len if self.generates else NEVER
        self.row = self._batch.take(self.prompt_len, self.compute_limit, stream_from, self.stop_ids)

    def release_row(self) -> int:
        """The row that the request had."""
        row, self.row = self.row, NO_ROW
        self._batch.release(row, self.stop_ids)
        return row

    @property
    def num_computed_tokens(self) -> int:
        return int(self._batch.computed[self.row]) if self.has_row else 0

    @num_computed_tokens.setter
    def num_computed_tokens(self, count: int) -> None:
        self._batch.missing[self.row] += self._batch.computed[self.row] - count
        self._batch.computed[self.row] = count
        self._batch.num_jumps += 1

    @property
    def num_expected_tokens(self) -> int:
        if not self.has_row:
            return self.prompt_len
        return int(self._batch.computed[self.row] + self._batch.missing[self.row])

    @num_expected_tokens.setter
    def num_expected_tokens(self, count: int) -> None:
        self._batch.missing[self.row] = count - self._batch.computed[self.row]

    def plan_in_bulk(self) -> None:
        """Have its next tokens planned with all others' until its block tables are full."""
        self._batch.planned_in_bulk_until[self.row] = min(self.tables.capacity, self.compute_limit)

    def see_new_blocks(self) -> None:
        """Its block tables have grown: if it is planned in bulk, then until these are full."""
        if self._batch.planned_in_bulk_until[self.row]:
            self.plan_in_bulk()

    def handle_alone(self) -> None:
        """Have its next step planned, and its result taken in, for itself."""
        self._batch.handle_alone(self.row)

    def start_over(self, step_id: int) -> None:
        """It has given its blocks up behind the plan `step_id`, and is computed again."""
        self.num_computed_tokens = 0
        self.handle_alone()
        self.reset_step = step_id
        self.draft_token_ids = []
        self.encoded.clear()
        self.num_preemptions += 1

    def commit_in_bulk(self, num_known: int) -> None:
        """Have its tokens appended with all others' until so many are known."""
        self._batch.committed_in_bulk_until[self.row] = num_known

    @property
    def commits_in_bulk(self) -> bool:
        """All before its last tokens is computed, and some of it may not be published yet."""
        return self.has_row and bool(self._batch.committed_in_bulk_until[self.row])

    @property
    def is_prompt(self) -> bool:
        """It runs and misses several tokens, which are known."""
        missing = self.num_expected_tokens - self.num_computed_tokens
        computes = self.num_expected_tokens <= self.compute_limit and not self.sits_out
        return missing > 1 and computes

    @property
    def awaits_guesses(self) -> bool:
        """It generates, all of its tokens are known, and all but the last are computed."""
        known = len(self.token_ids)
        if not self.generates or not self.is_running or self.sits_out:
            return False
        batch, row = self._batch, self.row
        return bool(batch.missing[row] == 1 and batch.computed[row] + 1 == known)

    @property
    def num_placeholders(self) -> int:
        """Tokens that plans in flight are sampling, at most."""
        return self.num_expected_tokens - len(self.token_ids)

    @property
    def reads_prefix_cache(self) -> bool:
        """Prompt logprobs, and poolers that read every position, need the whole prompt computed."""
        if self.block_hashes is None or self.pools:
            return False
        wanted = self.message.sampling.prompt_logprobs is not None
        return not wanted or self.num_prompt_logprobs >= self.prompt_len

    def num_ready(self, start: int, num_tokens: int) -> int:
        """How many of so many tokens behind `start` stand in front of media that are yet to be
        encoded."""
        for item in self.message.media:
            if item.start + item.length > start and item.content_hash not in self.encoded:
                return max(0, min(num_tokens, item.start - start))
        return num_tokens

    def to_encode(self, start: int, end: int) -> list[MediaItem]:
        """The first media between two positions that are yet to be encoded."""
        items = [
            item
            for item in self.message.media
            if start < item.start + item.length
            and item.start < end
            and item.content_hash not in self.encoded
        ]
        return items[:ENCODE_AHEAD]

    def append(self, tokens: Sequence[int]) -> tuple[int, FinishReason | None]:
        """Append sampled tokens up to one that ends the request: (how many, why it ended)."""
        known, batch = self.token_ids, self._batch
        for index, token in enumerate(tokens):
            known.append(token)
            length = batch.known[self.row] = len(known)
            if token in self.stop_ids and length >= self.min_tokens_total:
                return index + 1, FinishReason.STOP
            if length >= self.max_tokens_total:
                return index + 1, FinishReason.LENGTH
        return len(tokens), None
