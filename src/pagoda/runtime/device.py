"""Where the model runs: types, threads, memory. The only place that asks torch.cuda anything."""

import mmap
from abc import ABC, abstractmethod

import numpy as np
import torch

from pagoda.base.errors import ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.base.log import get_logger
from pagoda.base.machine import anonymous_bytes, usable_threads
from pagoda.kernels import cpu, ops

logger = get_logger(__name__)

_DTYPES = {
    "half": torch.float16,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float": torch.float32,
    "float32": torch.float32,
    "int8": torch.int8,
}


class Device(ABC):
    """One place to compute on; `make_device` chooses it."""

    name: str
    """`cpu` or `cuda`."""
    torch_device: torch.device

    def dtype(self, name: str) -> torch.dtype:
        """The torch type of a name as in `--dtype` or `--kv-cache-dtype`; ConfigError for an
        unknown one.

        `auto` is bfloat16 where the device has it, else float16.
        """
        if name == "auto":
            name = "bfloat16" if self.facts().supports_bf16 else "float16"
            logger.info("dtype auto is %s on %s.", name, self.name)
        if name not in _DTYPES:
            raise ConfigError(f"dtype {name!r} is not known; choose one of {', '.join(_DTYPES)}.")
        return _DTYPES[name]

    def set_threads(self, count: int, *, packed: bool = False) -> None:
        """CPU threads that compute in this process: torch's, or where weights are packed for
        native kernels theirs, for idle threads of one pool slow those of the other."""
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

    @abstractmethod
    def reserve(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of zeros for a long-lived pool."""


class CpuDevice(Device):
    name = "cpu"
    torch_device = torch.device("cpu")

    def set_threads(self, count: int, *, packed: bool = False) -> None:
        super().set_threads(1 if packed else count)
        cpu.set_num_threads(count)

    def facts(self) -> DeviceFacts:
        return cpu.device_facts()

    def memory_used(self) -> int:
        return anonymous_bytes()

    def synchronize(self) -> None:
        pass

    def reserve(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Zeros that take memory only when written, page by page.

        torch.zeros would touch every page now; torch.empty may hand out recycled memory, and a
        stale NaN in a KV block survives the product with an attention weight of 0.
        """
        numel = torch.Size(shape).numel()
        if numel == 0:
            return torch.empty(shape, dtype=dtype)
        pages = mmap.mmap(-1, numel * dtype.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(pages, dtype=dtype).view(shape)


class CudaDevice(Device):
    name = "cuda"

    def __init__(self, index: int = 0):
        self.torch_device = torch.device("cuda", index)

    def facts(self) -> DeviceFacts:
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return DeviceFacts(
            device=self.name,
            total_memory=total,
            free_memory=free,
            num_threads=usable_threads(),
            supports_bf16=torch.cuda.get_device_capability(self.torch_device) >= (8, 0),
            name=torch.cuda.get_device_name(self.torch_device),
            packed_storages=ops.packed_storages(self.name),
        )

    def memory_used(self) -> int:
        return torch.cuda.memory_reserved(self.torch_device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def reserve(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.torch_device)


def to_tensor(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """A numpy array on the device; on the CPU it keeps the array's memory where it can."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


def make_device(name: str) -> Device:
    """`cpu`, `cuda`, or `auto`: the GPU if torch can use one.

    ConfigError for `cuda` where there is none.
    """
    has_gpu = torch.cuda.is_available()
    if name == "auto":
        name = "cuda" if has_gpu else "cpu"
        logger.info("Device auto is %s.", name)
    if name == "cpu":
        return CpuDevice()
    if name != "cuda":
        raise ConfigError(f"Device {name!r} is not known; choose auto, cpu or cuda.")
    if not has_gpu:
        raise ConfigError(
            "--device cuda was asked for, but torch finds no usable NVIDIA GPU here; check the "
            "driver and that torch is a CUDA build, or use --device cpu."
        )
    return CudaDevice()
