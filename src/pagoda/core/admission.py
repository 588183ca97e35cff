"""Whether a waiting request may start now, and with what."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from pagoda.core.kvcache.manager import KVCacheManager, PrefixHit
from pagoda.core.limits import SchedulerLimits
from pagoda.core.pace import StepRoom
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
    num_tokens: int
    """Tokens to compute in this step, behind the hit."""
    num_bytes: int
    """Free memory that all its known tokens take."""


@dataclass(frozen=True, slots=True)
class Unencoded:
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

    def spare_bytes(self, running: Iterable[Request]) -> int:
        """Free memory that no running request will want soon: for the rest of its prompt, or the
        next block of its output. Admitting into that would only lead to preemption."""
        return self._kv.free_bytes - sum(self._claim(req) for req in running)

    def growth(self, req: Request) -> int:
        """Bytes of the next block of a request's output."""
        return self._kv.unit_bytes if req.generates else 0

    def _claim(self, req: Request) -> int:
        if req.generates and req.num_expected_tokens - req.num_computed_tokens <= 1:
            return self.growth(req)
        return max(self.growth(req), self._required(req) - self._kv.bytes_held(req.tables))

    def _required(self, req: Request) -> int:
        return self._kv.bytes_required(req.num_expected_tokens, self._limits.max_num_batched_tokens)

    def consider(self, req: Request, room: StepRoom, spare: int) -> Start | Refusal | Unencoded:
        # A preempted request whose last plans are still in flight may have nothing to compute
        # (its final token is coming), or not know where it stands (drafts).
        if req.num_expected_tokens > req.compute_limit or req.drafts_in_flight:
            return Refusal.LATER
        if req.waiting_for is not None and req.waiting_for in self._sharing:
            return Refusal.LATER
        hit = self._match(req)
        if req.waiting_for is not None:
            return Refusal.LATER
        missing = req.num_expected_tokens - hit.num_tokens
        whole = missing <= self._limits.max_num_batched_tokens
        if not self._limits.enable_chunked_prefill and whole and missing > room.tokens:
            return Refusal.FULL
        num_tokens = room.prompt_tokens(hit.num_tokens, missing)
        num_tokens = self._limits.whole(req.message.media, hit.num_tokens, num_tokens, room.tokens)
        if num_tokens <= 0:
            return Refusal.FULL
        num_bytes = self._required(req) - self._kv.bytes_shared(hit)
        if num_bytes > spare:
            return Refusal.FULL
        if self._limits.enable_chunked_prefill:
            num_tokens = req.num_ready(hit.num_tokens, num_tokens)
        if not num_tokens:
            return Unencoded(hit.num_tokens)
        return Start(hit, num_tokens, num_bytes)

    def _match(self, req: Request) -> PrefixHit:
        """The cached prefix. At least the last token is left to compute, for its logits. Sets
        `req.waiting_for` when the block that comes next is being computed already."""
        req.waiting_for = None
        hashes = _NO_PREFIX
        block_size = self._kv.block_size
        if req.block_hashes is not None and req.reads_prefix_cache:
            hashes = req.block_hashes.extend(req.token_ids, len(req.token_ids) // block_size)
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
