"""From a config to an engine that serves: one phase after the other, each timed and measured."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pagoda.arch.spec import ModelSpec
from pagoda.arch.stage import stage_of
from pagoda.base.facts import DeviceFacts
from pagoda.base.log import get_logger
from pagoda.base.machine import anonymous_bytes
from pagoda.config.engine import EngineConfig, ModelConfig
from pagoda.core.grammar import Grammars, Vocabulary
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.messages import EngineReady, LoadedAdapter
from pagoda.core.scheduler import Scheduler
from pagoda.engine.core import EngineCore
from pagoda.engine.executor import DeviceExecutor, LocalExecutor
from pagoda.engine.kv_publisher import KVPublisher
from pagoda.engine.processes.transport import MemoryRoom
from pagoda.engine.ranks.executor import Ranks, RanksBlocks, RanksExecutor, start_ranks
from pagoda.engine.ranks.link import RankPool, RankSetup
from pagoda.engine.start.draft_model import (
    FoundDraft,
    find_draft_model,
    largest_steps,
    load_draft_model,
)
from pagoda.engine.start.eagle3 import with_eagle3_head
from pagoda.engine.start.kept_kv import KeptKV
from pagoda.engine.start.libraries import Libraries, import_beside
from pagoda.engine.start.measured import alone, fit_to_device, measures_steps
from pagoda.engine.start.model_files import checkpoint_of, spec_of
from pagoda.engine.start.phases import Phases, Report, memory_guard
from pagoda.engine.start.planned import plan_engine
from pagoda.engine.start.progress import WEIGHTS_PHASE
from pagoda.engine.start.speculation import make_speculator
from pagoda.engine.start.streamed import speed_of_disk, streamed_experts
from pagoda.kernels import cpu
from pagoda.planner.draft_model import beside
from pagoda.planner.limits import scheduler_limits
from pagoda.planner.memory.assumed import dummy_of
from pagoda.planner.memory.vision import media_budget, media_sizes
from pagoda.planner.parallel import replica_part
from pagoda.planner.resolve import Resolution, device_name
from pagoda.planner.speculation import with_draft_head
from pagoda.text.media.base import Processor
from pagoda.text.media.select import processors_for
from pagoda.weights.adapters import fetch_adapter
from pagoda.weights.files import ModelFiles, open_model
from pagoda.weights.source import resolve_model

if TYPE_CHECKING:  # torch comes in on a thread, while the headers are read
    from pagoda.models.base import Model
    from pagoda.quant.host import HostWeights
    from pagoda.quant.streamed import StreamedExperts
    from pagoda.runtime.adapters import ResidentAdapters
    from pagoda.runtime.device import Device
    from pagoda.runtime.runner import ModelRunner

log = get_logger(__name__)


def start_engine(
    config: EngineConfig,
    report: Report,
    *,
    launched_at: float | None = None,
    libraries: Future[Libraries] | None = None,
    room: MemoryRoom | None = None,
    give_up: Callable[[str], None] | None = None,
) -> tuple[EngineCore, EngineReady]:
    """Load the model and make it ready to serve, telling `report` of every phase.

    `launched_at` is time.time() of the command, so that the ledger counts from there.
    `libraries` are those that `import_beside` imports already. `room` is what other engines leave.
    `give_up` is as `Ranks` takes it. Raises the error of whichever phase fails; memory that runs
    out is a CapacityError.
    """
    phases = Phases(report, launched_at)
    libraries = libraries or import_beside()
    files, spec = _read_headers(config, phases)
    draft = find_draft_model(config, files, spec, phases)
    files, spec = with_eagle3_head(files, spec, config, phases)
    spec = with_draft_head(spec, config) if draft is None else beside(spec, draft.model)
    ranks = start_ranks(config, spec, files, phases, give_up)
    try:
        made = _make_engine(_Start(config, files, spec, phases, libraries, ranks, draft), room)
        if ranks is not None:
            ranks.serves()
        return made
    except BaseException:
        if ranks is not None:
            ranks.close()
        raise


@dataclass(frozen=True)
class _Start:
    """What the phases behind the headers share."""

    config: EngineConfig
    files: ModelFiles
    spec: ModelSpec
    phases: Phases
    libraries: Future[Libraries]
    ranks: Ranks | None
    """The other ranks, of a model that is split."""
    draft: FoundDraft | None

    def import_torch(self) -> Libraries:
        with self.phases.timed("import torch"):
            return self.libraries.result()


def _make_engine(start: _Start, room: MemoryRoom | None) -> tuple[EngineCore, EngineReady]:
    spec, phases, ranks = start.spec, start.phases, start.ranks
    first_gpu, replica = (0, 0) if room is None else (room.first_gpu, room.replica)
    facts, device = _find_device(start, first_gpu)
    config, part = replica_part(start.config, facts)
    # Other replicas may have taken their parts of what was free; the room says this one's.
    start, facts = replace(start, config=config), replace(part, free_memory=facts.free_memory)
    if ranks is not None:
        with phases.timed("start ranks"):
            num_devices = 1 if device is None else device.count
            config, facts = ranks.share(start.config, facts, num_devices, first_gpu)
            start = replace(start, config=config)
    with phases.timed("plan"):
        resolution = plan_engine(start.config, start.files, spec, facts, room, start.draft)
        phases.ledger.plan(resolution)
    if resolution.plan.on_disk:
        log.warning("%s", speed_of_disk(resolution, start.files, spec))
    if ranks is not None:
        ranks.load(_rank_setup(resolution))
    device = _with_threads(device or start.import_torch().make_device("cpu", 0), start, resolution)
    model = _load(start, device, resolution)
    draft_model = _load_draft_model(start, device, resolution)
    _compile_ahead(start, device, resolution, model)
    if ranks is not None:
        with phases.timed("meet ranks"):
            ranks.meet(device.torch_device)
    if measures_steps(start.config, resolution, device):
        step = _largest_step(start, resolution, model, draft_model)
        resolution = _measured(start, resolution, device, step)
    with memory_guard("making room for adapters", resolution):
        adapters = start.libraries.result().make_adapters(
            model, resolution.config.adapters, of_gguf=start.files.kind == "gguf"
        )
    grammars = Grammars(partial(_vocabulary, start.config.model, start.files), spec.vocab_size)
    processors = processors_for(start.files, model.encoders)
    runner = _make_runner(
        start,
        model,
        draft_model,
        device,
        resolution,
        grammars=grammars,
        processors=processors,
        adapters=adapters,
    )
    scheduler = _make_scheduler(resolution, spec)
    # Before anything is in the cache.
    events = start.config.cache.kv_events
    publisher = None
    if events.publishes:
        publisher = KVPublisher(events, scheduler.watch_cache().take, replica)
    kept = KeptKV(
        resolution,
        scheduler.kv,
        runner if ranks is None else RanksBlocks(runner, ranks),
        [start.files] if start.draft is None else [start.files, start.draft.files],
        partial(start.libraries.result().kv_scales_digest, model),
    )
    transfers = kept.transfers(start.config.cache.kv_transfer, room or MemoryRoom())
    with phases.timed("read kept KV") if kept.on_disk else nullcontext():
        prefixes = kept.prefixes()
    core = EngineCore(
        scheduler,
        _executor(ranks, runner, device, scheduler),
        grammars=grammars,
        when_idle=runner.work_ahead
        if ranks is None
        else partial(ranks.together, runner.work_ahead),
        prefixes=prefixes,
        kv_publisher=publisher,
        transfers=transfers,
        adapters=resolution.config.adapters,
    )
    with phases.timed("load adapters") if adapters is not None else nullcontext():
        named = [core.adapters.load(path) for path in start.config.adapters.paths]
    media = media_sizes(resolution.config, processors)
    ready = _ready(start, resolution, device.name, media, named)
    for line in phases.ledger.lines():
        log.info("%s", line)
    return core, ready


def _ready(
    start: _Start,
    resolution: Resolution,
    device: str,
    media: dict[str, int],
    adapters: list[LoadedAdapter],
) -> EngineReady:
    config, plan = resolution.config, resolution.plan
    return EngineReady(
        max_model_len=config.model.max_model_len,
        vocab_size=start.spec.vocab_size,
        num_blocks=max(1, plan.num_slabs),
        block_size=config.cache.block_size,
        kv_tokens=plan.kv_tokens,
        max_num_seqs=config.scheduler.max_num_seqs,
        kv_cache_dtype=config.cache.kv_cache_dtype,
        device=device,
        generates=start.spec.writes_text,
        hidden_size=start.spec.hidden_size,
        pooling=start.spec.pooling,
        speculation=config.speculation.method,
        media=media,
        max_loras=config.adapters.slots,
        adapters=adapters,
        ledger=start.phases.ledger.rows(),
    )


def _with_threads(device: "Device", start: _Start, resolution: Resolution) -> "Device":
    where = resolution.config.device
    device.set_threads(where.threads, packed=resolution.packed, nodes=where.nodes)
    if device.name == "cpu" and not resolution.packed:
        _warn_of_type(start.config.model.dtype)
    return device


def _executor(
    ranks: Ranks | None, runner: "ModelRunner", device: "Device", scheduler: Scheduler
) -> LocalExecutor:
    # What is guessed stands behind the last token, which a plan that is made ahead does not know.
    runs_ahead = device.runs_ahead and scheduler.speculator is None
    if ranks is not None:
        stages = scheduler.limits.num_stages
        depth = stages if stages > 1 else 1 + runs_ahead
        return RanksExecutor(runner, ranks, steps_in_flight=depth)
    return DeviceExecutor(runner) if runs_ahead else LocalExecutor(runner)


def _read_headers(config: EngineConfig, phases: Phases) -> tuple[ModelFiles, ModelSpec]:
    model = config.model

    def progress(_: str, done: int, total: int) -> None:
        phases.progress(done, total)

    with phases.timed("find model"):
        path = resolve_model(
            model.model,
            download_dir=model.download_dir,
            revision=model.revision,
            progress=progress,
        )
        for ref in config.adapters.paths:
            fetch_adapter(ref, progress)
    with phases.timed("read headers"):
        files = open_model(path, model.mmproj)
        return files, spec_of(files, model)


def _find_device(start: _Start, first_gpu: int) -> "tuple[DeviceFacts, Device | None]":
    """Facts of the device; a plain CPU's are known without waiting for torch."""
    name = device_name(start.config.device.device, lambda: start.import_torch().has_gpu())
    if name != start.config.device.device:
        log.info("Device %s is %s.", start.config.device.device, name)
    if name == "cpu":
        return cpu.device_facts(), None
    device = start.import_torch().make_device(name, first_gpu)
    return device.facts(), device


