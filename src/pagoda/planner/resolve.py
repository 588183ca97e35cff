"""Where "auto" becomes a value, with the reason for each.

Nothing else in Pagoda decides a default that depends on the model or the machine.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pagoda.arch.recurrent import RecurrentSpec
from pagoda.arch.spec import ModelSpec
from pagoda.arch.stage import stage_of
from pagoda.base.errors import CapacityError, ConfigError
from pagoda.base.facts import DeviceFacts, DeviceName
from pagoda.base.units import format_bytes
from pagoda.base.words import say
from pagoda.config.engine import EngineConfig, SchedulerConfig
from pagoda.core.kvcache.spec import KVLayout, kv_groups
from pagoda.planner.adapters import adapter_bytes, expert_activations, resolve_adapters
from pagoda.planner.attention import AttentionChoice, choose_attention
from pagoda.planner.captured import CapturedSize
from pagoda.planner.devices.gpus import likest_gpu
from pagoda.planner.devices.roofline import GpuPart
from pagoda.planner.draft_model import (
    DraftModel,
    beside,
    check_draft_model,
    with_draft_memory,
)
from pagoda.planner.encoder import DTYPE_REASON, resolve_encoder
from pagoda.planner.memory import plan as memory
from pagoda.planner.memory.offload import resolve_offload
from pagoda.planner.memory.plan import MemoryPlan
from pagoda.planner.memory.pool import (
    check_chosen_pool,
    pool_limit,
    wanted_contexts,
    with_host_slabs,
    with_pool,
)
from pagoda.planner.memory.storage import quantization_reason
from pagoda.planner.memory.streaming import resolve_streaming
from pagoda.planner.memory.tensors import parameter_count
from pagoda.planner.memory.vision import encoder_bytes, hearing_bytes, resolve_media
from pagoda.planner.memory.weights import HeldWeight, held_weights
from pagoda.planner.parallel import check_split, rank_spec
from pagoda.planner.quantization import quantized_tensors
from pagoda.planner.reason import Reason
from pagoda.planner.resolved import (
    CacheDType,
    DType,
    ResolvedCache,
    ResolvedConfig,
    ResolvedDevice,
    ResolvedMedia,
    ResolvedModel,
    ResolvedScheduler,
)
from pagoda.planner.speculation import resolve_speculation, with_draft_head
from pagoda.planner.stages import check_stages, cut_places, even_cuts, layer_bytes
from pagoda.planner.threads import resolve_threads
from pagoda.planner.worth_capturing import sizes_worth_capturing
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.formats import PUBLISHED, held_as

_DTYPES: dict[str, DType] = {
    "half": "float16", "float16": "float16", "bfloat16": "bfloat16",
    "float": "float32", "float32": "float32",
}  # fmt: skip
_ROUNDED = {"fp8": say("int8 (in place of fp8, and closer to the weights)")}
_KV_DTYPES: dict[str, CacheDType] = {
    "float16": "float16", "bfloat16": "bfloat16", "float32": "float32", "int8": "int8",
    "int8_per_token_head": "int8", "q4_0": "q4_0", "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
}  # fmt: skip
# Beside a long prompt the slowest steps of running replies are to stay within three times their
# own. Single steps miss their prediction by up to a third, those of the p99 by a fifth.
_STEP_BOUND = "2.2x"


@dataclass(frozen=True)
class Resolution:
    config: ResolvedConfig
    plan: MemoryPlan
    reasons: list[Reason]
    packed: bool = False
    """Weights stay in the checkpoint's own bits; activations are fp32."""
    pool_limit: int = 0
    """Most bytes that the KV pool could take beside the rest."""
    attention: AttentionChoice = field(default_factory=AttentionChoice)
    """What attends to the cache, and how it lies for it."""
    captured_sizes: tuple[CapturedSize, ...] = ()
    """Steps that are captured on a GPU."""
    cuts: tuple[int, ...] = ()
    """As `StageSpec` has them; empty without a pipeline."""


