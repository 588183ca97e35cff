"""Where "auto" becomes a value, with the reason for each.

Nothing else in Pagoda decides a default that depends on the model or the machine.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import CapacityError, ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.base.units import format_bytes
from pagoda.config.engine import EngineConfig
from pagoda.core.kvcache.spec import KVLayout, kv_groups
from pagoda.planner import memory
from pagoda.planner.attention import AttentionChoice, choose_attention
from pagoda.planner.encoder import DTYPE_REASON, resolve_encoder
from pagoda.planner.memory import MemoryPlan
from pagoda.planner.offload import resolve_offload
from pagoda.planner.parallel import rank_spec
from pagoda.planner.parameters import parameter_count
from pagoda.planner.quantization import quantized_tensors
from pagoda.planner.reason import Reason
from pagoda.planner.storage import quantization_reason
from pagoda.planner.vision import encoder_bytes, resolve_media
from pagoda.planner.weights import HeldWeight, held_weights
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.formats import PUBLISHED, held_as

_DTYPES = {"half": "float16", "float": "float32"}
_ROUNDED = {"fp8": "int8 (in place of fp8, and closer to the weights)"}
_KV_DTYPES = {"int8_per_token_head": "int8", "fp8": "int8", "fp8_e4m3": "int8"}
# On a CPU the KV pool shares memory with everything else the user runs: by default it takes no
# more than this, and less where less is free.
_CPU_POOL_CAP = 4 << 30
CPU_RESERVE = 512 << 20
# Beside a long prompt the slowest steps of running replies are to stay within three times their
# own. Single steps miss their prediction by up to a third, those of the p99 by a fifth.
_STEP_BOUND = "2.2x"


@dataclass(frozen=True)
class Resolution:
    config: EngineConfig
    """Without any "auto"."""
    plan: MemoryPlan
    reasons: list[Reason]
    packed: bool = False
    """Weights stay in the checkpoint's own bits; activations are fp32."""
    pool_limit: int = 0
    """Most bytes that the KV pool could take beside the rest."""
    attention: AttentionChoice = field(default_factory=AttentionChoice)
    """What attends to the cache, and how it lies for it."""


def resolve(
    config: EngineConfig, spec: ModelSpec, tensors: Mapping[str, TensorInfo], facts: DeviceFacts
) -> Resolution:
    """Choose every "auto" of `config` for this model on this machine.

    Raises ConfigError for a value that cannot be honoured and CapacityError, saying what to
    lower, when the model or one request of the wanted length does not fit.
    """
    storage = _main_storage(spec, tensors)
    size = f"{parameter_count(spec) / 1e6:,.1f}M parameters, stored as {storage}"
    reasons = [Reason("architecture", spec.architecture, size)]
    on_cpu = facts.device == "cpu"
    # A CPU's kernels compute in a type of their own, a GPU's in any.
    packed = bool(facts.packed_storages) and (config.model.dtype == "auto" or not on_cpu)
    if storage == "FP8" and config.model.quantization == "fp8":  # only repeats it
        config = replace(config, model=replace(config.model, quantization="none"))
    if config.model.quantization != "none":
        _check_can_quantize(config, packed)
        tensors = quantized_tensors(spec, tensors, config.model.quantization)
    if not packed:
        facts = replace(facts, packed_storages=frozenset())
    config = _resolve_types(config, spec, storage, facts, reasons)
    published = quantization_reason(spec, tensors, facts.packed_storages, config.model.dtype)
    if published is not None:
        reasons.append(published)
    attention = choose_attention(
        spec, config.device.attention_backend, config.model.dtype, facts, reasons,
        kv_dtype=str(config.cache.kv_cache_dtype), block_size=config.cache.block_size,
    )  # fmt: skip
    if config.cache.block_size is None and spec.encoder is None:
        why = "what the kernels of attention read"
        reasons.append(Reason("block_size", attention.layout.block_size, why))
    cache = replace(config.cache, block_size=attention.layout.block_size)
    config = replace(config, cache=cache)
    if spec.encoder is not None:
        config = resolve_encoder(config, spec, spec.encoder, facts, reasons)
    config = resolve_media(_resolve_scheduler(config, facts, reasons), spec, reasons)
    held = _held(config, spec, tensors, facts)
    plan = _empty_plan(config, spec, held, facts, attention.layout)
    captures = attention.captured and not config.device.enforce_eager
    if facts.device != "cpu" and spec.encoder is None and captures:
        reqs, ranks = int(config.scheduler.max_num_seqs), config.parallel.tensor_parallel_size
        own, dtype = rank_spec(spec, ranks), config.model.dtype
        plan = replace(plan, captured=memory.captured_bytes(own, dtype, reqs, ranks))
    config, plan = resolve_offload(config, spec, held, plan, facts, reasons)
    limit = _pool_limit(config, plan, facts)
    if not plan.groups:
        return Resolution(config, plan, reasons, packed, limit, attention)
    config = _resolve_length(config, spec, plan, limit, reasons)
    plan = replace(plan, max_model_len=int(config.model.max_model_len or 0))
    plan = replace(plan, num_slabs=_num_slabs(config, plan, limit, reasons))
    _check_chosen_pool(config, plan, facts)
    return Resolution(config, plan, reasons, packed, limit, attention)


