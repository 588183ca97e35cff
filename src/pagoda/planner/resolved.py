"""What an engine runs with: each value final, of its own type, and none that still means "auto".

`planner.resolve` makes it of what was asked for; the engine, its ranks and the doctor read it.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from pagoda.base.facts import DeviceName
from pagoda.config.parallel import ParallelConfig

DType = Literal["float16", "bfloat16", "float32"]
SpeculationMethod = Literal["none", "ngram", "suffix", "mtp", "eagle3", "draft"]
CacheDType = Literal["float16", "bfloat16", "float32", "int8", "q4_0", "fp8_e4m3", "fp8_e5m2"]


@dataclass(frozen=True)
class ResolvedModel:
    dtype: DType
    """Type of activations and plain weights."""
    quantization: str
    """To what weights are rounded while they load; `none`: they stay."""
    dummy: bool
    """Weights are random."""
    max_model_len: int
    seed: int


@dataclass(frozen=True)
class ResolvedCache:
    block_size: int
    kv_cache_dtype: CacheDType
    enable_prefix_caching: bool
    kv_disk: str | None
    """Folder where prefixes outlive the engine; None where they do not."""
    kv_disk_size: int


@dataclass(frozen=True)
class ResolvedScheduler:
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_chunked_prefill: bool
    long_prefill_token_threshold: int
    """0 is no limit."""
    max_step_seconds: float
    """Infinite without a limit, as the next."""
    max_step_growth: float
    scheduling_policy: str


class NodeThreads(NamedTuple):
    memory: int
    """Its number, as Linux counts them."""
    cpus: tuple[int, ...]
    """CPUs beside it, on which its threads run."""
    threads: int


@dataclass(frozen=True)
class ResolvedDevice:
    device: DeviceName
    threads: int
    nodes: tuple[NodeThreads, ...]
    """Where the threads are, on a CPU with several memories; none: anywhere."""
    enforce_eager: bool
    offload_gib: float
    """GiB of weights that stay in the host's memory because the device's is too small; 0 where
    flags say which do."""


@dataclass(frozen=True)
class ResolvedMedia:
    """Most tokens that one of each becomes; 0 where the model sees none."""

    image_max_tokens: int
    video_max_tokens: int


@dataclass(frozen=True)
class ResolvedSpeculation:
    """What guesses tokens ahead."""

    method: SpeculationMethod = "none"
    most: int = 0
    """Tokens that are guessed for a request in one step."""
    most_in_step: int = 0
    """The same for all requests."""
    least: int = 1
    """Fewer are not verified."""
    shortest: int = 2
    """Tokens that `ngram` has in common with an earlier place, at least,"""
    longest: int = 32
    """and those that it looks at."""


@dataclass(frozen=True)
class ResolvedAdapters:
    """Room for adapters beside the model's layers."""

    slots: int = 0
    """Adapters that may be loaded at once; 0: none."""
    max_rank: int = 0
    dtype: DType = "float32"
    """The type of their numbers."""
    experts: bool = False
    """Beside the experts of mixtures, too."""


NO_ADAPTERS = ResolvedAdapters()


@dataclass(frozen=True)
class ResolvedConfig:
    model: ResolvedModel
    cache: ResolvedCache
    scheduler: ResolvedScheduler
    parallel: ParallelConfig
    device: ResolvedDevice
    media: ResolvedMedia
    speculation: ResolvedSpeculation = ResolvedSpeculation()
    adapters: ResolvedAdapters = NO_ADAPTERS

    @property
    def max_num_samples(self) -> int:
        """Logits of a step: one for each request, and one for each token that is guessed."""
        return self.scheduler.max_num_seqs + self.speculation.most_in_step