def _load(start: _Start, device: "Device", resolution: Resolution) -> "Model":
    files, spec, config = start.files, start.spec, resolution.config.model
    libraries, ledger, ranks = start.libraries.result(), start.phases.ledger, start.ranks
    dummy = dummy_of(spec, files.config) if config.dummy else None
    weights = None if dummy is not None else checkpoint_of(files, spec, config)
    place: str | HostWeights | StreamedExperts
    if resolution.plan.on_disk:
        place = streamed_experts(resolution, files, spec)
    else:
        place = device.place_of(resolution.plan.placement.params)
    ledger.measured["process"] = anonymous_bytes()
    before = device.memory_used()
    with start.phases.timed(WEIGHTS_PHASE), memory_guard("loading the weights", resolution):
        model = libraries.build_model(
            stage_of(spec, resolution.cuts, 0),
            dummy or weights,
            dtype=device.dtype(config.dtype),
            device=place,
            parallel=None if ranks is None else ranks.group.parallel,
            progress=partial(start.phases.progress, check=None if ranks is None else ranks.check),
            packed=resolution.packed,
            attention=resolution.attention,
        )
    if resolution.config.cache.kv_cache_dtype == "fp8_e4m3" and weights is not None:
        log.info("Scales of the fp8 KV cache: %s.", libraries.load_kv_scales(model, weights))
    if not isinstance(place, str):
        device.give_back()  # what the weights passed through
        where = "on disk" if resolution.plan.on_disk else "in host memory"
        ledger.measured[where] = place.nbytes
    ledger.measured["weights"] = device.memory_used() - before
    return model


