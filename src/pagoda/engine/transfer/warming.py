"""Fills a new engine's prefix cache from other engines, while it already serves."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pagoda.base.log import get_logger
from pagoda.base.units import format_bytes
from pagoda.engine.transfer import wire
from pagoda.engine.transfer.fetching import Fetch
from pagoda.engine.transfer.peer import Peer, as_failure, connect, greet
from pagoda.engine.transfer.taking import Taker
from pagoda.engine.transfer.wire import HASH_BYTES, TransferError

log = get_logger(__name__)

# From one engine; then what came is enough.
_MOST_SECONDS = 60.0
# Of the pool, from all engines together: the rest is for those whose requests come first.
_MOST_SHARE = 1 / 2


class Listing:
    """What another engine holds, asked by a thread."""

    def __init__(self, peer: Peer, most_bytes: int, arrive: Callable[[], None]):
        self.texts: list[list[bytes]] = []
        self.failure: TransferError | None = None
        self.is_over = False
        self._peer, self._most_bytes, self._arrive = peer, most_bytes, arrive
        threading.Thread(target=self._run, name="kv listing", daemon=True).start()

    def _run(self) -> None:
        try:
            self._ask()
        except (TransferError, OSError, ValueError) as error:
            self.failure = as_failure(error)
        self.is_over = True
        self._arrive()

    def _ask(self) -> None:
        with connect(self._peer) as sock:
            greet(sock, self._peer)
            wire.send(sock, wire.ListTexts(self._most_bytes))
            told = wire.receive(sock, wire.MOST_TEXTS, wire.Texts)
        for text in told.texts:
            if not text or len(text) % HASH_BYTES:
                raise TransferError("protocol", "it tells of texts in a form that is not known")
            self.texts.append(
                [text[at : at + HASH_BYTES] for at in range(0, len(text), HASH_BYTES)]
            )


class _Text(NamedTuple):
    hashes: list[bytes]
    fetch: Fetch
    num_here: int
    """Tokens of it that were here before."""


class Warming:
    """Fetches the texts of one engine after the other, one at a time, whole from their start on.
    No request waits for it."""

    def __init__(
        self,
        taker: Taker,
        addresses: Sequence[tuple[str, int]],
        pool_bytes: int,
        arrive: Callable[[], None],
    ):
        """`pool_bytes`: what the KV pool holds; `arrive` as of `Fetch`."""
        self._taker, self._arrive = taker, arrive
        self._peers = deque(taker.peer(*address) for address in addresses)
        self._most_bytes = int(pool_bytes * _MOST_SHARE) // max(1, len(addresses))
        self._came: list[list[bytes]] = []
        """Texts of all engines, in the order in which they came."""
        self._begin()

    @property
    def is_over(self) -> bool:
        return not self._peers

    def work(self) -> None:
        """Go on, between two steps."""
        if self.is_over:
            return
        if time.monotonic() > self._until and self._text is not None:
            self._text.fetch.cancel(TransferError("timeout", f"{_MOST_SECONDS:g} s are over"))
        if self._text is not None:
            if not self._text.fetch.is_done:
                return
            self._end_text(self._text)
        failure = self._failure or self._listing.failure
        if failure is None and not self._listing.is_over:
            return
        if self._num_texts < len(self._listing.texts) and self._goes_on():
            self._fetch(self._listing.texts[self._num_texts])
        else:
            self._end(failure)

    def _begin(self) -> None:
        """With the next engine."""
        self._begun = time.monotonic()
        self._until = self._begun + _MOST_SECONDS
        self._num_texts = self._num_tokens = self._num_bytes = 0
        self._text: _Text | None = None
        self._failure: TransferError | None = None
        if self._peers:
            self._listing = Listing(self._peers[0], self._most_bytes, self._arrive)

    def _goes_on(self) -> bool:
        enough = self._num_bytes >= self._most_bytes or time.monotonic() > self._until
        return self._failure is None and not enough

    def _fetch(self, hashes: list[bytes]) -> None:
        self._num_texts += 1
        # Another engine may say what it likes: what is taken is counted here.
        left = self._most_bytes - self._num_bytes
        hashes = hashes[: -(-left // self._taker.unit_bytes)]
        here = self._taker.num_here(hashes)
        fetch = self._taker.fetch(self._peers[0], hashes, warms=True)
        self._text = _Text(hashes, fetch, here)

    def _end_text(self, text: _Text) -> None:
        self._text = None
        self._num_bytes += text.fetch.nbytes
        self._num_tokens += max(0, self._taker.num_here(text.hashes) - text.num_here)
        self._failure = text.fetch.failure
        self._came.append(text.hashes)

    def _end(self, failure: TransferError | None) -> None:
        peer = self._peers.popleft()
        came = f"{self._num_tokens:,} tokens ({format_bytes(self._num_bytes)})"
        if failure is None:
            log.info(
                "The prefix cache was warmed: %s came from %s in %.2f s.",
                came, peer.where, time.monotonic() - self._begun,
            )  # fmt: skip
        else:
            self._taker.failures[failure.reason] += 1
            log.warning(
                "The prefix cache was not wholly warmed from %s (%s came): %s.",
                peer.where, came, failure,
            )  # fmt: skip
        if self.is_over:
            # What is worth most is to be evicted last.
            for hashes in reversed(self._came):
                self._taker.touch(hashes)
            self._came = []
        self._begin()
