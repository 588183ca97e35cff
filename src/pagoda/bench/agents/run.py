"""`bench agents`: how much of their prompts agents have computed again, with each part of the cache
and without."""

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pagoda.bench.agents.play import Outcome, Player
from pagoda.bench.agents.trace import TraceConfig
from pagoda.config.option import Options, option
from pagoda.core.kvcache.layout import slab_bytes
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.kvcache.spec import GroupSpec, KVGroupSpec, StateGroupSpec
from pagoda.core.plan import StepPlan
from pagoda.core.scheduler import Scheduler, SchedulerLimits
from pagoda.engine.kv_disk import KeptPrefixes, KvDisk
from pagoda.engine.kv_journal import Bytes

MODELS: dict[str, list[GroupSpec]] = {
    # As of Qwen3 4B, Gemma 3 4B and Qwen3.5 4B.
    "full": [KVGroupSpec("full", tuple(range(36)), 8, 128, 16)],
    "sliding": [
        KVGroupSpec("full", tuple(range(5)), 4, 256, 16),
        KVGroupSpec("sliding", tuple(range(5, 34)), 4, 256, 16, 1024),
    ],
    "hybrid": [
        KVGroupSpec("full", tuple(range(8)), 4, 256, 16),
        StateGroupSpec(tuple(range(8, 32)), ((3, 8192), (32, 128, 128)), 16),
    ],
}
_STORED_BYTES = 8
_DISK_BYTES = 1 << 40


@dataclass(frozen=True)
class AgentsConfig(Options):
    """How much memory the cache has: 1 is what full attention keeps of all sessions' longest
    prompts, their subagents left out."""

    models: str = option(",".join(MODELS), "Kinds of layers, of " + ", ".join(MODELS) + ".")
    pool: float = option(0.2, "Size of the KV pool.", bounds=(0.01, 100))
    host: float = option(1.8, "Size of the host's memory for evicted blocks.", bounds=(0.01, 100))


class Row(NamedTuple):
    model: str
    cache: str
    outcome: Outcome


def bench_agents(
    config: AgentsConfig, trace: TraceConfig, say: Callable[[str], object] = lambda line: None
) -> Iterator[Row]:
    """A row for each model and cache, once it is played. `say` hears how far that is, after each
    tenth of a row's requests."""
    for model in config.models.split(","):
        groups = MODELS[model]
        pool, host = (_slabs(groups, trace, size) for size in (config.pool, config.host))
        for cache, has_keys, num_host, on_disk in (
            ("pool", False, 0, False),
            ("pool, sessions known", True, 0, False),
            ("and host memory", True, host, False),
            ("and disk", True, host, True),
        ):
            with tempfile.TemporaryDirectory() as folder:
                engine = _Engine(groups, pool, num_host, Path(folder) if on_disk else None)
                named = f"{model} layers, {cache}"
                player = Player(
                    trace, engine.start, engine.stop, engine.see, with_keys=has_keys,
                    heard=partial(_tell, say, named),
                )  # fmt: skip
                yield Row(model, cache, player.play())


def _tell(say: Callable[[str], object], named: str, done: int, total: int) -> None:
    if done * 10 // total > (done - 1) * 10 // total:
        say(f"{named}: {done:,} of {total:,} requests")


def agents_table(rows: Sequence[Row]) -> str:
    """As Markdown."""
    lines = [
        "| layers  | cache                | prompt tokens |  computed | computed again |",
        "|---------|----------------------|--------------:|----------:|---------------:|",
    ]
    for model, cache, outcome in rows:
        again = f"{outcome.share_again:.1%}"
        lines.append(
            f"| {model:<7} | {cache:<20} | {outcome.prompt:>13,} | {outcome.computed:>9,} "
            f"| {again:>14} |"
        )
    return "\n".join(lines)


def _slabs(groups: Sequence[GroupSpec], trace: TraceConfig, size: float) -> int:
    longest = trace.system_tokens + trace.turns * (trace.result_tokens + trace.reply_tokens)
    full = groups[0].block_bytes / groups[0].block_size
    return math.ceil(size * trace.sessions * longest * full / slab_bytes(groups)) + 1


class _Engine:
    """A scheduler from one start to the next."""

    def __init__(
        self, groups: Sequence[GroupSpec], num_slabs: int, num_host: int, folder: Path | None
    ):
        self._groups, self._num_slabs, self._num_host = groups, num_slabs, num_host
        self._disk = None if folder is None else KvDisk(folder / "model", _DISK_BYTES)
        self._prefixes: KeptPrefixes | None = None

    def start(self) -> Scheduler:
        kv = KVCacheManager(self._groups, self._num_slabs, num_host_slabs=self._num_host)
        if self._disk is not None:
            self._prefixes = self._disk.open(kv, _NoBytes())
            self._prefixes.restore()
        return Scheduler(SchedulerLimits(4, 2048, 1 << 20), kv)

    def stop(self, scheduler: Scheduler) -> None:
        if self._prefixes is not None:
            self._prefixes.close()

    def see(self, plan: StepPlan) -> None:
        if self._prefixes is not None:
            self._prefixes.write_back(False)


class _NoBytes:
    """Blocks whose content nobody looks at."""

    def read_blocks(self, group: int, blocks: Sequence[int]) -> Bytes:
        return np.zeros((len(blocks), _STORED_BYTES), np.uint8)

    def write_blocks(self, group: int, blocks: Sequence[int], data: Bytes) -> None:
        pass
