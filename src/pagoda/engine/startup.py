"""From a config to an engine that serves: one phase after the other, each timed and measured."""

import errno
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pagoda.arch.spec import ModelSpec
from pagoda.base import env
from pagoda.base.errors import CapacityError, EngineDeadError
from pagoda.base.facts import DeviceFacts
from pagoda.base.log import get_logger
from pagoda.base.machine import address_limit, anonymous_bytes
from pagoda.base.units import format_bytes
from pagoda.config.engine import EngineConfig, ModelConfig
from pagoda.config.flags import check_parallel
from pagoda.core.grammar import Grammars, Vocabulary
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.messages import EngineMessage, EngineProgress, EngineReady
from pagoda.core.scheduler import Scheduler, SchedulerLimits
from pagoda.engine.core import EngineCore, describe
from pagoda.engine.executor import DeviceExecutor, LocalExecutor
from pagoda.engine.kv_disk import kv_disk
from pagoda.engine.ledger import Ledger
from pagoda.engine.libraries import Libraries, import_libraries
from pagoda.engine.measured import fit_to_device, measures_steps
from pagoda.engine.model_files import (
    checkpoint_of,
    dummy_in,
    mapped_bytes,
    planned_tensors,
    spec_of,
)
from pagoda.engine.progress import WEIGHTS_PHASE
from pagoda.engine.rank_link import RankSetup
from pagoda.engine.ranks import Ranks, RanksExecutor, start_ranks
from pagoda.engine.transport import MemoryRoom
from pagoda.kernels import cpu
from pagoda.planner.addresses import check_addresses
from pagoda.planner.memory import DTYPE_BYTES
from pagoda.planner.resolve import CPU_RESERVE, Resolution, resolve
from pagoda.planner.vision import kept_bytes
from pagoda.text.images.base import ImageProcessor
from pagoda.text.images.select import image_processor_for, video_processor_for
from pagoda.weights.files import ModelFiles, open_model
from pagoda.weights.source import resolve_model

if TYPE_CHECKING:  # torch comes in on a thread, while the headers are read
    from pagoda.models.base import Model
    from pagoda.runtime.device import Device
    from pagoda.runtime.runner import ModelRunner

log = get_logger(__name__)

_PROGRESS_PERIOD = 0.1

Report = Callable[[EngineMessage], None]


def start_engine(
    config: EngineConfig,
    report: Report,
    *,
    launched_at: float | None = None,
    room: MemoryRoom | None = None,
    give_up: Callable[[str], None] | None = None,
) -> tuple[EngineCore, EngineReady]:
    """Load the model and make it ready to serve, telling `report` of every phase.

    `launched_at` is time.time() of the command, so that the ledger counts from there. `room` is
    what other engines leave. `give_up` is as `Ranks` takes it. Raises the error of whichever phase
    fails; memory that runs out is a CapacityError.
    """
    startup = _Startup(config, report, launched_at, room, give_up)
    try:
        return startup.run()
    except BaseException:
        if startup.ranks is not None:
            startup.ranks.close()
        raise


