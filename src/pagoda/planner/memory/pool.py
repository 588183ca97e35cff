"""How long a request may be, and how large the KV pool is: what fits, or what was asked for."""

from dataclasses import replace

from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import CapacityError, ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.base.units import format_bytes
from pagoda.base.words import say
from pagoda.config.engine import EngineConfig
from pagoda.planner.memory.plan import MemoryPlan
from pagoda.planner.reason import Reason
from pagoda.planner.resolved import ResolvedConfig

# On a CPU the KV pool shares memory with everything else the user runs: by default it takes no
# more than this, and less where less is free.
_CPU_POOL_CAP = 4 << 30
CPU_RESERVE = 512 << 20
# Where no context is asked for, weights make room for this one (the least that llama.cpp's `--fit`
# leaves, too).
_CONTEXT = 4096


def with_pool(
    asked: EngineConfig,
    chosen: ResolvedConfig,
    spec: ModelSpec,
    plan: MemoryPlan,
    limit: int,
    reasons: list[Reason],
) -> tuple[ResolvedConfig, MemoryPlan]:
    """Both with the context and the KV pool that fit `limit` bytes."""
    on_cpu = chosen.device.device == "cpu"
    length = _length(asked, spec, plan, limit, on_cpu, reasons)
    plan = replace(plan, max_model_len=length)
    slabs = _num_slabs(asked, chosen, spec, plan, limit, reasons)
    model = replace(chosen.model, max_model_len=length)
    return replace(chosen, model=model), replace(plan, num_slabs=slabs)


def wanted_contexts(config: EngineConfig, spec: ModelSpec) -> tuple[int, int]:
    """Tokens of a request without which nothing is served, and those for which weights go
    elsewhere once they have to."""
    wanted = config.model.max_model_len
    return (wanted, wanted) if isinstance(wanted, int) else (1, min(_CONTEXT, spec.max_position))


def has_room(
    config: EngineConfig, plan: MemoryPlan, facts: DeviceFacts, context: int, margin: int = 0
) -> bool:
    """Whether `plan` leaves room for the pool that flags ask for, or one request of so many tokens,
    and `margin` bytes."""
    cache = config.cache
    usable = usable_bytes(config, facts)
    if cache.kv_cache_memory_bytes is not None:
        pool, usable = cache.kv_cache_memory_bytes, facts.free_memory
    elif cache.num_gpu_blocks_override is not None:
        pool = cache.num_gpu_blocks_override * plan.slab_bytes
    else:
        pool = plan.slab_bytes * plan.slabs_for(context) if plan.groups else 0
    return replace(plan, num_slabs=0, max_model_len=context).total + pool + margin <= usable


def usable_bytes(config: EngineConfig, facts: DeviceFacts) -> int:
    """What an engine may take of its device's memory; below 0 where others have its reserve."""
    reserve = CPU_RESERVE if facts.device == "cpu" else 0
    share = int(facts.total_memory * config.cache.gpu_memory_utilization)
    return min(share, facts.free_memory - reserve)


def pool_limit(config: EngineConfig, plan: MemoryPlan, facts: DeviceFacts, advice: str = "") -> int:
    """Most bytes that the KV pool can take next to the rest; CapacityError if nothing is left, with
    this `advice` besides, or offloaded KV does not fit."""
    _check_host_memory(config, plan, facts)
    if config.cache.kv_cache_memory_bytes is not None:
        if config.cache.num_gpu_blocks_override is not None:
            raise ConfigError(
                "--kv-cache-memory-bytes and --num-gpu-blocks-override both say how large the KV "
                "cache is; leave out one of them."
            )
        return config.cache.kv_cache_memory_bytes
    usable = usable_bytes(config, facts)
    limit = usable - plan.weights - plan.beside_weights
    least = plan.slab_bytes * plan.slabs_for(1) if plan.groups else 0
    if limit < least and config.cache.num_gpu_blocks_override is None:
        raise CapacityError(_too_large(plan, facts, usable, advice))
    return limit


