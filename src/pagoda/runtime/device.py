"""Where the model runs: types, threads, memory. The only place that asks torch.cuda anything."""

import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np
import torch

from pagoda.base.errors import ConfigError, MissingLibraryError
from pagoda.base.facts import DeviceFacts, DeviceName
from pagoda.base.machine import anonymous_bytes, cpu_facts, usable_threads
from pagoda.core.kvcache.spec import GroupSpec
from pagoda.kernels import cpu, ops
from pagoda.kernels.attention.libraries import attention_libraries
from pagoda.kernels.transfer import copy_to as copy_to
from pagoda.kernels.transfer import to_tensor as to_tensor
from pagoda.planner.resolved import NodeThreads
from pagoda.quant.host import HostWeights
from pagoda.runtime import gpu_build
from pagoda.runtime.steps.graphs import CudaGraphs, GraphMaker

if TYPE_CHECKING:  # these need Triton
    from pagoda.runtime.model import Model
    from pagoda.runtime.steps.program import StepLimits
    from pagoda.runtime.triton.kernel_log import KernelLog
    from pagoda.runtime.triton.tiles import TileTuning

_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "int8": torch.int8,
    "q4_0": torch.uint8,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}

# Flags of cudaHostRegister: of use to all processes' contexts, and to kernels.
_PORTABLE, _MAPPED = 1, 2

Fetch = Callable[[], list[np.ndarray]]
"""Waits for copies that are on their way to the host."""