def resolve(
    config: EngineConfig, spec: ModelSpec, tensors: Mapping[str, TensorInfo], facts: DeviceFacts,
    draft: DraftModel | None = None,
) -> Resolution:  # fmt: skip
    """Choose every "auto" of `config` for this model on this machine, beside its draft model.

    Raises ConfigError for a value that cannot be honoured and CapacityError, saying what to
    lower, when the model or one request of the wanted length does not fit.
    """
    spec = _drafting(config, spec, draft)
    storage = _main_storage(spec, tensors)
    reasons = [Reason("architecture", spec.architecture, _size(spec, storage))]
    on_cpu = facts.device == "cpu"
    # A CPU's kernels compute in a type of their own, a GPU's in any.
    packed = bool(facts.packed_storages) and (config.model.dtype == "auto" or not on_cpu)
    if storage == "FP8" and config.model.quantization == "fp8":  # only repeats it
        config = replace(config, model=replace(config.model, quantization="none"))
    quantization = config.model.quantization
    if quantization != "none":
        _check_can_quantize(config, packed)
        tensors = quantized_tensors(spec, tensors, quantization)
    check_split(spec, tensors, config.parallel.tensor_parallel_size)
    check_stages(config, spec)
    if not packed:
        facts = replace(facts, packed_storages=frozenset())
    dtype, kv_dtype = _resolve_types(config, spec, storage, facts, reasons)
    device = _resolve_device(config, facts, reasons)
    config = replace(config, device=replace(config.device, device=device.device))
    published = quantization_reason(spec, tensors, facts.packed_storages, dtype)
    if published is not None:
        reasons.append(published)
    attention = choose_attention(
        spec, config.device.attention_backend, dtype, facts, reasons,
        kv_dtype=kv_dtype, block_size=config.cache.block_size,
    )  # fmt: skip
    if config.cache.block_size is None and spec.encoder is None:
        why = say("what the kernels of attention read")
        reasons.append(Reason("block_size", attention.layout.block_size, why))
    if spec.encoder is not None:
        config = resolve_encoder(config, spec, spec.encoder, facts, reasons)
    scheduler = _resolve_scheduler(config.scheduler, facts, reasons)
    length, cache = config.model.max_model_len, config.cache
    chosen = ResolvedConfig(
        ResolvedModel(
            dtype,
            quantization,
            config.model.load_format == "dummy",
            length if isinstance(length, int) else spec.max_position,
            config.model.seed,
        ),
        ResolvedCache(
            attention.layout.block_size,
            kv_dtype,
            cache.enable_prefix_caching,
            cache.kv_disk,
            cache.kv_disk_size,
        ),  # fmt: skip
        scheduler,
        config.parallel,
        device,
        _resolve_media(config, spec, scheduler, reasons),
        resolve_speculation(config, spec, device.device, reasons),
        resolve_adapters(config.adapters, spec, dtype, reasons),
    )
    cuts = _cuts(config, chosen, spec, tensors, facts, attention.layout, reasons)
    held, plan = _of_largest(chosen, spec, cuts, tensors, facts, attention.layout)
    plan = with_host_slabs(config, plan)
    if draft is not None:
        plan = with_draft_memory(plan, draft, chosen, facts)
    sizes, plan = _with_captures(config, chosen, spec, held, plan, attention, facts, reasons)
    gib, plan = resolve_offload(config, spec, held, plan, facts, reasons)
    chosen = replace(chosen, device=replace(device, offload_gib=gib))
    plan, advice = resolve_streaming(config, spec, held, plan, facts, reasons)
    limit = pool_limit(config, plan, facts, advice)
    if plan.groups:
        chosen, plan = with_pool(config, chosen, spec, plan, limit, reasons)
        check_chosen_pool(config, plan, facts)
    return Resolution(chosen, plan, reasons, packed, limit, attention, sizes, cuts)


