"""What was typed for vLLM, and what its versions make of what was not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagoda.arch.read import MAX_LAYERS, Reader, config_reader
from pagoda.arch.recurrent import DeltaNetSpec
from pagoda.arch.spec import AttentionSpec, ModelSpec
from pagoda.base.errors import ConfigError

_GIB = 1 << 30
# The device memory from which on a GPU that is no A100 gets larger steps (`get_batch_defaults`).
_LARGE_DEVICE = 70 * _GIB
_A100 = (8, 0)
_DTYPES = {"float16": 2, "half": 2, "bfloat16": 2, "float32": 4, "float": 4}


@dataclass(frozen=True)
class Version:
    """How one version of vLLM accounts for memory; holds for later ones up to the next."""

    name: str
    utilization: float
    """Default of --gpu-memory-utilization."""
    sampler: tuple[float, float, float]
    """Peak of the sampler's dummy run, least, likely and most, in units of fp32 logits of
    max_num_seqs tokens."""
    non_torch: tuple[float, float, float]
    """GiB that kernels and communication take beside torch's allocator: least, likely, most."""
    subtracts_graphs: bool = False
    """The KV pool leaves room for CUDA graphs; before, they are taken on top of the utilization."""
    keeps_experts_workspace: bool = False
    """The buffers of the experts' kernels stay allocated while the sampler runs."""
    unifies_pages: bool = True
    """Kinds of layers with smaller pages get larger blocks; before, they are refused."""
    pads_groups: bool = True
    """Groups have as many layers as the most frequent kind, if that is less than 1.5 times the
    rarest's; before, always as many as the rarest's."""
    wide_states: bool = True
    """Recurrent states are fp32 where the checkpoint says so; before, of the model's type."""
    keeps_drafted_states: bool = True
    """A request has a recurrent state for each drafted token."""
    is_v0: bool = False
    """The first engine: no groups, each layer keeps whole contexts."""
    profiles_videos: bool = False
    """Qwen's towers are profiled with a video, and its outputs kept in a place for the whole
    budget of the encoder's cache; later with an image, kept as it is."""
    fine_graphs: bool = False
    """Sizes of graphs go in steps of 8 to the end; later in steps of 16 from 256 on."""
    counts_requests: bool = False
    """The log's tokens line is concurrency times context; before, blocks by groups."""


# Sampler: 0.7.1 and 0.11 sort (1.40 GiB logged at 256 x 152064 on a V100, of which 13.7 MiB are
# hidden states); 0.19 filters by a Triton kernel. From 0.21 on FlashInfer samples, whose peak was
# not measured: at least logits and probabilities, and taken for no more than 0.19's.
# Non-torch: 0.09 logged by 0.7.1; 0.20 is the mean of four start-ups of 0.19 (0.15 to 0.33).
VERSIONS: Mapping[str, Version] = {
    version.name: version
    for version in (
        Version(
            "0.7",
            utilization=0.9,
            sampler=(9.5, 9.65, 9.65),
            non_torch=(0.05, 0.09, 0.2),
            unifies_pages=False,
            pads_groups=False,
            wide_states=False,
            keeps_drafted_states=False,
            is_v0=True,
        ),
        Version(
            "0.11",
            utilization=0.9,
            sampler=(9.5, 9.65, 9.65),
            non_torch=(0.05, 0.09, 0.2),
            profiles_videos=True,
            fine_graphs=True,
            unifies_pages=False,
            pads_groups=False,
            wide_states=False,
            keeps_drafted_states=False,
        ),
        Version(
            "0.19",
            utilization=0.9,
            sampler=(3.92, 3.92, 3.92),
            non_torch=(0.15, 0.20, 0.33),
            keeps_experts_workspace=True,
        ),
        Version(
            "0.21",
            utilization=0.92,
            sampler=(2.0, 3.92, 3.92),
            non_torch=(0.15, 0.20, 0.33),
            subtracts_graphs=True,
            keeps_experts_workspace=True,
            counts_requests=True,
        ),
    )
}


def version_of(text: str) -> Version:
    """The newest known version that is not newer than `text` (`0.19.1`); ConfigError for none."""
    parts = text.removeprefix("v").split(".")
    known = ", ".join(VERSIONS)
    if len(parts) < 2 or not all(part.isdecimal() for part in parts[:2]):
        raise ConfigError(f"{text!r} is not a version of vLLM; write one such as 0.19 ({known}).")
    asked = (int(parts[0]), int(parts[1]))
    older = [version for version in VERSIONS.values() if _number(version.name) <= asked]
    if not older:
        raise ConfigError(f"vLLM {text} is older than all that are known here ({known}).")
    return older[-1]


def _number(name: str) -> tuple[int, int]:
    major, minor = name.split(".")
    return int(major), int(minor)


@dataclass(frozen=True)
class VllmSetup:
    """One GPU's memory and vLLM's flags; None is the version's default."""

    version: str
    total: int
    """Bytes of one GPU as torch sees them."""
    capability: tuple[int, int] = _A100
    used: int = 0
    """Bytes that other processes hold of it."""
    tensor_parallel: int = 1
    pipeline: int = 1
    dtype: str = "auto"
    quantization: str = "auto"
    """`auto` is what the checkpoint says, `fp8` rounds the weights while they load."""
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    """--kv-cache-memory-bytes: the pool's size, whatever the utilization grants."""
    enforce_eager: bool = False
    speculative_tokens: int = 0
    """Drafted by the model's own MTP layer."""
    mamba_align: bool = False
    """--mamba-cache-mode align, which --enable-prefix-caching sets for models with recurrent
    layers."""