def _load_draft_model(start: _Start, device: "Device", resolution: Resolution) -> "Model | None":
    if start.draft is None:
        return None
    libraries = start.libraries.result()
    return load_draft_model(start.draft, libraries, device, resolution, start.phases)


def _compile_ahead(start: _Start, device: "Device", resolution: Resolution, model: "Model") -> None:
    """On a GPU, in front of the first step there, which is the one that is measured."""
    if device.kernel_log is None:
        return
    config, groups = resolution.config, list(resolution.plan.groups)
    kernels = repr((start.spec, groups, model.nbytes))
    device.kernel_log.expect(device.facts().name, kernels)
    limits = start.libraries.result().step_limits(
        config.scheduler.max_num_batched_tokens,
        config.scheduler.max_num_seqs,
        config.max_num_samples,
        config.model.max_model_len,
    )
    with start.phases.timed("compile kernels"):
        device.compile_ahead(model, groups, limits)


def _largest_step(
    start: _Start, resolution: Resolution, model: "Model", draft_model: "Model | None"
) -> Callable[..., None]:
    largest_step = start.libraries.result().largest_step
    step = partial(largest_step, model)
    if start.draft is None:
        return step
    drafting = partial(largest_step, draft_model)
    return largest_steps(step, drafting, start.draft.model.spec, resolution)