def _with_captures(
    config: EngineConfig, chosen: ResolvedConfig, spec: ModelSpec, held: list[HeldWeight],
    plan: MemoryPlan, attention: AttentionChoice, facts: DeviceFacts, reasons: list[Reason],
) -> tuple[tuple[CapturedSize, ...], MemoryPlan]:  # fmt: skip
    """The steps that are captured, and `plan` with what they take."""
    recurrent = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, RecurrentSpec)]
    captures = attention.captured and all(mixer.capturable for mixer in recurrent)
    captures = captures and not config.device.enforce_eager
    captures = captures and config.parallel.pipeline_parallel_size == 1
    if facts.device == "cpu" or spec.encoder is not None or not captures:
        return (), plan
    ranks = config.parallel.tensor_parallel_size
    own = rank_spec(spec, ranks)
    part = GpuPart(likest_gpu(facts), ranks, False, own, held, plan.groups)
    sizes = sizes_worth_capturing(chosen, part, attention, facts, reasons)
    captured = memory.captured_bytes(own, chosen.model.dtype, sizes, ranks)
    return sizes, replace(plan, captured=captured)


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
    config, plan = with_pool(asked, made.config, spec, plan, limit, reasons)
    return replace(made, config=config, plan=plan, reasons=reasons, pool_limit=limit)


def device_name(asked: str, has_gpu: Callable[[], bool]) -> DeviceName:
    """`auto` is the GPU where there is one that can be used; else that is not asked. ConfigError
    for an unknown name."""
    match asked:
        case "auto":
            return "cuda" if has_gpu() else "cpu"
        case "cpu" | "cuda":
            return asked
    raise ConfigError(f"Device {asked!r} is not known; choose auto, cpu or cuda.")


def _drafting(config: EngineConfig, spec: ModelSpec, draft: DraftModel | None) -> ModelSpec:
    """The spec with what drafts; ConfigError for a draft model that cannot."""
    if draft is None:
        return with_draft_head(spec, config)
    check_draft_model(config, spec, draft)
    return beside(spec, draft)


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


def _size(spec: ModelSpec, storage: str) -> str:
    size = parameter_count(spec) / 1e6
    return say("{size:,.1f}M parameters, stored as {storage}", size=size, storage=storage)


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
) -> tuple[DType, CacheDType]:
    """The types of the activations and of cached keys and values."""
    asked, asked_kv = config.model.dtype, config.cache.kv_cache_dtype
    dtype: DType
    cached: DType
    if asked != "auto":
        dtype = cached = _DTYPES[asked]
    elif facts.packed_storages and facts.device == "cpu":
        dtype = "float32"
        cached = "float16" if storage == "F16" else "bfloat16"
        why = say("activations; weights {kept}", kept=_kept(config, storage, facts))
        reasons.append(Reason("dtype", dtype, why))
    elif spec.encoder is not None and storage == "F32":
        half: DType = "bfloat16" if spec.encoder.rms_norms else "float16"
        dtype = cached = "float32" if facts.device == "cpu" else half
        reasons.append(Reason("dtype", dtype, DTYPE_REASON))
    else:
        dtype = "float16" if storage == "F16" else "bfloat16"
        if storage in PUBLISHED and spec.dtype == "float16":
            dtype = "float16"
        why = say("the checkpoint is {storage}", storage=storage)
        if held_as(storage, 0, facts.packed_storages) in facts.packed_storages or (
            config.model.quantization != "none"
        ):
            kept = _kept(config, storage, facts)
            why = say("{checkpoint}; weights {kept}", checkpoint=why, kept=kept)
        elif storage not in ("BF16", "F16"):
            why = say("{checkpoint}; weights are converted as they load", checkpoint=why)
        if dtype == "bfloat16" and not facts.supports_bf16:
            dtype = "float16"
            why = say("{device} has no bfloat16", device=facts.name or facts.device)
        cached = dtype
        reasons.append(Reason("dtype", dtype, why))
    if asked_kv == "auto":
        why = say("as the activations" if cached == dtype else "half the bytes of float32")
        if spec.encoder is None:
            reasons.append(Reason("kv_cache_dtype", cached, why))
        return dtype, cached
    kv_dtype = _KV_DTYPES[asked_kv]
    if kv_dtype not in ("float16", "bfloat16", "float32") and _has_indexer(spec):
        raise ConfigError(
            f"--kv-cache-dtype {asked_kv}: this model's attention chooses tokens by keys that "
            "share a row of the cache with what it attends to, and 8 bits or less would round both "
            "by one scale. Take auto, bfloat16 or float16."
        )
    if kv_dtype == "q4_0":
        if facts.device != "cpu":
            raise ConfigError(
                "--kv-cache-dtype q4_0: only a CPU's kernels read it. Take fp8 or int8, with half "
                "the bytes of bfloat16."
            )
        if any(mixer.head_dim % 2 for mixer in spec.attentions):
            raise ConfigError(
                "--kv-cache-dtype q4_0 keeps two dimensions of a head in a byte, and this model's "
                "heads have an odd number. Take int8."
            )
    if kv_dtype in ("fp8_e4m3", "fp8_e5m2"):
        if facts.device == "cpu":
            kv_dtype = "int8"
            why = say("in place of fp8: as many bits, and closer with its scale per token and head")
        else:
            why = say("as asked; int8 takes 4 bytes more per token and head, and is closer")
        reasons.append(Reason("kv_cache_dtype", kv_dtype, why))
    return dtype, kv_dtype