class Device(ABC):
    """One place to compute on; `make_device` chooses it."""

    name: DeviceName
    torch_device: torch.device
    runs_ahead = False
    """Calls only queue work, and return before it is done."""
    kernel_log: "KernelLog | None" = None
    """What is compiled for the device while it is used, where that is ever done."""
    count = 1
    """Devices of this kind that processes can have one each of."""

    def dtype(self, name: str) -> torch.dtype:
        """The torch type of a name as in `--dtype` or `--kv-cache-dtype` (of bytes, for q4_0);
        ConfigError for an unknown one."""
        if name not in _DTYPES:
            raise ConfigError(f"dtype {name!r} is not known; choose one of {', '.join(_DTYPES)}.")
        return _DTYPES[name]

    def set_threads(
        self, count: int, *, packed: bool = False, nodes: Sequence[NodeThreads] = ()
    ) -> None:
        """CPU threads that compute in this process: torch's, or where weights are packed for
        native kernels theirs, for idle threads of one pool slow those of the other. `nodes`: where
        the latter are."""
        torch.set_num_threads(count)

    @abstractmethod
    def facts(self) -> DeviceFacts:
        """Memory and threads as they are now."""

    @abstractmethod
    def memory_used(self) -> int:
        """Bytes that this process holds on the device."""

    @abstractmethod
    def synchronize(self) -> None:
        """Return when everything given to the device is done."""

    def fetch(self, *tensors: torch.Tensor) -> Fetch:
        """Have tensors copied to the host as they are once all that is queued now is done; the
        call of what is returned waits for that."""
        arrays = [tensor.cpu().numpy() for tensor in tensors]
        return lambda: arrays

    def give_back(self) -> None:  # noqa: B027  # only some devices keep any
        """Let others have memory that is kept for reuse."""

    def peak_of(self, work: Callable[[], object]) -> int | None:
        """Do `work`; bytes that it took at most beside what was held. None, and nothing is done,
        where the device does not count them."""
        return None

    def graph_maker(self) -> Callable[[], GraphMaker] | None:
        """What makes the maker of a model's graphs; None where steps are not captured so."""
        return None

    def host_memory(self, nbytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As `quant.host.HostMemory`; nobody else has it until both tensors are gone."""
        memory = torch.frombuffer(_pages(nbytes), dtype=torch.uint8)
        return memory, memory

    def place_of(self, in_host: frozenset[str]) -> str | HostWeights:
        """What `build_model` takes for a device: this one, with these weights in the host's
        memory."""
        name = str(self.torch_device)
        return HostWeights(in_host, name, self.host_memory) if in_host else name

    def tile_tuning(self, model: "Model", most_tokens: int) -> "TileTuning | None":
        """What measures how a model's products are best cut here; None where nothing does."""
        return None

    def take_tiles(self, rows: list[list[bool | str | int]]) -> None:  # noqa: B027
        """Cut products as `TileTuning.rows` of another process of the same device says."""

    def use(self) -> None:  # noqa: B027  # on a CPU nothing is to be said
        """Have this thread compute here."""

    def compile_ahead(  # noqa: B027
        self, model: "Model", groups: Sequence[GroupSpec], limits: "StepLimits"
    ) -> None:
        """Compile kernels of steps within `limits`, of a model with these groups of caches, where
        that is ever done."""

    @abstractmethod
    def reserve(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of zeros of any shape for a long-lived pool."""

    @abstractmethod
    def discard(self, pool: torch.Tensor) -> None:
        """Give back the memory of what `reserve` gave (any shape), and with it its content."""

    @abstractmethod
    def restore(self, pool: torch.Tensor) -> None:
        """Let a discarded pool of any shape be used again; it holds zeros."""


class CpuDevice(Device):
    name = "cpu"
    torch_device = torch.device("cpu")

    def __init__(self) -> None:
        self._pages: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()
        """Behind each reserved pool, by its address."""

    def set_threads(
        self, count: int, *, packed: bool = False, nodes: Sequence[NodeThreads] = ()
    ) -> None:
        super().set_threads(1 if packed else count)
        cpu.set_num_threads(count, nodes)

    def facts(self) -> DeviceFacts:
        return cpu.device_facts()

    def memory_used(self) -> int:
        return anonymous_bytes()

    def synchronize(self) -> None:
        pass

    def reserve(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """As `Device.reserve`: zeros that take memory only when written, page by page.

        torch.zeros would touch every page now; torch.empty may hand out recycled memory, and a
        stale NaN in a KV block survives the product with an attention weight of 0.
        """
        numel = torch.Size(shape).numel()
        if numel == 0:
            return torch.empty(shape, dtype=dtype)
        pages = _pages(numel * dtype.itemsize)
        pool = torch.frombuffer(pages, dtype=dtype).view(shape)
        self._pages[pool.data_ptr()] = pages
        return pool

    def discard(self, pool: torch.Tensor) -> None:
        """As `Device.discard`. Its address stays; the system takes the pages, and gives zeros for
        them (Linux)."""
        pages = self._pages.get(pool.data_ptr())
        if pages is not None:
            pages.madvise(mmap.MADV_DONTNEED)

    def restore(self, pool: torch.Tensor) -> None:
        """As `Device.restore`: the system gives pages of zeros by itself."""
        pass


class CudaDevice(Device):
    name = "cuda"
    runs_ahead = True

    def __init__(self, index: int = 0):
        self.torch_device = torch.device("cuda", index)
        self.count = torch.cuda.device_count()
        if index >= self.count:
            raise ConfigError(
                f"There is no GPU {index}; torch finds {self.count}. Lower --tensor-parallel-size "
                "or --data-parallel-size, or check CUDA_VISIBLE_DEVICES."
            )
        # Kernels run on the current device, whatever their tensors are on.
        torch.cuda.set_device(index)
        if (unfit := torch_problem(index)) is not None:
            raise MissingLibraryError(unfit)
        if find_spec("triton") is not None:
            from pagoda.runtime.triton.kernel_log import KernelLog
            from pagoda.runtime.triton.launchers import check_launchers

            check_launchers()
            self.kernel_log = KernelLog()

    def facts(self) -> DeviceFacts:
        free, total = torch.cuda.mem_get_info(self.torch_device)
        major, minor = torch.cuda.get_device_capability(self.torch_device)
        return DeviceFacts(
            device=self.name,
            total_memory=total,
            free_memory=free,
            num_threads=usable_threads(),
            supports_bf16=major >= 8,
            name=torch.cuda.get_device_name(self.torch_device),
            capability=10 * major + minor,
            host_memory=cpu_facts().free_memory,
            packed_storages=ops.packed_storages(self.name),
            attention_libraries=attention_libraries(10 * major + minor),
        )

    def memory_used(self) -> int:
        return torch.cuda.memory_reserved(self.torch_device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def fetch(self, *tensors: torch.Tensor) -> Fetch:
        copies = [torch.empty(x.shape, dtype=x.dtype, pin_memory=True) for x in tensors]
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(self.torch_device))

        def wait() -> list[np.ndarray]:
            done.synchronize()
            return [copy.numpy() for copy in copies]

        return wait

    def give_back(self) -> None:
        torch.cuda.empty_cache()

    def peak_of(self, work: Callable[[], object]) -> int | None:
        self.synchronize()
        before = torch.cuda.memory_allocated(self.torch_device)
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        work()
        self.synchronize()
        return torch.cuda.max_memory_allocated(self.torch_device) - before

    def graph_maker(self) -> Callable[[], GraphMaker] | None:
        return lambda: CudaGraphs(self.torch_device)

    def host_memory(self, nbytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Device.host_memory`: registered memory, for what torch would pin is rounded up to a
        power of two."""
        memory, _ = super().host_memory(nbytes)
        runtime = torch.cuda.cudart()
        torch.cuda.check_error(
            runtime.cudaHostRegister(memory.data_ptr(), nbytes, _PORTABLE | _MAPPED)
        )
        return memory, torch.as_tensor(_Registered(memory), device=self.torch_device)

    def tile_tuning(self, model: "Model", most_tokens: int) -> "TileTuning | None":
        if find_spec("triton") is None:
            return None
        from pagoda.runtime.triton.tiles import tile_tuning

        return tile_tuning(model, self, most_tokens)

    def take_tiles(self, rows: list[list[bool | str | int]]) -> None:
        """As `Device.take_tiles`."""
        from pagoda.kernels.triton.products import forms

        forms.take(rows)

    def use(self) -> None:
        torch.cuda.set_device(self.torch_device)

    def compile_ahead(
        self, model: "Model", groups: Sequence[GroupSpec], limits: "StepLimits"
    ) -> None:
        if find_spec("triton") is not None:
            from pagoda.runtime.triton.compile_ahead import compile_ahead

            compile_ahead(model, self, groups, limits)

    def reserve(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """As `Device.reserve`."""
        return torch.zeros(shape, dtype=dtype, device=self.torch_device)

    def discard(self, pool: torch.Tensor) -> None:
        """As `Device.discard`; its address stays."""
        pool.untyped_storage().resize_(0)
        torch.cuda.empty_cache()

    def restore(self, pool: torch.Tensor) -> None:
        """As `Device.restore`."""
        pool.untyped_storage().resize_(pool.nbytes)
        pool.zero_()


def _pages(nbytes: int) -> mmap.mmap:
    """Memory of the system's, not touched yet; whole pages of it."""
    return mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class _Registered:
    """The host's memory as torch takes memory of others (the CUDA array interface, version 2). On
    Linux the device sees it at the same address."""

    def __init__(self, memory: torch.Tensor):
        self.__cuda_array_interface__ = {
            "shape": (memory.nbytes,),
            "typestr": "|u1",
            "data": (memory.data_ptr(), False),
            "version": 2,
        }
        self._memory = memory

    def __del__(self) -> None:
        runtime = torch.cuda.cudart()
        runtime.cudaHostUnregister(self._memory.data_ptr())


def torch_problem(index: int) -> str | None:
    """Why the torch that is installed cannot compute on the GPU with this `index`, and what to
    install; None where it can."""
    architectures = torch.cuda.get_arch_list()
    if not architectures:
        return None
    major, minor = torch.cuda.get_device_capability(index)
    gpu = torch.cuda.get_device_name(index)
    return gpu_build.problem(architectures, 10 * major + minor, gpu, torch.__version__)


def has_gpu() -> bool:
    """Whether torch can use one."""
    return torch.cuda.is_available()


def make_device(name: DeviceName, index: int = 0) -> Device:
    """The CPU, or the GPU with this `index`; ConfigError where there is none."""
    if name == "cpu":
        return CpuDevice()
    if not has_gpu():
        raise ConfigError(
            "--device cuda was asked for, but torch finds no usable NVIDIA GPU here; check the "
            "driver and that torch is a CUDA build, or use --device cpu."
        )
    return CudaDevice(index)