def _measured(
    start: _Start, resolution: Resolution, device: "Device", step: Callable[..., None]
) -> Resolution:
    """With a pool that fits all ranks, by what the largest step takes."""
    config, phases, ranks = start.config, start.phases, start.ranks
    together, measure = (nullcontext, alone) if ranks is None else (ranks.in_step, ranks.measure)
    with phases.timed("profile"), together(), memory_guard("measuring a step", resolution):
        resolution = fit_to_device(config, start.spec, resolution, device, step, measure)
    phases.ledger.measured["activations"] = resolution.plan.activations
    phases.ledger.replan(resolution)
    return resolution


def _make_runner(
    start: _Start,
    model: "Model",
    draft_model: "Model | None",
    device: "Device",
    resolution: Resolution,
    *,
    grammars: Grammars,
    processors: dict[str, Processor],
    adapters: "ResidentAdapters | None",
) -> "ModelRunner":
    config, spec, ranks = resolution.config, start.spec, start.ranks
    phases, measured = start.phases, start.phases.ledger.measured
    before = device.memory_used()
    with phases.timed("reserve KV cache"), memory_guard("reserving the KV cache", resolution):
        model.reserve(config.model.max_model_len)
        if draft_model is not None and spec.draft_model is not None:
            draft_model.reserve(min(config.model.max_model_len, spec.draft_model.max_position))
        if resolution.plan.tables:
            measured["positions"] = device.memory_used() - before
        before = device.memory_used()
        make: Callable[..., ModelRunner] = start.libraries.result().runner
        if ranks is not None:
            slabs = resolution.plan.num_slabs, resolution.plan.num_host_slabs
            make = partial(ranks.runner, RankPool(config, *slabs))
        runner = make(
            model,
            spec,
            list(resolution.plan.groups),
            num_slabs=resolution.plan.num_slabs,
            num_host_slabs=resolution.plan.num_host_slabs,
            device=device,
            max_num_reqs=config.scheduler.max_num_seqs,
            max_num_samples=config.max_num_samples,
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
            max_model_len=config.model.max_model_len,
            seed=config.model.seed,
            grammars=grammars,
            processors=processors,
            kept_media_bytes=media_budget(config, spec, model.encoders),
            draft_head=model.draft_head,
            draft_model=draft_model,
            eager=config.device.enforce_eager,
            captured_bytes=resolution.plan.captured,
            captured_sizes=resolution.captured_sizes,
            adapters=adapters,
        )
    measured["KV pool"] = device.memory_used() - before
    before = device.memory_used()
    together = nullcontext if ranks is None else ranks.in_step
    with phases.timed("warm up"), together(), memory_guard("the first step", resolution):
        num_tokens = runner.warm_up()
    if "activations" not in measured:
        measured["activations"] = device.memory_used() - before
        phases.ledger.details["activations"] += f", measured with {num_tokens} tokens"
    return runner


def _warn_of_type(dtype: str) -> None:
    """What a type that was asked for costs on a CPU."""
    if cpu.native() is not None:
        log.warning(
            "--dtype %s leaves out the native kernels: weights are expanded, and torch computes, "
            "many times slower. Without the flag they stay as the file has them.",
            dtype,
        )


def _rank_setup(resolution: Resolution) -> RankSetup:
    return RankSetup(
        resolution.config,
        packed=resolution.packed,
        attention=resolution.attention,
        captured_bytes=resolution.plan.captured,
        captured_sizes=resolution.captured_sizes,
        in_host=resolution.plan.placement.params,
        cuts=resolution.cuts,
    )


def _make_scheduler(resolution: Resolution, spec: ModelSpec) -> Scheduler:
    config = resolution.config
    whole_media = spec.vision is not None and spec.vision.both_ways
    limits = scheduler_limits(config, whole_media=whole_media)
    cache = KVCacheManager(
        resolution.plan.groups,
        resolution.plan.num_slabs,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        num_host_slabs=resolution.plan.num_host_slabs,
    )
    return Scheduler(limits, cache, make_speculator(config.speculation))


def _vocabulary(config: ModelConfig, files: ModelFiles) -> Vocabulary:
    """For the first grammar: imported and read when there is one."""
    from pagoda.engine.served.text_side import tokenizer_of

    tokenizer = tokenizer_of(config, files)
    return Vocabulary(
        tokens=[tokenizer.token_bytes(index) for index in range(tokenizer.vocab_size)],
        special_ids=sorted(tokenizer.special_ids),
        eos_ids=sorted(tokenizer.eos_token_ids),
        encode=partial(tokenizer.encode, add_special_tokens=False),
    )
