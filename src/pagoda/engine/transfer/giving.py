"""What the engine's loop does for engines that fetch its blocks.

It keeps finished prompts for a while, and reads their blocks.
"""

import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pagoda.base.log import get_logger
from pagoda.config.kv_transfer import KVTransferConfig
from pagoda.core.kvcache.block_hash import BlockHashes
from pagoda.core.kvcache.block_pool import NULL_BLOCK
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.kvcache.tables import BlockTables
from pagoda.core.messages import AddRequest
from pagoda.engine.kv_disk import BlockStore
from pagoda.engine.kv_journal import Bytes, record_of
from pagoda.engine.transfer.holdings import Holdings
from pagoda.engine.transfer.serving import Asked, Listener
from pagoda.engine.transfer.wire import HASH_BYTES, MOST_LISTED

log = get_logger(__name__)

# Share of the pool that finished prompts may hold; then the oldest goes.
_MOST_HELD = 1 / 2
# Blocks copied at once: some MB, whatever the model.
_CHUNK = 16
_NO_PARENT = bytes(HASH_BYTES)


@dataclass
class _Hold:
    """A finished prompt's blocks, until they were fetched or the time is over."""

    tables: BlockTables
    until: float


class _Wanted(NamedTuple):
    group: int
    hash: bytes
    parent: bytes