class _Startup:
    def __init__(
        self,
        config: EngineConfig,
        report: Report,
        launched_at: float | None,
        room: MemoryRoom | None,
        give_up: Callable[[str], None] | None,
    ):
        self.config = config
        self.ranks: Ranks | None = None
        """The other ranks, of a model that is split."""
        self._give_up = give_up
        self._room = room
        self.report = report
        self.ledger = Ledger()
        if launched_at is not None:
            self.ledger.phases["launch"] = max(0.0, time.time() - launched_at)
        self._last_progress = 0.0
        self._phase = ""

    def run(self) -> tuple[EngineCore, EngineReady]:
        check_parallel(self.config)
        # OpenMP's threads spin for milliseconds behind each operation unless told otherwise before
        # torch loads. Where others use the cores too, that made start-up and decoding of the
        # default model 5 to 20 times slower (2 threads, 2 cores, 2 busy neighbours).
        env.set_default("OMP_WAIT_POLICY", "PASSIVE")
        pool = ThreadPoolExecutor(1, "import-torch")
        libraries = pool.submit(import_libraries)
        pool.shutdown(wait=False)
        files, spec = self._read_headers()
        self.ranks = start_ranks(self.config, spec, files.path, self._give_up)
        facts, device = self._find_device(libraries)
        if self.ranks is not None:
            with self._timed("start ranks"):
                num_devices = 1 if device is None else device.count
                self.config, facts = self.ranks.share(self.config, facts, num_devices)
        with self._timed("plan"):
            if self._room is not None:
                facts = _left_by_others(facts, self._room)
            resolution = self._resolve(files, spec, facts)
            if facts.device == "cpu":
                mapped = mapped_bytes(files, self.config.model)
                check_addresses(resolution.plan, mapped, address_limit())
            max_model_len = _resolved(resolution.config.model.max_model_len)
            if self._room is not None:
                least = min(self._room.least_context, spec.max_position)
                self._check_room(self._room, resolution, max_model_len, least)
            self.ledger.plan(resolution.plan, resolution.reasons, max_model_len)
        if self.ranks is not None:
            self.ranks.load(_rank_setup(resolution))
        if device is None:
            device = self._import_torch(libraries).make_device("cpu")
        threads = _resolved(resolution.config.device.threads)
        device.set_threads(threads, packed=resolution.packed)
        if device.name == "cpu" and not resolution.packed:
            _warn_of_type(self.config.model.dtype)
        model = self._load(files, spec, device, resolution, libraries.result())
        if measures_steps(self.config, resolution, device):
            with self._timed("profile"), _memory_guard("measuring a step", resolution):
                resolution = fit_to_device(
                    self.config, spec, resolution, device,
                    partial(libraries.result().largest_step, model),
                )  # fmt: skip
            self.ledger.measured["activations"] = resolution.plan.activations
            max_model_len = _resolved(resolution.config.model.max_model_len)
            self.ledger.replan(resolution.plan, resolution.reasons, max_model_len)
        if self.ranks is not None:
            with self._timed("meet ranks"):
                self.ranks.meet(device.torch_device)
        grammars = Grammars(partial(_vocabulary, self.config.model, files), spec.vocab_size)
        images = None if spec.vision is None else image_processor_for(files)
        runner = self._make_runner(
            model, spec, device, resolution, libraries.result(), grammars, images
        )
        scheduler = _make_scheduler(resolution, spec)
        core = EngineCore(
            scheduler,
            self._executor(runner, device),
            grammars=grammars,
            when_idle=self._work_ahead(runner),
            on_shutdown=self._kept_prefixes(files, resolution, scheduler.kv, runner),
        )
        ready = EngineReady(
            max_model_len=max_model_len,
            vocab_size=spec.vocab_size,
            num_blocks=max(1, resolution.plan.num_slabs),
            block_size=resolution.attention.layout.block_size,
            kv_tokens=resolution.plan.kv_tokens,
            max_num_seqs=_resolved(resolution.config.scheduler.max_num_seqs),
            device=device.name,
            generates=spec.writes_text,
            hidden_size=spec.hidden_size,
            pooling=spec.pooling,
            media=_media(images, files, resolution),
            ledger=self.ledger.rows(),
        )
        for line in self.ledger.lines():
            log.info("%s", line)
        return core, ready

    def _executor(self, runner: "ModelRunner", device: "Device") -> LocalExecutor:
        if self.ranks is not None:
            return RanksExecutor(runner, self.ranks, runs_ahead=device.runs_ahead)
        return DeviceExecutor(runner) if device.runs_ahead else LocalExecutor(runner)

    def _work_ahead(self, runner: "ModelRunner") -> Callable[[], bool]:
        if self.ranks is None:
            return runner.work_ahead
        return partial(self.ranks.together, runner.work_ahead)

    def _resolve(self, files: ModelFiles, spec: ModelSpec, facts: DeviceFacts) -> Resolution:
        config, room = self.config, self._room
        wanted = config.model.max_model_len
        beyond = isinstance(wanted, int) and wanted > spec.max_position
        if room is not None and beyond and spec.encoder is not None:
            # A flag that was meant for another model of the server.
            config = replace(config, model=replace(config.model, max_model_len=None))
        try:
            resolution = resolve(config, spec, planned_tensors(files, spec, config.model), facts)
        except CapacityError as error:
            if room is None or room.limit is None:
                raise
            raise CapacityError(f"{error} --models-memory limits it.") from error
        length = resolution.config.model.max_model_len
        if isinstance(length, int) and length > spec.max_position:
            log.warning(
                "--max-model-len %s is beyond the %s tokens that the model was trained for.",
                f"{length:,}", f"{spec.max_position:,}",
            )  # fmt: skip
        return resolution

    def _check_room(
        self, room: MemoryRoom, resolution: Resolution, max_model_len: int, least_context: int
    ) -> None:
        """CapacityError for a model that the others leave too little."""
        if room.limit is not None and resolution.plan.total > room.limit:
            raise CapacityError(
                f"It needs {format_bytes(resolution.plan.total)} and {format_bytes(room.limit)} "
                "are left."
            )
        if self.config.model.max_model_len is None and max_model_len < least_context:
            raise CapacityError(f"Only {max_model_len:,} tokens of context would fit.")

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        self._phase = phase
        self.report(EngineProgress(phase))
        with self.ledger.phase(phase):
            yield

    def _progress(self, done: int, total: int) -> None:
        """Pass on at most ten times a second, and always the end."""
        now = time.monotonic()
        if now - self._last_progress >= _PROGRESS_PERIOD or done >= total:
            self._last_progress = now
            if self.ranks is not None:
                self.ranks.check()
            self.report(EngineProgress(self._phase, done, total))

    def _read_headers(self) -> tuple[ModelFiles, ModelSpec]:
        model = self.config.model
        with self._timed("find model"):
            path: Path = resolve_model(
                model.model,
                download_dir=model.download_dir,
                revision=model.revision,
                progress=lambda _, done, total: self._progress(done, total),
            )
        with self._timed("read headers"):
            files = open_model(path, model.mmproj)
            return files, spec_of(files, model)

    def _find_device(self, libraries: Future[Libraries]) -> "tuple[DeviceFacts, Device | None]":
        """Facts of the device; a plain CPU's are known without waiting for torch."""
        if self.config.device.device == "cpu":
            return cpu.device_facts(), None
        device = self._import_torch(libraries).make_device(self.config.device.device)
        return device.facts(), device

    def _import_torch(self, libraries: Future[Libraries]) -> Libraries:
        with self._timed("import torch"):
            return libraries.result()

    def _load(
        self,
        files: ModelFiles,
        spec: ModelSpec,
        device: "Device",
        resolution: Resolution,
        libraries: Libraries,
    ) -> "Model":
        config = resolution.config.model
        checkpoint = dummy_in(files, spec, config) or checkpoint_of(files, spec, config)
        place = device.place_of(resolution.plan.placement.params)
        self.ledger.measured["process"] = anonymous_bytes()
        before = device.memory_used()
        with self._timed(WEIGHTS_PHASE), _memory_guard("loading the weights", resolution):
            model = libraries.build_model(
                spec,
                checkpoint,
                dtype=device.dtype(resolution.config.model.dtype),
                device=place,
                parallel=None if self.ranks is None else self.ranks.group.parallel,
                progress=self._progress,
                packed=resolution.packed,
                attention=resolution.attention,
            )
        if not isinstance(place, str):
            device.give_back()  # what the weights passed through
            self.ledger.measured["in host memory"] = place.nbytes
        self.ledger.measured["weights"] = device.memory_used() - before
        return model

    def _kept_prefixes(
        self,
        files: ModelFiles,
        resolution: Resolution,
        cache: KVCacheManager,
        runner: "ModelRunner",
    ) -> Callable[[], object]:
        """Bring back what an earlier engine kept on disk; what keeps it again at the end."""
        config = resolution.config.cache
        if config.kv_disk is None or not cache.enable_prefix_caching:
            return lambda: None
        with self._timed("read kept KV"):
            model = resolution.config.model
            kept = (model.dtype, model.quantization, config.kv_cache_dtype, config.block_size)
            keys = resolution.attention.layout.keys
            native = cpu.native() if resolution.packed else None
            layout = f"{kept} {keys} {'torch' if native is None else native.isa}"
            disk = kv_disk(config.kv_disk, config.kv_disk_size, files, layout)
            count = disk.restore(cache, runner)
        if count:
            log.info("%s cached tokens came back from disk.", f"{count * cache.block_size:,}")

        def keep() -> None:
            try:
                disk.save(cache, runner)
            except (OSError, MemoryError) as error:
                log.warning("The cached prefixes could not be kept: %s.", error or "no memory")

        return keep

    def _make_runner(
        self,
        model: "Model",
        spec: ModelSpec,
        device: "Device",
        resolution: Resolution,
        libraries: Libraries,
        grammars: Grammars,
        images: ImageProcessor | None,
    ) -> "ModelRunner":
        config = resolution.config
        kept = 0
        if spec.vision is not None:
            width, most = DTYPE_BYTES[config.model.dtype], _resolved(config.media.image_max_tokens)
            kept = kept_bytes(spec.vision, spec.hidden_size, width, most)
        before = device.memory_used()
        with self._timed("reserve KV cache"), _memory_guard("reserving the KV cache", resolution):
            model.reserve(_resolved(config.model.max_model_len))
            if resolution.plan.tables:
                self.ledger.measured["positions"] = device.memory_used() - before
            before = device.memory_used()
            make = libraries.runner if self.ranks is None else self.ranks.runner
            runner = make(
                model,
                spec,
                list(resolution.plan.groups),
                num_slabs=resolution.plan.num_slabs,
                device=device,
                max_num_reqs=_resolved(config.scheduler.max_num_seqs),
                max_num_batched_tokens=_resolved(config.scheduler.max_num_batched_tokens),
                max_model_len=_resolved(config.model.max_model_len),
                seed=config.model.seed,
                grammars=grammars,
                images=images,
                kept_image_bytes=kept,
                eager=config.device.enforce_eager,
                captured_bytes=resolution.plan.captured,
            )
        self.ledger.measured["KV pool"] = device.memory_used() - before
        before = device.memory_used()
        together = nullcontext if self.ranks is None else self.ranks.in_step
        with self._timed("warm up"), together(), _memory_guard("the first step", resolution):
            num_tokens = runner.warm_up()
        if "activations" not in self.ledger.measured:
            self.ledger.measured["activations"] = device.memory_used() - before
            self.ledger.details["activations"] += f", measured with {num_tokens} tokens"
        return runner


