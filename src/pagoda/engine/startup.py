"""From a config to an engine that serves: one phase after the other, each timed and measured."""

import errno
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pagoda.arch.registry import spec_for
from pagoda.arch.sentence import with_sentence_files
from pagoda.arch.spec import ModelSpec
from pagoda.base import env
from pagoda.base.errors import CapacityError, EngineDeadError
from pagoda.base.facts import DeviceFacts
from pagoda.base.log import get_logger
from pagoda.base.machine import anonymous_bytes
from pagoda.config.engine import EngineConfig
from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.kvcache.spec import kv_groups
from pagoda.core.messages import EngineMessage, EngineProgress, EngineReady
from pagoda.core.scheduler import Scheduler, SchedulerLimits
from pagoda.engine.core import EngineCore, describe
from pagoda.engine.executor import LocalExecutor
from pagoda.engine.ledger import Ledger
from pagoda.kernels import cpu
from pagoda.planner.quantization import quantized_tensors
from pagoda.planner.resolve import Resolution, resolve
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.files import ModelFiles, open_model
from pagoda.weights.quantized import QuantizedCheckpoint
from pagoda.weights.source import resolve_model

if TYPE_CHECKING:  # torch comes in on a thread, while the headers are read
    from pagoda.models.base import Model
    from pagoda.runtime.device import Device
    from pagoda.runtime.runner import ModelRunner

log = get_logger(__name__)

_PROGRESS_PERIOD = 0.1

Report = Callable[[EngineMessage], None]


def start_engine(
    config: EngineConfig, report: Report, *, launched_at: float | None = None
) -> tuple[EngineCore, EngineReady]:
    """Load the model and make it ready to serve, telling `report` of every phase.

    `launched_at` is time.time() of the command, so that the ledger counts from there. Raises
    the error of whichever phase fails; memory that runs out is a CapacityError.
    """
    return _Startup(config, report, launched_at).run()


class _Libraries(NamedTuple):
    """What needs torch: 1 s of imports on a warm disk, hidden behind reading the headers."""

    make_device: "Callable[[str], Device]"
    build_model: "Callable[..., Model]"
    runner: "type[ModelRunner]"


def _import_libraries() -> _Libraries:
    from pagoda.models.loader import build_model
    from pagoda.runtime.device import make_device
    from pagoda.runtime.runner import ModelRunner

    return _Libraries(make_device, build_model, ModelRunner)


