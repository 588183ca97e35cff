"""Whether a waiting request may start now, and with what."""

from dataclasses import dataclass
from enum import Enum, auto

from pagoda.core.batch import RunningBatch
from pagoda.core.kvcache.block_hash import BlockHashes
from pagoda.core.kvcache.hit import PrefixHit
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.limits import SchedulerLimits
from pagoda.core.queue import Members
from pagoda.core.request import Request
from pagoda.core.sharing import PrefixesInFlight


class Refusal(Enum):
    LATER = auto()
    """Not this one now; the requests behind it may start."""
    FULL = auto()
    """Not enough room; whoever is behind waits too, or large requests would never start."""


@dataclass(frozen=True, slots=True)
class Start:
    hit: PrefixHit
    num_bytes: int
    """Free memory that all its known tokens take."""
    coming: bytes | None
    """Hash of the block behind the hit, where there is one that others may share."""


@dataclass(frozen=True, slots=True)
class AwaitsEncoding:
    """It could start behind `start` tokens, had what comes there been encoded."""

    start: int


_NO_PREFIX: list[bytes] = []


class Admission:
    """Admits a request only if all its known tokens fit beside what the running ones need.

    Without running requests nothing is claimed, and `check_capacity` saw to it that any request
    fits alone: the queue always moves.
    """

    def __init__(self, limits: SchedulerLimits, kv: KVCacheManager, sharing: PrefixesInFlight):
        self._limits = limits
        self._kv = kv
        self._sharing = sharing
        self._misfit: tuple[Request, int] | None = None
        """Who last found no room for its blocks although the bytes would do, and these bytes."""

    def spare_bytes(self, running: Members, batch: RunningBatch) -> int:
        """Free memory that no running request will want soon: for the rest of its prompt, or the
        next block of its output. Admitting into that would only lead to preemption."""
        if not running.requests:
            return self._kv.free_bytes
        places = batch.claiming(running.rows)
        streams = len(running.rows) - len(places)
        claims = sum(self._claim(running.requests[place]) for place in places)
        return self._kv.free_bytes - streams * self._kv.unit_bytes - claims

    def growth(self, req: Request) -> int:
        """Bytes of the next block of a request's output."""
        return self._kv.unit_bytes if req.generates else 0

    def _claim(self, req: Request) -> int:
        return max(self.growth(req), self._required(req) - self._kv.bytes_held(req.tables))

    def _required(self, req: Request) -> int:
        return self._kv.bytes_required(req.num_expected_tokens, self._limits.max_num_batched_tokens)

    def consider(self, req: Request, spare: float) -> Start | Refusal | AwaitsEncoding:
        # A preempted request whose last plans are still in flight may have nothing to compute
        # (its final token is coming), or not know where it stands (drafts).
        if req.num_expected_tokens > req.compute_limit or req.sits_out:
            return Refusal.LATER
        if req.waiting_for is not None and req.waiting_for in self._sharing:
            return Refusal.LATER
        hit = self._match(req)
        if req.waiting_for is not None:
            return Refusal.LATER
        num_bytes = self._required(req) - self._kv.bytes_shared(hit)
        if num_bytes > spare or self._is_misfit(req):
            return Refusal.FULL
        if self._limits.enable_chunked_prefill and not req.num_ready(hit.num_tokens, 1):
            return AwaitsEncoding(hit.num_tokens)
        index, hashes = hit.num_tokens // self._kv.block_size, self._hashes(req)
        return Start(hit, num_bytes, hashes[index] if index < len(hashes) else None)

    def num_cached(self, req: Request) -> int:
        """How many of a request's tokens are cached now."""
        return self._kv.match_prefix(self._hashes(req), req.num_expected_tokens - 1).num_tokens

    def missing(self, req: Request, start: int) -> int:
        """Tokens behind `start` that can be computed now: those in front of media that are yet to
        be encoded, where prompts are split."""
        missing = req.num_expected_tokens - start
        return req.num_ready(start, missing) if self._limits.enable_chunked_prefill else missing

    def take_blocks(
        self, req: Request, hit: PrefixHit, num_tokens: int, alone: bool
    ) -> tuple[PrefixHit, int]:
        """Give a request its first blocks, for at most `num_tokens` tokens behind the hit: the hit
        that it starts from, and for how many; 0, with nothing changed, where blocks find no room
        although the bytes would. With nobody else running (`alone`), cached ones go for that."""
        taken = self._take(req, hit, num_tokens)
        if num_tokens and not taken and alone:
            # Cached blocks can lie so that nothing fits between them; without, any request fits.
            self._kv.empty_pool()
            hit = self._kv.match_prefix([], 0)
            taken = self._take(req, hit, num_tokens)
        if num_tokens and not taken:
            # Also where somebody who is no request holds blocks.
            self._misfit = req, self._kv.free_bytes
        return hit, taken

    def coming(self, req: Request, known: BlockHashes) -> list[bytes]:
        """Hashes of the blocks that others may wait for a request to compute."""
        if self._kv.has_states:
            return self._kv.hashes_with_states(req.tables, known.hashes)
        return known.hashes[req.tables.num_cached :]

    def _take(self, req: Request, hit: PrefixHit, num_tokens: int) -> int:
        if not num_tokens:
            return 0
        message, tables = req.message, req.tables
        if not self._kv.attach(tables, hit):
            return 0
        if self._kv.watcher is not None:
            # Of blocks from disk nobody knew whose text they are.
            for index in range(hit.num_tokens // self._kv.block_size):
                self._kv.watcher.name(req.req_id, self._hashes(req), index)
        self._kv.want_states(tables, message.prompt_token_ids, message.eos_token_ids, hit)
        num_tokens = self._kv.until_kept(tables, hit.num_tokens, num_tokens)
        if self._kv.allocate(tables, hit.num_tokens + num_tokens) is None:
            self._kv.free(tables)
            return 0
        return num_tokens

    def _is_misfit(self, req: Request) -> bool:
        """Its blocks found no room, and no more is free now."""
        return self._misfit is not None and self._misfit == (req, self._kv.free_bytes)

    def _match(self, req: Request) -> PrefixHit:
        """The cached prefix. At least the last token is left to compute, for its logits. Sets
        `req.waiting_for` when the block that comes next is being computed already."""
        req.waiting_for = None
        hashes = self._hashes(req)
        block_size = self._kv.block_size
        max_tokens = req.num_expected_tokens - 1
        hit = self._kv.match_prefix(hashes, max_tokens)
        following = hit.num_tokens // block_size
        usable = min(len(hashes), max_tokens // block_size)
        if self._kv.has_states:
            # Few blocks come with the state that makes them of use; only these are claimed.
            coming = [block_hash for block_hash in hashes[following:usable]
                      if block_hash in self._sharing]  # fmt: skip
            req.waiting_for = coming[-1] if coming else None
        elif following < usable and hashes[following] in self._sharing:
            req.waiting_for = hashes[following]
        return hit

    def _hashes(self, req: Request) -> list[bytes]:
        """Hashes of the blocks that a request may find in the prefix cache."""
        if req.block_hashes is None or not req.reads_prefix_cache:
            return _NO_PREFIX
        num_full = len(req.token_ids) // self._kv.block_size
        return req.block_hashes.extend(req.token_ids, num_full)