def usable_hashes(request: AddRequest, block_size: int) -> list[bytes]:
    """Hashes of the blocks that a prompt may find cached: its last token is always computed."""
    prompt = request.prompt_token_ids
    return BlockHashes.of(request, block_size).extend(prompt, (len(prompt) - 1) // block_size)


class Giver:
    def __init__(
        self,
        config: KVTransferConfig,
        cache: KVCacheManager,
        store: BlockStore,
        *,
        secret: bytes,
        blocks_of: Mapping[str, str],
        most_hashes: int,
        replica: int,
        wake: Callable[[], None],
    ):
        """`most_hashes`: blocks of the longest text. `wake` has `work` called soon."""
        self._config, self._cache, self._store = config, cache, store
        self._wake = wake
        self._holdings = Holdings(cache)
        self._num_ranks = int(blocks_of["ranks"])
        self._engine_id = uuid.uuid4().hex
        self._holds: OrderedDict[bytes, _Hold] = OrderedDict()
        """By the last hash of the prompt."""
        self._asked: deque[Asked] = deque()
        self._fetched: deque[bytes] = deque()
        self._listing: deque[tuple[int, Future[list[bytes]]]] = deque()
        self._giving: list[tuple[Asked, deque[_Wanted]]] = []
        self.num_bytes = 0
        """Given so far."""
        port = config.kv_port + replica if config.kv_port else 0
        self._listener = Listener(
            config.kv_ip, port, loop=self, secret=secret, blocks_of=blocks_of,
            most_hashes=most_hashes,
        )  # fmt: skip
        log.info("KV blocks can be fetched at %s port %d.", config.kv_ip, self._listener.port)

    def close(self) -> None:
        self._listener.close()

    # Called by threads that serve other engines.

    def ask(self, asked: Asked) -> None:
        self._asked.append(asked)
        self._wake()

    def done(self, last: bytes) -> None:
        self._fetched.append(last)
        self._wake()

    def list_texts(self, most_bytes: int) -> Future[list[bytes]]:
        answer: Future[list[bytes]] = Future()
        self._listing.append((most_bytes, answer))
        self._wake()
        return answer

    def went_on(self) -> None:
        self._wake()

    # Called by the engine's loop.

    def keep(self, request: AddRequest) -> dict[str, Any]:
        """Hold the blocks of a prompt that has just been computed; `kv_transfer_params` for who
        fetches them."""
        hashes = usable_hashes(request, self._cache.block_size)
        blocks: list[list[int]] = []
        hit = self._cache.match_prefix(hashes, len(hashes) * self._cache.block_size)
        if hit.num_tokens and not hit.in_host:
            self._let_go(hashes[-1])
            tables = self._cache.open(request.req_id)
            self._cache.attach(tables, hit)
            self._holds[hashes[-1]] = _Hold(tables, time.monotonic() + self._config.hold_seconds)
            blocks = [[block for block in table if block != NULL_BLOCK] for table in hit.tables]
            self._limit()
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self._engine_id,
            "remote_block_ids": blocks,
            "remote_host": self._config.kv_ip,
            "remote_port": self._listener.port,
            "tp_size": self._num_ranks,
        }

    def let_go(self) -> bool:
        """Hold the oldest prompt no longer, because a request needs room; whether there was one."""
        if not self._holds:
            return False
        self._let_go(next(iter(self._holds)))
        return True

    def forget(self) -> None:
        """Hold nothing, and give nothing more to anybody."""
        while self.let_go():
            pass
        for asked, _ in self._giving:
            asked.end()
        self._giving.clear()

    def work(self, most_bytes: int) -> bool:
        """Answer, and read blocks of about so many bytes; whether there was anything to do."""
        while self._fetched:
            self._let_go(self._fetched.popleft())
        now = time.monotonic()
        while self._holds and next(iter(self._holds.values())).until < now:
            self.let_go()
            log.warning(
                "The KV blocks of a prompt were not fetched within %g s, and are held no longer.",
                self._config.hold_seconds,
            )
        while self._listing:
            most, answer = self._listing.popleft()
            texts = self._holdings.hottest(most, MOST_LISTED)
            answer.set_result([b"".join(text) for text in texts])
        while self._asked:
            self._begin(self._asked.popleft())
        self._giving = [(asked, left) for asked, left in self._giving if not asked.is_given_up]
        before = self.num_bytes
        for asked, left in self._giving:
            while left and asked.has_room and self.num_bytes - before < most_bytes:
                self._give(asked, [left.popleft() for _ in range(min(_CHUNK, len(left)))])
            if not left:
                asked.end()
        self._giving = [(asked, left) for asked, left in self._giving if left]
        return self.num_bytes > before

    def _begin(self, asked: Asked) -> None:
        pull, size = asked.pull, HASH_BYTES
        hashes = [pull.hashes[at : at + size] for at in range(0, len(pull.hashes), size)]
        fits = len(pull.have) == len(self._cache.groups) and all(
            len(row) * 8 >= len(hashes) for row in pull.have
        )
        wanted: list[tuple[int, _Wanted]] = []
        if fits and len(pull.hashes) % size == 0:
            have = [np.unpackbits(np.frombuffer(row, np.uint8)) for row in pull.have]
            wanted = [
                (index, _Wanted(group, hashes[index], hashes[index - 1] if index else _NO_PARENT))
                for group, index in self._found(hashes, pull.whole)
                if not have[group][index]
            ]
        # From the start of the text on: whatever ends the transfer, what came is of use.
        wanted.sort(key=lambda entry: entry[0])
        asked.announce(len(wanted))
        self._giving.append((asked, deque(one for _, one in wanted)))

    def _found(self, hashes: Sequence[bytes], whole: bool) -> list[tuple[int, int]]:
        """Group and place of blocks of a text, as `wire.Pull` has `whole`."""
        if whole:
            groups = range(len(self._cache.groups))
            places = ((group, index) for group in groups for index in range(len(hashes)))
            return [one for one in places if self._cache.find(one[0], hashes[one[1]]) is not None]
        hit = self._cache.match_prefix(hashes, len(hashes) * self._cache.block_size)
        return [
            (group, index)
            for group, table in enumerate(hit.tables)
            for index, block in enumerate(table)
            if block != NULL_BLOCK
        ]

    def _give(self, asked: Asked, chunk: Sequence[_Wanted]) -> None:
        """Those that made room for others are passed over; who fetches sees that they miss."""
        rows: dict[_Wanted, Bytes] = {}
        for group in {one.group for one in chunk}:
            mine = [one for one in chunk if one.group == group]
            found = [self._cache.find(group, one.hash) for one in mine]
            there = [(one, block) for one, block in zip(mine, found, strict=True) if block]
            read = self._store.read_blocks(group, [block for _, block in there])
            rows |= {one: row for (one, _), row in zip(there, read, strict=True)}
        for one in chunk:
            if one in rows:
                asked.put(record_of(one.group, one.hash, one.parent, rows[one]))
                self.num_bytes += len(rows[one])

    def _let_go(self, last: bytes) -> None:
        hold = self._holds.pop(last, None)
        if hold is not None:
            self._cache.free(hold.tables)

    def _limit(self) -> None:
        held = sum(self._cache.bytes_held(hold.tables) for hold in self._holds.values())
        while held > self._cache.total_bytes * _MOST_HELD and self._holds:
            held -= self._cache.bytes_held(next(iter(self._holds.values())).tables)
            self.let_go()