def refit(
    asked: EngineConfig, spec: ModelSpec, made: Resolution, *, activations: int, usable: int
) -> Resolution:
    """`made` of `asked`, with a KV pool that fits what was measured once the weights were loaded:
    bytes that the largest step takes, and bytes that may yet be taken.

    CapacityError as of `resolve`.
    """
    plan = replace(made.plan, activations=activations, num_slabs=0, max_model_len=0)
    limit = usable - activations - plan.captured
    reasons = [r for r in made.reasons if r.field not in ("max_model_len", "kv_cache_memory_bytes")]
    if limit < plan.slab_bytes * plan.slabs_for(1):
        raise CapacityError(
            f"The weights are loaded, and {format_bytes(max(0, usable))} are left for steps "
            f"({format_bytes(activations + plan.captured)}) and the KV cache. Free memory on the "
            "device, or lower --max-num-seqs and --max-num-batched-tokens."
        )
    model = replace(made.config.model, max_model_len=asked.model.max_model_len)
    config = _resolve_length(replace(made.config, model=model), spec, plan, limit, reasons)
    plan = replace(plan, max_model_len=int(config.model.max_model_len or 0))
    plan = replace(plan, num_slabs=_num_slabs(config, plan, limit, reasons))
    return replace(made, config=config, plan=plan, reasons=reasons, pool_limit=limit)


def _check_can_quantize(config: EngineConfig, packed: bool) -> None:
    what = f"--quantization {config.model.quantization}"
    if config.model.load_format == "dummy":
        raise ConfigError(
            f"{what} rounds a checkpoint's weights, and --load-format dummy has none."
        )
    if packed:
        return
    if config.model.dtype != "auto":
        raise ConfigError(
            f"{what} needs kernels of its own, and --dtype {config.model.dtype} goes without: "
            "leave out one of them."
        )
    raise ConfigError(
        f"{what} needs the native kernels of a CPU, which are not in use here: leave it out, or "
        "run with --device cpu where Pagoda was built with a C++ compiler and PAGODA_CPU_ISA is "
        "not none, or with --device cuda where Triton is installed."
    )