def _media(
    images: ImageProcessor | None, files: ModelFiles, resolution: Resolution
) -> dict[str, int]:
    """As EngineReady has it."""
    if images is None:
        return {}
    media = resolution.config.media
    found = {"image": _resolved(media.image_max_tokens)}
    if video_processor_for(files) is not None:
        found["video"] = _resolved(media.video_max_tokens)
    return found


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
        num_slabs=resolution.plan.num_slabs,
        packed=resolution.packed,
        attention=resolution.attention,
        captured_bytes=resolution.plan.captured,
        in_host=resolution.plan.placement.params,
    )


def _make_scheduler(resolution: Resolution, spec: ModelSpec) -> Scheduler:
    config = resolution.config
    limits = SchedulerLimits(
        max_num_reqs=_resolved(config.scheduler.max_num_seqs),
        max_num_batched_tokens=_resolved(config.scheduler.max_num_batched_tokens),
        max_model_len=_resolved(config.model.max_model_len),
        policy=config.scheduler.scheduling_policy,
        long_prefill_token_threshold=config.scheduler.long_prefill_token_threshold,
        enable_chunked_prefill=config.scheduler.enable_chunked_prefill,
        whole_media=spec.vision is not None and spec.vision.both_ways,
        **_step_bound(config.scheduler.max_step_ms),
    )
    cache = KVCacheManager(
        resolution.plan.groups,
        resolution.plan.num_slabs,
        enable_prefix_caching=config.cache.enable_prefix_caching,
    )
    return Scheduler(limits, cache)