def _has_indexer(spec: ModelSpec) -> bool:
    return any(x.latent is not None and x.latent.indexer is not None for x in spec.attentions)


def _kept(config: EngineConfig, storage: str, facts: DeviceFacts) -> str:
    method = config.model.quantization
    if method != "none":
        return say("are rounded to {format}", format=_ROUNDED.get(method, method))
    held = held_as(storage, 0, facts.packed_storages)
    if held == storage:
        return say("stay {format}", format=held)
    return say("become {format}, for which there are kernels", format=held)


def _resolve_device(
    config: EngineConfig, facts: DeviceFacts, reasons: list[Reason]
) -> ResolvedDevice:
    threads, nodes = resolve_threads(config, facts, reasons)
    return ResolvedDevice(
        facts.device, threads, nodes, config.device.enforce_eager, offload_gib=0.0
    )


def _resolve_scheduler(
    asked: SchedulerConfig, facts: DeviceFacts, reasons: list[Reason]
) -> ResolvedScheduler:
    on_cpu = facts.device == "cpu"
    reqs, tokens, bound = asked.max_num_seqs, asked.max_num_batched_tokens, asked.max_step_ms
    usual = say("default on {device}", device=facts.device)
    if not isinstance(reqs, int):
        reqs = 64 if on_cpu else 256
        reasons.append(Reason("max_num_seqs", reqs, usual))
    if not isinstance(tokens, int):
        # Long enough for matrix products to reach their speed, short enough that a long prompt
        # does not hold up running streams.
        tokens = max(512 if on_cpu else 2048, reqs)
        reasons.append(Reason("max_num_batched_tokens", tokens, usual))
    if tokens < reqs:
        raise ConfigError(
            f"--max-num-batched-tokens {tokens} is less than --max-num-seqs {reqs}; "
            "every running request needs one token per step."
        )
    if bound == "auto":
        bound = _STEP_BOUND
        why = say("a prompt slows running replies by no more")
        reasons.append(Reason("max_step_ms", bound, why))
    seconds = growth = math.inf
    if isinstance(bound, str):
        growth = float(bound.removesuffix("x"))
    elif bound:
        seconds = bound / 1000
    return ResolvedScheduler(
        reqs,
        tokens,
        asked.enable_chunked_prefill,
        asked.long_prefill_token_threshold,
        seconds,
        growth,
        asked.scheduling_policy,
    )


def _resolve_media(
    config: EngineConfig, spec: ModelSpec, scheduler: ResolvedScheduler, reasons: list[Reason]
) -> ResolvedMedia:
    step = replace(config.scheduler, max_num_batched_tokens=scheduler.max_num_batched_tokens)
    media = resolve_media(replace(config, scheduler=step), spec, reasons).media
    image, video = media.image_max_tokens, media.video_max_tokens
    return ResolvedMedia(
        image if isinstance(image, int) else 0, video if isinstance(video, int) else 0
    )