class _Startup:
    def __init__(self, config: EngineConfig, report: Report, launched_at: float | None):
        self.config = config
        self.report = report
        self.ledger = Ledger()
        if launched_at is not None:
            self.ledger.phases["launch"] = max(0.0, time.time() - launched_at)
        self._last_progress = 0.0
        self._phase = ""

    def run(self) -> tuple[EngineCore, EngineReady]:
        # OpenMP's threads spin for milliseconds behind each operation unless told otherwise before
        # torch loads. Where others use the cores too, that made start-up and decoding of the
        # default model 5 to 20 times slower (2 threads, 2 cores, 2 busy neighbours).
        env.set_default("OMP_WAIT_POLICY", "PASSIVE")
        pool = ThreadPoolExecutor(1, "import-torch")
        libraries = pool.submit(_import_libraries)
        pool.shutdown(wait=False)
        files, spec = self._read_headers()
        facts, device = self._find_device(libraries)
        with self._timed("plan"):
            resolution = resolve(self.config, spec, self._tensors(files), facts)
            max_model_len = _resolved(resolution.config.model.max_model_len)
            self.ledger.plan(resolution.plan, resolution.reasons, max_model_len)
        if device is None:
            device = self._import_torch(libraries).make_device("cpu")
        threads = _resolved(resolution.config.device.threads)
        device.set_threads(threads, packed=resolution.packed)
        model = self._load(files, spec, device, resolution, libraries.result())
        runner = self._make_runner(model, spec, device, resolution, libraries.result())
        core = EngineCore(_make_scheduler(spec, resolution), LocalExecutor(runner))
        ready = EngineReady(
            max_model_len=max_model_len,
            vocab_size=spec.vocab_size,
            num_blocks=resolution.plan.num_blocks,
            block_size=resolution.config.cache.block_size,
            kv_tokens=resolution.plan.kv_tokens,
            max_num_seqs=_resolved(resolution.config.scheduler.max_num_seqs),
            device=device.name,
            generates=spec.encoder is None,
            hidden_size=spec.hidden_size,
            pooling=spec.pooling,
            ledger=self.ledger.rows(),
        )
        for line in self.ledger.lines():
            log.info("%s", line)
        return core, ready

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
            files = open_model(path)
            spec = spec_for(files.config, files.metadata, self._tensors(files))
            if files.kind == "safetensors":
                spec = with_sentence_files(spec, files.config, files.folder)
            return files, spec

    def _tensors(self, files: ModelFiles) -> Mapping[str, TensorInfo]:
        """None for a dummy load of a folder, which need not hold weights."""
        if self.config.model.load_format == "dummy" and files.kind != "gguf":
            return {}
        return files.checkpoint.tensors

    def _find_device(self, libraries: Future[_Libraries]) -> "tuple[DeviceFacts, Device | None]":
        """Facts of the device; a plain CPU's are known without waiting for torch."""
        if self.config.device.device == "cpu":
            return cpu.device_facts(), None
        device = self._import_torch(libraries).make_device(self.config.device.device)
        return device.facts(), device

    def _import_torch(self, libraries: Future[_Libraries]) -> _Libraries:
        with self._timed("import torch"):
            return libraries.result()

    def _load(
        self,
        files: ModelFiles,
        spec: ModelSpec,
        device: "Device",
        resolution: Resolution,
        libraries: _Libraries,
    ) -> "Model":
        dummy = self.config.model.load_format == "dummy"
        checkpoint = None if dummy else files.checkpoint
        method = resolution.config.model.quantization
        if checkpoint is not None and method != "none":
            rounded = quantized_tensors(spec, checkpoint.tensors, method)
            checkpoint = QuantizedCheckpoint(checkpoint, rounded)
        self.ledger.measured["process"] = anonymous_bytes()
        before = device.memory_used()
        with self._timed("load weights"), _memory_guard("loading the weights", resolution):
            model = libraries.build_model(
                spec,
                checkpoint,
                dtype=device.dtype(resolution.config.model.dtype),
                device=str(device.torch_device),
                progress=self._progress,
                load_format=resolution.config.model.load_format,
                packed=resolution.packed,
            )
        self.ledger.measured["weights"] = device.memory_used() - before
        return model

    def _make_runner(
        self,
        model: "Model",
        spec: ModelSpec,
        device: "Device",
        resolution: Resolution,
        libraries: _Libraries,
    ) -> "ModelRunner":
        config = resolution.config
        before = device.memory_used()
        with self._timed("reserve KV cache"), _memory_guard("reserving the KV cache", resolution):
            runner = libraries.runner(
                model,
                spec,
                kv_groups(spec, config.cache.block_size),
                num_blocks=resolution.plan.num_blocks,
                kv_dtype=device.dtype(config.cache.kv_cache_dtype),
                device=device,
                max_num_reqs=_resolved(config.scheduler.max_num_seqs),
                max_num_batched_tokens=_resolved(config.scheduler.max_num_batched_tokens),
                max_model_len=_resolved(config.model.max_model_len),
                seed=config.model.seed,
            )
        self.ledger.measured["KV pool"] = device.memory_used() - before
        before = device.memory_used()
        with self._timed("warm up"), _memory_guard("the first step", resolution):
            num_tokens = runner.warm_up()
        self.ledger.measured["activations"] = device.memory_used() - before
        self.ledger.details["activations"] += f", measured with {num_tokens} tokens"
        return runner


def _make_scheduler(spec: ModelSpec, resolution: Resolution) -> Scheduler:
    config = resolution.config
    limits = SchedulerLimits(
        max_num_reqs=_resolved(config.scheduler.max_num_seqs),
        max_num_batched_tokens=_resolved(config.scheduler.max_num_batched_tokens),
        max_model_len=_resolved(config.model.max_model_len),
        policy=config.scheduler.scheduling_policy,
        long_prefill_token_threshold=config.scheduler.long_prefill_token_threshold,
        enable_chunked_prefill=config.scheduler.enable_chunked_prefill,
        **_step_bound(config.scheduler.max_step_ms),
    )
    cache = KVCacheManager(
        kv_groups(spec, config.cache.block_size),
        resolution.plan.num_blocks,
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
