"""Who else has an engine's KV blocks: its next start, by files, and other engines, over the
network."""

from collections.abc import Callable, Sequence

from pagoda.base.errors import ConfigError
from pagoda.base.log import get_logger
from pagoda.config.kv_transfer import KVTransferConfig
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.engine.kv_disk import BlockStore, KeptPrefixes, block_contents, kv_disk
from pagoda.engine.processes.transport import MemoryRoom
from pagoda.engine.transfer.identity import blocks_of
from pagoda.engine.transfer.link import KVTransfers
from pagoda.kernels import cpu
from pagoda.planner.resolve import Resolution
from pagoda.weights.files import ModelFiles

log = get_logger(__name__)


class KeptKV:
    def __init__(
        self,
        resolution: Resolution,
        cache: KVCacheManager,
        store: BlockStore,
        files: Sequence[ModelFiles],
        scales_digest: Callable[[], str],
    ):
        """`files`: the model's, and those of what drafts for it; `scales_digest` tells the scales
        of an fp8 cache apart."""
        self._config, self._attention = resolution.config, resolution.attention
        self._cuts = resolution.cuts
        self._cache, self._store, self._files = cache, store, files
        native = cpu.native() if resolution.packed else None
        self._kernels = "torch" if native is None else native.isa
        self._scales_digest = scales_digest

    @property
    def on_disk(self) -> bool:
        return self._config.cache.kv_disk is not None and self._cache.enable_prefix_caching

    def prefixes(self) -> KeptPrefixes | None:
        """What keeps the cache on disk, and has brought back what an earlier engine kept there."""
        config = self._config
        if config.cache.kv_disk is None or not self.on_disk:
            return None
        contents = block_contents(
            config.model,
            self._kv_dtype(),
            self._attention.layout,
            self._kernels,
            self._num_ranks,
            self._cuts,
        )
        disk = kv_disk(config.cache.kv_disk, config.cache.kv_disk_size, contents, *self._files)
        prefixes = disk.open(self._cache, self._store)
        log.info("%s", prefixes.restored())
        return prefixes

    def transfers(self, config: KVTransferConfig, room: MemoryRoom) -> KVTransfers | None:
        """What gives blocks to other engines and takes theirs. `room` says which of a model's
        engines it is.
        ConfigError where there can be none."""
        if not config.is_on:
            return None
        if not self._cache.enable_prefix_caching:
            raise ConfigError(
                "--kv-transfer-config moves blocks of a prefix cache, and this model has none: "
                "leave it out."
            )
        model = self._config.model
        contents = blocks_of(
            model,
            self._kv_dtype(),
            self._attention.layout,
            self._kernels,
            self._num_ranks,
            self._cuts,
            [group.block_bytes for group in self._cache.groups],
            self._files,
        )
        return KVTransfers(
            config, self._cache, self._store, blocks_of=contents,
            max_model_len=model.max_model_len, replica=room.replica,
            siblings=room.siblings,
        )  # fmt: skip

    @property
    def _num_ranks(self) -> int:
        return self._config.parallel.tensor_parallel_size

    def _kv_dtype(self) -> str:
        """With what stands for its scales."""
        kv_dtype = self._config.cache.kv_cache_dtype
        return kv_dtype + self._scales_digest() if kv_dtype == "fp8_e4m3" else kv_dtype