def _cuts(
    asked: EngineConfig, config: ResolvedConfig, spec: ModelSpec,
    tensors: Mapping[str, TensorInfo], facts: DeviceFacts, layout: KVLayout, reasons: list[Reason],
) -> tuple[int, ...]:  # fmt: skip
    """Where stages begin, by the bytes of layers; empty without a pipeline."""
    stages, ranks = config.parallel.pipeline_parallel_size, config.parallel.tensor_parallel_size
    if stages == 1:
        return ()
    groups = kv_groups(rank_spec(spec, ranks), layout, config.cache.kv_cache_dtype)
    context = wanted_contexts(asked, spec)[1]
    held = _held(config, spec, tensors, facts)
    chunk = config.scheduler.max_num_batched_tokens
    nbytes = layer_bytes(spec, held, groups, context, chunk)
    cuts = even_cuts(nbytes, cut_places(spec), stages)
    sizes = ", ".join(str(stop - first) for first, stop in itertools.pairwise(cuts))
    why = say("stages of {sizes} layers, by bytes", sizes=sizes)
    reasons.append(Reason("pipeline_parallel_size", stages, why))
    return cuts


def _of_largest(
    config: ResolvedConfig, spec: ModelSpec, cuts: tuple[int, ...],
    tensors: Mapping[str, TensorInfo], facts: DeviceFacts, layout: KVLayout,
) -> tuple[list[HeldWeight], MemoryPlan]:  # fmt: skip
    """The weights of the device that holds most, and its plan without a pool, with the groups of
    rank 0."""
    found = []
    for index in range(max(1, len(cuts) - 1)):
        own = stage_of(spec, cuts, index)
        held = _held(config, own, tensors, facts)
        found.append((held, _empty_plan(config, own, held, facts, layout)))
    held, plan = max(found, key=lambda part: part[1].weights + part[1].beside_weights)
    return held, replace(plan, groups=found[0][1].groups)


def _held(
    config: ResolvedConfig, spec: ModelSpec, tensors: Mapping[str, TensorInfo], facts: DeviceFacts
) -> list[HeldWeight]:
    """The weights of one device."""
    return held_weights(
        spec,
        tensors,
        config.model.dtype,
        facts.packed_storages,
        config.parallel.tensor_parallel_size,
    )


def _empty_plan(
    config: ResolvedConfig,
    spec: ModelSpec,
    held: Sequence[HeldWeight],
    facts: DeviceFacts,
    layout: KVLayout,
) -> MemoryPlan:
    dtype, scheduler = config.model.dtype, config.scheduler
    own = rank_spec(spec, config.parallel.tensor_parallel_size)
    activations = memory.activation_bytes(
        own, dtype, scheduler.max_num_batched_tokens, config.max_num_samples
    )
    if spec.vision is not None:
        width = memory.DTYPE_BYTES[dtype]
        most = config.media.image_max_tokens
        activations += encoder_bytes(spec.vision, spec.hidden_size, width, most)
    if spec.audio is not None:
        activations += hearing_bytes(spec.audio, spec.hidden_size, memory.DTYPE_BYTES[dtype])
    if facts.device != "cpu":
        tokens = scheduler.max_num_batched_tokens
        activations += expert_activations(spec, config.adapters, tokens)
    return MemoryPlan(
        weights=round(sum(part.nbytes for part in held)),
        activations=activations,
        process=memory.PROCESS_BYTES[facts.device],
        groups=tuple(kv_groups(own, layout, config.cache.kv_cache_dtype)),
        max_chunk=scheduler.max_num_batched_tokens,
        position_bytes=memory.position_bytes(own),
        adapters=adapter_bytes(spec, config.adapters, config.parallel.tensor_parallel_size),
        on_host=facts.device == "cpu",
    )