def _too_large(plan: MemoryPlan, facts: DeviceFacts, usable: int, advice: str) -> str:
    needs = say(
        "The model needs {weights} for weights and {rest} to run, and {usable} of {total} may be "
        "used ({free} free)",
        weights=format_bytes(plan.weights),
        rest=format_bytes(plan.beside_weights),
        usable=format_bytes(max(0, usable)),
        total=format_bytes(facts.total_memory),
        free=format_bytes(facts.free_memory),
    )
    if facts.host_memory is not None:
        host = format_bytes(facts.host_memory)
        needs = say("{needs}, with {host} of the host's memory beside it", needs=needs, host=host)
    text = say(
        "{needs}. Free memory, choose a smaller quantization, or lower --max-num-seqs and "
        "--max-num-batched-tokens.",
        needs=needs,
    )
    return say("{first} {last}", first=text, last=advice) if advice else text


def check_chosen_pool(config: EngineConfig, plan: MemoryPlan, facts: DeviceFacts) -> None:
    """CapacityError for a pool whose size was asked for and that cannot be free beside the rest."""
    to_run = _to_run(plan, facts)
    beyond = plan.kv_pool - room_for_pool(plan, facts)
    if not cache_is_chosen(config) or beyond <= 0:
        return
    flag, room = "--kv-cache-memory-bytes", max(0, plan.kv_pool - beyond)
    fits, least = f"{room >> 20}M", plan.slab_bytes * plan.slabs_for(1)
    if config.cache.num_gpu_blocks_override is not None:
        flag, fits = "--num-gpu-blocks-override", str(room // plan.slab_bytes)
    advice = say("lower {flag} to at most {most}, or free memory", flag=flag, most=fits)
    if room < max(least, 1 << 20):
        advice = say("free memory, or choose a smaller quantization")
    raise CapacityError(
        say(
            "{flag} asks for {pool} of KV cache, which beside {weights} of weights and {rest} to "
            "run is {beyond} more than the {free} that are free: {advice}.",
            flag=flag,
            pool=format_bytes(plan.kv_pool),
            weights=format_bytes(plan.weights),
            rest=format_bytes(to_run),
            beyond=format_bytes(beyond),
            free=format_bytes(facts.free_memory),
            advice=advice,
        )
    )


def with_host_slabs(config: EngineConfig, plan: MemoryPlan) -> MemoryPlan:
    """The plan with the memory of the host that is asked for, each rank's part of it."""
    if not plan.groups or not config.cache.enable_prefix_caching:
        return plan
    asked = config.cache.kv_offloading_size * (1 << 30) / config.parallel.num_ranks
    slabs = int(asked // plan.slab_bytes)
    if asked and slabs < 2:
        raise CapacityError(
            f"--kv-offloading-size {config.cache.kv_offloading_size:g} is too small: it needs two "
            f"blocks of {format_bytes(plan.slab_bytes)} at least. Raise it, or leave it out."
        )
    return replace(plan, num_host_slabs=slabs)


def _check_host_memory(config: EngineConfig, plan: MemoryPlan, facts: DeviceFacts) -> None:
    """CapacityError where a GPU's host has too little memory for offloaded KV; on a CPU that is a
    part of what `pool_limit` counts."""
    if facts.host_memory is None or not plan.num_host_slabs or plan.on_host:
        return
    wanted = plan.host_kv * config.parallel.num_ranks
    left = max(0, facts.host_memory - CPU_RESERVE - plan.placement.nbytes)
    if wanted > left:
        raise CapacityError(
            f"--kv-offloading-size {config.cache.kv_offloading_size:g} asks for "
            f"{format_bytes(wanted)} of the host's memory, and {format_bytes(left)} are left: "
            f"lower it to at most {int(10 * left / (1 << 30)) / 10:g}."
        )


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


def _length(
    config: EngineConfig,
    spec: ModelSpec,
    plan: MemoryPlan,
    limit: int,
    on_cpu: bool,
    reasons: list[Reason],
) -> int:
    """Tokens of the longest request."""
    wanted = config.model.max_model_len
    if isinstance(wanted, int):
        if wanted < 1:
            raise ConfigError(f"--max-model-len {wanted} must be at least 1.")
        if wanted > spec.max_position:
            why = say("beyond the trained {most:,}", most=spec.max_position)
            reasons.append(Reason("max_model_len", wanted, why))
        return wanted
    pool = limit
    why = say("the largest that fits in memory")
    capped = on_cpu and config.cache.kv_cache_memory_bytes is None
    if wanted is None and capped and limit > _CPU_POOL_CAP:
        pool = _CPU_POOL_CAP
        why = say(
            "what {size} of cache hold; --max-model-len auto takes more", size=format_bytes(pool)
        )
    length = plan.longest(_fitting_slabs(config, plan, pool), spec.max_position)
    if not cache_is_chosen(config):
        length = min(length, plan.longest_within(limit, spec.max_position))
    if not length:
        raise CapacityError(_too_few_slabs(config, plan))
    if length == spec.max_position:
        why = say("the model's own")
    reasons.append(Reason("max_model_len", length, why))
    return length


def _num_slabs(
    config: EngineConfig,
    chosen: ResolvedConfig,
    spec: ModelSpec,
    plan: MemoryPlan,
    limit: int,
    reasons: list[Reason],
) -> int:
    """Slabs of the pool, the first included; CapacityError if one request would not fit."""
    length = plan.max_model_len
    alone = plan.slabs_for(length)
    needed = say("{size} of KV cache", size=format_bytes(alone * plan.slab_bytes))
    if cache_is_chosen(config):
        fits = _fitting_slabs(config, plan, limit)
        longest, available = plan.longest(fits, length), fits * plan.slab_bytes
    else:
        fits = (limit - plan.tables) // plan.slab_bytes
        longest, available = plan.longest_within(limit, length), limit
        if plan.tables:
            needed = say(
                "{needed} and {size} for positions,", needed=needed, size=format_bytes(plan.tables)
            )
    if not longest:
        raise CapacityError(_too_few_slabs(config, plan))
    if longest < length:
        # A longer context than the model was trained for is nothing to advise.
        longest = min(longest, max(spec.max_position, 1))
        raise CapacityError(
            say(
                "One request of {length:,} tokens needs {needed} and {size} is available: lower "
                "--max-model-len to at most {longest:,}, or {more}.",
                length=length,
                needed=needed,
                size=format_bytes(available),
                longest=longest,
                more=_more_cache(config),
            )
        )
    if cache_is_chosen(config):
        return fits
    useful = plan.slabs_for(length, chosen.scheduler.max_num_seqs)
    slabs, why = min(fits, useful), say("every running request at full length")
    cap = max(_CPU_POOL_CAP // plan.slab_bytes, alone)
    if chosen.device.device == "cpu" and slabs > cap:
        size = format_bytes(_CPU_POOL_CAP)
        slabs, why = cap, say("{size} by default on a CPU", size=size)
    elif slabs < useful:
        why = say("all memory that is left")
    reasons.append(Reason("kv_cache_memory_bytes", slabs * plan.slab_bytes, why))
    return slabs


def _fitting_slabs(config: EngineConfig, plan: MemoryPlan, pool: int) -> int:
    """Slabs in a pool of so many bytes, unless their number is given; the first included."""
    override = config.cache.num_gpu_blocks_override
    return pool // plan.slab_bytes if override is None else override


def _more_cache(config: EngineConfig) -> str:
    if config.cache.num_gpu_blocks_override is not None:
        return say("raise --num-gpu-blocks-override")
    if config.cache.kv_cache_memory_bytes is not None:
        return say("raise --kv-cache-memory-bytes")
    return say("free memory")


def _too_few_slabs(config: EngineConfig, plan: MemoryPlan) -> str:
    return say(
        "The KV cache needs two blocks of {tokens} tokens at least, one of them spare: {size} for "
        "this model; {more}, or lower --block-size.",
        tokens=config.cache.block_size,
        size=format_bytes(plan.slabs_for(1) * plan.slab_bytes),
        more=_more_cache(config),
    )
