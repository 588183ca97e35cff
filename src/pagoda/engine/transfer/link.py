"""KV blocks that move between engines, as the engine's loop sees it.

Threads ask for work on the cache. The loop does it between two steps, a slice at a time.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from pagoda.base import env
from pagoda.base.errors import ConfigError, RequestError
from pagoda.config.kv_transfer import KVTransferConfig, is_local
from pagoda.config.nodes import LEAST_SECRET
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.messages import AddRequest, EngineStats, RequestDelta
from pagoda.engine.kv_disk import BlockStore
from pagoda.engine.transfer.giving import Giver
from pagoda.engine.transfer.taking import Taker
from pagoda.engine.transfer.warming import Warming

# Copied between two steps, at most: some milliseconds while requests run.
_SLICE_BYTES, _IDLE_BYTES = 8 << 20, 64 << 20
_PARAM = "kv_transfer_params"


class KVTransfers:
    def __init__(
        self,
        config: KVTransferConfig,
        cache: KVCacheManager,
        store: BlockStore,
        *,
        blocks_of: Mapping[str, str],
        max_model_len: int,
        replica: int = 0,
        siblings: int = 0,
    ):
        """`replica`: which of a model's engines it is, each of which has a port of its own;
        `siblings`: how many there are, where the others serve already, else 0. ConfigError where
        the address is taken, or is not to be used without a secret."""
        secret = _secret(config)
        if config.produces and not secret and not is_local(config.kv_ip):
            raise ConfigError(
                f"--kv-transfer-config: kv_ip {config.kv_ip} can be reached from other machines. "
                "Give both engines the same secret: PAGODA_KV_SECRET, or secret_file in "
                "kv_connector_extra_config."
            )
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._role = config.kv_role
        self._kept: dict[str, AddRequest] = {}
        """Requests whose blocks another engine will fetch."""
        self.giver = self.taker = self._warming = None
        if config.produces:
            self.giver = Giver(
                config, cache, store, secret=secret, blocks_of=blocks_of,
                most_hashes=-(-max_model_len // cache.block_size), replica=replica,
                wake=self._wake,
            )  # fmt: skip
        if config.consumes:
            self.taker = Taker(cache, store, secret=secret, blocks_of=blocks_of, wake=self._wake)
            others = [*config.siblings_of(replica, siblings), *config.warm_from]
            self._warming = Warming(self.taker, others, cache.total_bytes, self._wake)

    @property
    def wake_fd(self) -> int:
        """Readable once there is something to do."""
        return self._wake_read

    @property
    def is_busy(self) -> bool:
        """Requests wait for blocks, for a bounded time."""
        return self.taker is not None and self.taker.is_busy

    def check(self, request: AddRequest) -> None:
        """RequestError where this engine has no such part."""
        asked = request.kv_transfer
        if asked is None:
            return
        if asked.keep and self.giver is None:
            raise RequestError(
                f"do_remote_decode is for a kv_producer or kv_both, and this is a {self._role}.",
                _PARAM,
            )
        if asked.host is not None and self.taker is None:
            raise RequestError(
                f"do_remote_prefill is for a kv_consumer or kv_both, and this is a {self._role}.",
                _PARAM,
            )

    def begin(self, request: AddRequest) -> bool:
        """A request has come; whether it is to wait for blocks."""
        asked = request.kv_transfer
        if asked is None:
            return False
        if asked.keep:
            self._kept[request.req_id] = request
        # Prompt logprobs need the whole prompt computed.
        of_use = request.sampling.prompt_logprobs is None
        if asked.host is None or self.taker is None or not of_use:
            return False
        return self.taker.begin(request, asked.host, asked.port)

    def ended(self, deltas: Iterable[RequestDelta]) -> None:
        """Have the last deltas of requests say where their blocks are."""
        if not self._kept or self.giver is None:
            return
        for delta in deltas:
            if delta.finish_reason is not None:
                request = self._kept.pop(delta.req_id, None)
                if request is not None and delta.finish_reason in ("stop", "length"):
                    delta.kv_transfer_params = self.giver.keep(request)

    def drop(self, req_ids: Iterable[str]) -> None:
        """These requests are gone."""
        req_ids = list(req_ids)
        for req_id in req_ids:
            self._kept.pop(req_id, None)
        if self.taker is not None:
            self.taker.drop(req_ids)

    def work(self, release: Callable[[str], None], *, idle: bool) -> bool:
        """A slice of what is to be done; `release` hears of requests that wait no longer. Whether
        there was anything to do."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 1 << 16)
        most = _IDLE_BYTES if idle else _SLICE_BYTES
        worked = self.giver is not None and self.giver.work(most)
        if self.taker is not None:
            released, took = self.taker.work(most)
            for req_id in released:
                release(req_id)
            worked = worked or took
        if self._warming is not None:
            self._warming.work()
        return worked

    def make_room(self) -> bool:
        """Give up a prompt that is held for others, for a request that finds no room."""
        return self.giver is not None and self.giver.let_go()

    def forget(self) -> None:
        """The cache is about to lose its memory."""
        if self.giver is not None:
            self.giver.forget()

    def count(self, stats: EngineStats) -> EngineStats:
        """With what was moved so far."""
        giver, taker = self.giver, self.taker
        if giver is not None:
            stats = msgspec.structs.replace(stats, kv_sent_bytes=giver.num_bytes)
        if taker is not None:
            stats = msgspec.structs.replace(
                stats,
                kv_fetched_bytes=taker.num_bytes,
                kv_fetches=taker.num_fetches,
                kv_fetch_seconds=taker.seconds,
                kv_fetch_failures=dict(taker.failures),
            )
        return stats

    def close(self) -> None:
        if self.giver is not None:
            self.giver.close()
        if self.taker is not None:
            self.taker.close()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it will wake up anyway
            os.write(self._wake_write, b"\0")


def _secret(config: KVTransferConfig) -> bytes:
    """Empty where there is none. ConfigError for one that cannot be read, or is short."""
    if config.secret_file is None:
        secret = str(env.get("PAGODA_KV_SECRET") or "").encode()
    else:
        try:
            secret = Path(config.secret_file).expanduser().read_bytes().strip()
        except OSError as error:
            raise ConfigError(
                f"secret_file {config.secret_file} cannot be read: {error.strerror}."
            ) from error
        if not secret:
            raise ConfigError(f"secret_file {config.secret_file} is empty.")
    if secret and len(secret) < LEAST_SECRET:
        raise ConfigError(
            f"The secret of --kv-transfer-config has {len(secret)} characters; it needs "
            f"{LEAST_SECRET} at least (openssl rand -hex 32)."
        )
    return secret
