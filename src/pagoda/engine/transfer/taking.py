"""What the engine's loop does with fetched blocks: it puts them into the prefix cache."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from pagoda.base.log import get_logger
from pagoda.base.units import format_bytes
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.messages import AddRequest
from pagoda.engine.kv_disk import BlockStore
from pagoda.engine.kv_journal import Bytes
from pagoda.engine.transfer.fetching import Arrived, Fetch
from pagoda.engine.transfer.giving import usable_hashes
from pagoda.engine.transfer.peer import Peer
from pagoda.engine.transfer.wire import TransferError

log = get_logger(__name__)

# Fetches at once, each with a thread; others wait.
_MOST_FETCHES = 16
# From a request's arrival on; then its prompt is computed.
_FETCH_SECONDS = 120.0


class Taker:
    """Fetched blocks are cached prefixes as others are: nobody holds them, and a request that
    waited for them finds those that came when it starts."""

    def __init__(
        self,
        cache: KVCacheManager,
        store: BlockStore,
        *,
        secret: bytes,
        blocks_of: Mapping[str, str],
        wake: Callable[[], None],
    ):
        self._cache, self._store = cache, store
        self._secret, self._blocks_of, self._wake = secret, blocks_of, wake
        self._sizes = [store.read_blocks(group, []).shape[1] for group in range(len(cache.groups))]
        self._fetches: dict[tuple[str, int, bytes, bool], Fetch] = {}
        self._waiting: deque[Fetch] = deque()
        self.num_bytes = self.num_fetches = 0
        self.seconds = 0.0
        self.failures: Counter[str] = Counter()

    @property
    def unit_bytes(self) -> int:
        """Bytes of one block in every kind of attention."""
        return self._cache.unit_bytes

    @property
    def is_busy(self) -> bool:
        """Requests wait for blocks, for a bounded time."""
        return any(fetch.req_ids for fetch in self._fetches.values())

    def begin(self, request: AddRequest, host: str, port: int) -> bool:
        """Fetch the blocks of a prompt from an address; whether the request is to wait for them.
        Where all are here already, the other engine is told that it need not keep them."""
        size = self._cache.block_size
        hashes = usable_hashes(request, size)
        if not hashes:
            return False
        is_here = self.num_here(hashes) == len(hashes) * size
        fetch = self._fetches.get((host, port, hashes[-1], False))
        if fetch is None:
            fetch = self.fetch(self.peer(host, port), hashes)
        if not is_here:
            fetch.req_ids.append(request.req_id)
        return not is_here

    def peer(self, host: str, port: int) -> Peer:
        return Peer(host, port, self._secret, self._blocks_of, self._sizes)

    def num_here(self, hashes: Sequence[bytes]) -> int:
        """Tokens of a text that a request would find now."""
        return self._cache.match_prefix(hashes, len(hashes) * self._cache.block_size).num_tokens

    def fetch(self, peer: Peer, hashes: Sequence[bytes], *, warms: bool = False) -> Fetch:
        """Begin to fetch what is missing of a text; `warms` as `Fetch` has it."""
        size = self._cache.block_size
        hit = self._cache.match_prefix(hashes, len(hashes) * size)
        is_here = hit.num_tokens == len(hashes) * size
        have = np.array(
            [
                [is_here or self._cache.find(group, each) is not None for each in hashes]
                for group in range(len(self._sizes))
            ]
        )
        for one in hit.in_host:
            have[one.group, one.place] = True
        fetch = Fetch(peer, hashes, have, self._wake, warms=warms)
        self._fetches[peer.host, peer.port, hashes[-1], warms] = fetch
        self._waiting.append(fetch)
        self._start_next()
        return fetch

    def drop(self, req_ids: Iterable[str]) -> None:
        """These requests are gone."""
        gone = set(req_ids)
        for fetch in self._fetches.values():
            if gone.intersection(fetch.req_ids):
                fetch.req_ids = [req_id for req_id in fetch.req_ids if req_id not in gone]
                if not fetch.req_ids:
                    fetch.cancel(TransferError("cancelled", "nobody waits for it any more"))

    def work(self, most_bytes: int) -> tuple[list[str], bool]:
        """Put blocks of about so many bytes into the cache: requests that wait no longer, and
        whether there was anything to do."""
        released: list[str] = []
        taken = 0
        for key, fetch in list(self._fetches.items()):
            arrived = fetch.take(most_bytes - taken) if taken < most_bytes else []
            taken += sum(len(one.data) for one in arrived)
            if arrived:
                self._adopt(fetch, arrived)
            if time.monotonic() - fetch.begun > _FETCH_SECONDS:
                fetch.cancel(TransferError("timeout", f"it takes more than {_FETCH_SECONDS:g} s"))
            elif not fetch.is_done:
                continue
            del self._fetches[key]
            self._end(fetch)
            released += fetch.req_ids
        self._start_next()
        self.num_bytes += taken
        return released, bool(taken or released)

    def close(self) -> None:
        for fetch in self._fetches.values():
            fetch.cancel(TransferError("cancelled", "the engine ends"))

    def _start_next(self) -> None:
        running = sum(not fetch.is_over for fetch in self._fetches.values()) - len(self._waiting)
        while self._waiting and running < _MOST_FETCHES:
            self._waiting.popleft().start()
            running += 1

    def _adopt(self, fetch: Fetch, arrived: Sequence[Arrived]) -> None:
        # A copy to or from the host's memory that no step has done yet may have to do with a block
        # that is free by now; steps that could not be planned leave such copies.
        host = self._cache.host
        host.copied(host.take_orders(), False)
        by_group: dict[int, dict[int, Bytes]] = {}
        for one in arrived:
            block = self._cache.adopt(one.group, one.hash, fetch.parent_of(one.hash))
            if block is not None:
                by_group.setdefault(one.group, {})[block] = one.data
            elif self._cache.find(one.group, one.hash) is None:
                fetch.cancel(TransferError("no_room", "the KV cache has no room for its blocks"))
                break
        try:
            for group, rows in by_group.items():
                self._store.write_blocks(group, list(rows), np.stack(list(rows.values())))
        except MemoryError:
            # A block that was taken may not have its bytes yet.
            self._cache.reset_prefix_cache()
            fetch.cancel(TransferError("no_room", "there is no memory to copy its blocks"))

    def _end(self, fetch: Fetch) -> None:
        seconds = time.monotonic() - fetch.begun
        self.touch(fetch.hashes)
        if not fetch.req_ids:
            return
        self.num_fetches += 1
        self.seconds += seconds
        if fetch.failure is None:
            log.debug(
                "%d tokens of %s (%d KV blocks, %s) came from %s in %.3f s.",
                self.num_here(fetch.hashes), fetch.req_ids[0], fetch.num_taken,
                format_bytes(fetch.nbytes), fetch.peer.where, seconds,
            )  # fmt: skip
            return
        self.failures[fetch.failure.reason] += 1
        log.warning(
            "KV blocks of %s did not all come from %s (%d did): %s. What is missing of the prompt "
            "is computed here.",
            fetch.req_ids[0], fetch.peer.where, fetch.num_taken, fetch.failure,
        )  # fmt: skip

    def touch(self, hashes: Sequence[bytes]) -> None:
        """Have the end of the text evicted before its start."""
        hit = self._cache.match_prefix(hashes, len(hashes) * self._cache.block_size)
        if hit.num_tokens and not hit.in_host:
            tables = self._cache.open("fetched")
            self._cache.attach(tables, hit)
            self._cache.free(tables)