def _main_storage(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> str:
    """How most of the weights' bytes are stored."""
    nbytes: Counter[str] = Counter()
    for info in tensors.values():
        nbytes[info.type] += info.nbytes
    plain = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
    return nbytes.most_common(1)[0][0] if nbytes else plain[spec.dtype]


def _resolve_types(
    config: EngineConfig,
    spec: ModelSpec,
    storage: str,
    facts: DeviceFacts,
    reasons: list[Reason],
) -> EngineConfig:
    dtype = _DTYPES.get(config.model.dtype, config.model.dtype)
    cached = dtype
    if dtype == "auto" and facts.packed_storages and facts.device == "cpu":
        dtype = "float32"
        cached = "float16" if storage == "F16" else "bfloat16"
        kept = _kept(config, storage, facts)
        reasons.append(Reason("dtype", dtype, f"activations; weights {kept}"))
    elif dtype == "auto" and spec.encoder is not None and storage == "F32":
        dtype = cached = "float32" if facts.device == "cpu" else "float16"
        reasons.append(Reason("dtype", dtype, DTYPE_REASON))
    elif dtype == "auto":
        dtype = "float16" if storage == "F16" else "bfloat16"
        if storage in PUBLISHED and spec.dtype == "float16":
            dtype = spec.dtype
        expanded = "" if storage in ("BF16", "F16") else "; weights are converted as they load"
        if held_as(storage, 0, facts.packed_storages) in facts.packed_storages or (
            config.model.quantization != "none"
        ):
            expanded = f"; weights {_kept(config, storage, facts)}"
        why = f"the checkpoint is {storage}{expanded}"
        if dtype == "bfloat16" and not facts.supports_bf16:
            dtype, why = "float16", f"{facts.name or facts.device} has no bfloat16"
        cached = dtype
        reasons.append(Reason("dtype", dtype, why))
    kv_dtype = _KV_DTYPES.get(config.cache.kv_cache_dtype, config.cache.kv_cache_dtype)
    if config.cache.kv_cache_dtype.startswith("fp8"):
        why = "in place of fp8: as many bits, and closer with its scale per token and head"
        reasons.append(Reason("kv_cache_dtype", kv_dtype, why))
    if kv_dtype == "auto":
        kv_dtype = cached
        why = "as the activations" if cached == dtype else "half the bytes of float32"
        if spec.encoder is None:
            reasons.append(Reason("kv_cache_dtype", kv_dtype, why))
    return replace(
        config,
        model=replace(config.model, dtype=dtype),
        cache=replace(config.cache, kv_cache_dtype=kv_dtype),
        device=_resolve_device(config, facts, reasons),
    )


def _kept(config: EngineConfig, storage: str, facts: DeviceFacts) -> str:
    method = config.model.quantization
    if method != "none":
        return f"are rounded to {_ROUNDED.get(method, method)}"
    held = held_as(storage, 0, facts.packed_storages)
    return f"stay {held}" if held == storage else f"become {held}, for which there are kernels"


def _resolve_device(config: EngineConfig, facts: DeviceFacts, reasons: list[Reason]) -> Any:
    threads = config.device.threads
    if threads == "auto":
        threads = facts.num_threads
        reasons.append(Reason("threads", threads, "affinity and container quota"))
    return replace(config.device, device=facts.device, threads=threads)


def _resolve_scheduler(
    config: EngineConfig, facts: DeviceFacts, reasons: list[Reason]
) -> EngineConfig:
    on_cpu = facts.device == "cpu"
    reqs, tokens = config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens
    if reqs == "auto":
        reqs = 64 if on_cpu else 256
        reasons.append(Reason("max_num_seqs", reqs, f"default on {facts.device}"))
    if tokens == "auto":
        # Long enough for matrix products to reach their speed, short enough that a long prompt
        # does not hold up running streams.
        tokens = max(512 if on_cpu else 2048, int(reqs))
        reasons.append(Reason("max_num_batched_tokens", tokens, f"default on {facts.device}"))
    if int(tokens) < int(reqs):
        raise ConfigError(
            f"--max-num-batched-tokens {tokens} is less than --max-num-seqs {reqs}; "
            "every running request needs one token per step."
        )
    bound = config.scheduler.max_step_ms
    if bound == "auto":
        bound = _STEP_BOUND
        reasons.append(Reason("max_step_ms", bound, "a prompt slows running replies by no more"))
    scheduler = replace(
        config.scheduler, max_num_seqs=reqs, max_num_batched_tokens=tokens, max_step_ms=bound
    )
    return replace(config, scheduler=scheduler)


def _own(config: EngineConfig, spec: ModelSpec) -> ModelSpec:
    parallel = config.parallel
    return rank_spec(spec, parallel.tensor_parallel_size, parallel.pipeline_parallel_size)


def _held(
    config: EngineConfig, spec: ModelSpec, tensors: Mapping[str, TensorInfo], facts: DeviceFacts
) -> list[HeldWeight]:
    """The weights of one device."""
    return held_weights(
        replace(spec, layers=spec.layers[: len(_own(config, spec).layers)]),
        tensors,
        config.model.dtype,
        facts.packed_storages,
        config.parallel.tensor_parallel_size,
    )


def _empty_plan(
    config: EngineConfig,
    spec: ModelSpec,
    held: Sequence[HeldWeight],
    facts: DeviceFacts,
    layout: KVLayout,
) -> MemoryPlan:
    dtype, scheduler = config.model.dtype, config.scheduler
    own = _own(config, spec)
    activations = memory.activation_bytes(
        own, dtype, int(scheduler.max_num_batched_tokens), int(scheduler.max_num_seqs)
    )
    if spec.vision is not None:
        width = memory.DTYPE_BYTES[dtype]
        most = int(config.media.image_max_tokens)
        activations += encoder_bytes(spec.vision, spec.hidden_size, width, most)
    return MemoryPlan(
        weights=round(sum(part.nbytes for part in held)),
        activations=activations,
        process=memory.PROCESS_BYTES[facts.device],
        groups=tuple(kv_groups(own, layout, str(config.cache.kv_cache_dtype))),
        max_chunk=int(scheduler.max_num_batched_tokens),
        position_bytes=memory.position_bytes(own),
    )


def _pool_limit(config: EngineConfig, plan: MemoryPlan, facts: DeviceFacts) -> int:
    """Most bytes that the KV pool can take next to the rest; CapacityError if nothing is left."""
    if config.cache.kv_cache_memory_bytes is not None:
        if config.cache.num_gpu_blocks_override is not None:
            raise ConfigError(
                "--kv-cache-memory-bytes and --num-gpu-blocks-override both say how large the KV "
                "cache is; leave out one of them."
            )
        return config.cache.kv_cache_memory_bytes
    share = int(facts.total_memory * config.cache.gpu_memory_utilization)
    reserve = CPU_RESERVE if facts.device == "cpu" else 0
    usable = min(share, facts.free_memory - reserve)
    limit = usable - plan.weights - plan.beside_weights
    least = plan.slab_bytes * plan.slabs_for(1) if plan.groups else 0
    if limit < least and config.cache.num_gpu_blocks_override is None:
        host = ""
        if facts.host_memory is not None:
            host = f", with {format_bytes(facts.host_memory)} of the host's memory beside it"
        raise CapacityError(
            f"The model needs {format_bytes(plan.weights)} for weights and "
            f"{format_bytes(plan.beside_weights)} to run, and "
            f"{format_bytes(max(0, usable))} of {format_bytes(facts.total_memory)} may be used "
            f"({format_bytes(facts.free_memory)} free){host}. Free memory, choose a smaller "
            "quantization, or lower --max-num-seqs and --max-num-batched-tokens."
        )
    return limit


def _resolve_length(
    config: EngineConfig, spec: ModelSpec, plan: MemoryPlan, limit: int, reasons: list[Reason]
) -> EngineConfig:
    wanted = config.model.max_model_len
    if isinstance(wanted, int):
        if wanted < 1:
            raise ConfigError(f"--max-model-len {wanted} must be at least 1.")
        if wanted > spec.max_position:
            reasons.append(
                Reason("max_model_len", wanted, f"beyond the trained {spec.max_position:,}")
            )
        return config
    pool = limit
    why = "the largest that fits in memory"
    capped = config.device.device == "cpu" and config.cache.kv_cache_memory_bytes is None
    if wanted is None and capped and limit > _CPU_POOL_CAP:
        pool = _CPU_POOL_CAP
        why = f"what {format_bytes(pool)} of cache hold; --max-model-len auto takes more"
    length = plan.longest(_fitting_slabs(config, plan, pool), spec.max_position)
    if not cache_is_chosen(config):
        length = min(length, plan.longest_within(limit, spec.max_position))
    if not length:
        raise CapacityError(_too_few_slabs(config, plan))
    if length == spec.max_position:
        why = "the model's own"
    reasons.append(Reason("max_model_len", length, why))
    return replace(config, model=replace(config.model, max_model_len=length))


def _fitting_slabs(config: EngineConfig, plan: MemoryPlan, pool: int) -> int:
    """Slabs in a pool of so many bytes, unless their number is given; the first included."""
    override = config.cache.num_gpu_blocks_override
    return pool // plan.slab_bytes if override is None else override


def cache_is_chosen(config: EngineConfig) -> bool:
    """The flags say how large the KV pool is, whatever else takes memory."""
    cache = config.cache
    return cache.num_gpu_blocks_override is not None or cache.kv_cache_memory_bytes is not None


def room_for_pool(plan: MemoryPlan, facts: DeviceFacts) -> int:
    """Bytes that a pool whose size is asked for may have beside the rest of the plan.

    Neither the share of `--gpu-memory-utilization` nor a reserve bounds it: only what is there.
    """
    return facts.free_memory - plan.weights - _to_run(plan, facts)


def _to_run(plan: MemoryPlan, facts: DeviceFacts) -> int:
    """Bytes beside weights and pool."""
    # A GPU's context is there already where its free memory is asked for.
    there = plan.process if facts.device != "cpu" else 0
    return plan.total - plan.weights - plan.kv_pool - there


def _check_chosen_pool(config: EngineConfig, plan: MemoryPlan, facts: DeviceFacts) -> None:
    """CapacityError for a pool whose size was asked for and that cannot be free beside the rest."""
    to_run = _to_run(plan, facts)
    beyond = plan.kv_pool - room_for_pool(plan, facts)
    if not cache_is_chosen(config) or beyond <= 0:
        return
    flag, room = "--kv-cache-memory-bytes", max(0, plan.kv_pool - beyond)
    fits, least = f"{room >> 20}M", plan.slab_bytes * plan.slabs_for(1)
    if config.cache.num_gpu_blocks_override is not None:
        flag, fits = "--num-gpu-blocks-override", str(room // plan.slab_bytes)
    advice = f"lower {flag} to at most {fits}, or free memory"
    if room < max(least, 1 << 20):
        advice = "free memory, or choose a smaller quantization"
    raise CapacityError(
        f"{flag} asks for {format_bytes(plan.kv_pool)} of KV cache, which beside "
        f"{format_bytes(plan.weights)} of weights and {format_bytes(to_run)} to run is "
        f"{format_bytes(beyond)} more than the {format_bytes(facts.free_memory)} that are free: "
        f"{advice}."
    )


def _more_cache(config: EngineConfig) -> str:
    if config.cache.num_gpu_blocks_override is not None:
        return "raise --num-gpu-blocks-override"
    if config.cache.kv_cache_memory_bytes is not None:
        return "raise --kv-cache-memory-bytes"
    return "free memory"


def _too_few_slabs(config: EngineConfig, plan: MemoryPlan) -> str:
    size = config.cache.block_size
    return (
        f"The KV cache needs two blocks of {size} tokens at least, one of them spare: "
        f"{format_bytes(plan.slabs_for(1) * plan.slab_bytes)} for this model; "
        f"{_more_cache(config)}, or lower --block-size."
    )


def _num_slabs(config: EngineConfig, plan: MemoryPlan, limit: int, reasons: list[Reason]) -> int:
    """Slabs of the pool, the first included; CapacityError if one request would not fit."""
    length = plan.max_model_len
    alone = plan.slabs_for(length)
    needed = f"{format_bytes(alone * plan.slab_bytes)} of KV cache"
    if cache_is_chosen(config):
        fits = _fitting_slabs(config, plan, limit)
        longest, available = plan.longest(fits, length), fits * plan.slab_bytes
    else:
        fits = (limit - plan.tables) // plan.slab_bytes
        longest, available = plan.longest_within(limit, length), limit
        if plan.tables:
            needed += f" and {format_bytes(plan.tables)} for positions,"
    if not longest:
        raise CapacityError(_too_few_slabs(config, plan))
    if longest < length:
        raise CapacityError(
            f"One request of {length:,} tokens needs {needed} and {format_bytes(available)} is "
            f"available: lower --max-model-len to at most {longest:,}, or {_more_cache(config)}."
        )
    if cache_is_chosen(config):
        return fits
    useful = plan.slabs_for(length, int(config.scheduler.max_num_seqs))
    slabs, why = min(fits, useful), "every running request at full length"
    cap = max(_CPU_POOL_CAP // plan.slab_bytes, alone)
    if config.device.device == "cpu" and slabs > cap:
        slabs, why = cap, f"{format_bytes(_CPU_POOL_CAP)} by default on a CPU"
    elif slabs < useful:
        why = "all memory that is left"
    reasons.append(Reason("kv_cache_memory_bytes", slabs * plan.slab_bytes, why))
    return slabs