@dataclass(frozen=True)
class Run:
    """A setup without anything left open."""

    version: Version
    total: int
    used: int
    capability: tuple[int, int]
    size: int
    """Ranks that share each layer."""
    stages: int
    width: int
    """Bytes of one activation."""
    quantization: str
    kv_cache_dtype: str
    length: int
    requests: int
    tokens: int
    """Tokens of a step."""
    utilization: float
    pool_bytes: int | None
    """As asked for."""
    eager: bool
    drafted: int
    aligned: bool
    wide_states: bool
    drafters: int
    """Layers of attention that draft."""


def resolved(setup: VllmSetup, spec: ModelSpec, config: Mapping[str, Any] | None) -> Run:
    """Raises ConfigError for values that vLLM would refuse."""
    version = version_of(setup.version)
    length = setup.max_model_len or spec.max_position
    tokens, requests = _step(setup, version, length)
    utilization = setup.gpu_memory_utilization
    if utilization is not None and not 0 < utilization <= 1:
        raise ConfigError(f"--gpu-memory-utilization {utilization} must be above 0 and at most 1.")
    for name in ("total", "tensor_parallel", "pipeline", "max_model_len"):
        value = getattr(setup, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}; it must be at least 1.")
    _check_split(spec, setup.tensor_parallel, setup.pipeline)
    dtype = spec.dtype if setup.dtype == "auto" else setup.dtype
    if dtype not in _DTYPES:
        raise ConfigError(f"--dtype {dtype} is not known; take auto, float16 or bfloat16.")
    # vLLM's auto never computes in fp32.
    width = 2 if setup.dtype == "auto" else _DTYPES[dtype]
    text = config_reader(config or {})
    return Run(
        version=version,
        total=setup.total,
        used=setup.used,
        capability=setup.capability,
        size=setup.tensor_parallel,
        stages=setup.pipeline,
        width=width,
        quantization=setup.quantization,
        kv_cache_dtype=setup.kv_cache_dtype,
        length=length,
        requests=requests,
        tokens=tokens,
        utilization=version.utilization if utilization is None else utilization,
        pool_bytes=setup.kv_cache_memory_bytes,
        eager=setup.enforce_eager,
        drafted=setup.speculative_tokens,
        aligned=setup.mamba_align,
        wide_states=version.wide_states and text.text("mamba_ssm_dtype", "float32") == "float32",
        drafters=_drafters(spec, text) if setup.speculative_tokens else 0,
    )


def _drafters(spec: ModelSpec, text: Reader) -> int:
    """Without a config.json, models with recurrent layers are taken to have one (Qwen3.5)."""
    recurrent = any(isinstance(layer.mixer, DeltaNetSpec) for layer in spec.layers)
    return text.integer("mtp_num_hidden_layers", MAX_LAYERS, int(recurrent), minimum=0)


def _step(setup: VllmSetup, version: Version, length: int) -> tuple[int, int]:
    """Tokens and requests of a step, as `vllm serve` chooses them."""
    large = setup.total >= _LARGE_DEVICE and setup.capability != _A100 and not version.is_v0
    tokens = setup.max_num_batched_tokens
    requests = setup.max_num_seqs
    for name, value in (("max_num_batched_tokens", tokens), ("max_num_seqs", requests)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}; it must be at least 1.")
    if tokens is None:
        tokens = 8192 if large else 2048
        # 0.7 computes prompts of up to 32768 tokens whole.
        if version.is_v0 and length <= 32768:
            tokens = max(tokens, length)
    if requests is None:
        requests = min(1024 if large else 256, tokens)
    return tokens, requests


def most_ranks(spec: ModelSpec, count: int) -> int:
    """Over how many of `count` GPUs vLLM can split the layers."""
    for size in range(count, 1, -1):
        try:
            _check_split(spec, size, 1)
        except ConfigError:
            continue
        return size
    return 1


def _check_split(spec: ModelSpec, size: int, stages: int) -> None:
    if stages > len(spec.layers):
        raise ConfigError(f"{stages} pipeline stages are more than the {len(spec.layers)} layers.")
    for layer in spec.layers:
        mixer = layer.mixer
        if isinstance(mixer, AttentionSpec):
            heads, shared = mixer.num_heads, mixer.num_kv_heads
            if heads % size or (shared % size and size % shared):
                raise ConfigError(
                    f"--tensor-parallel-size {size} does not divide {heads} attention heads and "
                    f"{shared} key-value heads; take a power of two up to {shared}."
                )
        elif any(getattr(mixer, name) % size for name in mixer.splits):
            parts = " and ".join(f"{getattr(mixer, x)} {what}" for x, what in mixer.splits.items())
            raise ConfigError(f"--tensor-parallel-size {size} does not divide {parts}.")


def stage_layers(num_layers: int, stages: int) -> list[range]:
    """Which layers each pipeline stage holds: what is left over goes to the last ones but one
    (`get_pp_indices`)."""
    counts = [num_layers // stages] * stages
    for index in range(2, num_layers % stages + 2):
        counts[-index] += 1
    starts = [sum(counts[:index]) for index in range(stages)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