def _step_bound(bound: float | str) -> dict[str, float]:
    """`max_step_ms` as SchedulerLimits has it."""
    if isinstance(bound, str):
        return {"max_step_growth": float(bound.removesuffix("x"))}
    return {"max_step_seconds": bound / 1000} if bound else {}


def _resolved(value: int | str | None) -> int:
    if not isinstance(value, int):
        raise EngineDeadError(f"The planner left {value!r} unresolved; this is a fault of Pagoda.")
    return value


@contextmanager
def _memory_guard(doing: str, resolution: Resolution) -> Iterator[None]:
    """Turn running out of memory into advice; any other error passes."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not _is_out_of_memory(error):
            raise
        scheduler = resolution.config.scheduler
        raise CapacityError(
            f"Memory ran out while {doing} ({describe(error)}). Choose a smaller quantization, "
            f"or lower --max-model-len (now {resolution.config.model.max_model_len}), "
            f"--kv-cache-memory-bytes (now {resolution.plan.kv_pool}), --max-num-seqs (now "
            f"{scheduler.max_num_seqs}) or --max-num-batched-tokens (now "
            f"{scheduler.max_num_batched_tokens})."
        ) from error


def _is_out_of_memory(error: Exception) -> bool:
    """torch.OutOfMemoryError is a RuntimeError, its CPU allocator raises a bare one, mmap an
    OSError."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    text = str(error).lower()
    return any(sign in text for sign in ("out of memory", "can't allocate", "not enough memory"))


def _left_by_others(facts: DeviceFacts, room: MemoryRoom) -> DeviceFacts:
    free = max(0, facts.free_memory - room.reserved)
    if room.limit is not None:
        # The planner keeps a reserve of what is free, and a limit is not to be cut by that.
        free = min(free, room.limit + (CPU_RESERVE if facts.device == "cpu" else 0))
    return replace(facts, free_memory=free)


def _vocabulary(config: ModelConfig, files: ModelFiles) -> Vocabulary:
    """For the first grammar: imported and read when there is one."""
    from pagoda.engine.text_side import tokenizer_of

    tokenizer = tokenizer_of(config, files)
    return Vocabulary(
        tokens=[tokenizer.token_bytes(index) for index in range(tokenizer.vocab_size)],
        special_ids=sorted(tokenizer.special_ids),
        eos_ids=sorted(tokenizer.eos_token_ids),
        encode=partial(tokenizer.encode, add_special_tokens=False),
    )
