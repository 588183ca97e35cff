"""An NVML library in Python: called with ctypes' arguments, it writes the bytes that NVML's
reference describes."""

import ctypes
import struct
from collections.abc import Callable
from typing import Any

NOT_SUPPORTED, INSUFFICIENT_SIZE = 3, 7
NOT_AVAILABLE = 2**64 - 1
_HANDLES = 0x1000  # the handle of GPU 0


def _write(target: Any, data: bytes) -> int:
    ctypes.memmove(ctypes.addressof(getattr(target, "_obj", target)), data, len(data))
    return 0


def _read_uint(source: Any) -> int:
    return struct.unpack("I", ctypes.string_at(ctypes.addressof(source._obj), 4))[0]


class FakeNvml:
    """`gpus` are dicts: name, uuid, capability, memory (total, free, used), and where it has them
    compute and graphics (lists of pid and bytes), links (list of 0 and 1), reasons, errors.
    `codes` makes functions fail; those in `missing` do not exist, as in an old driver."""

    def __init__(
        self,
        *gpus: dict[str, Any],
        driver: str = "580.95.05",
        cuda: int = 13000,
        codes: dict[str, int] | None = None,
        missing: tuple[str, ...] = (),
    ):
        self.shut_down = False
        functions: dict[str, Callable[..., int]] = {
            "nvmlInitWithFlags": lambda flags: 0,
            "nvmlShutdown": self._shutdown,
            "nvmlSystemGetDriverVersion": lambda out, size: _write(out, driver.encode() + b"\0"),
            "nvmlSystemGetCudaDriverVersion_v2": lambda out: _write(out, struct.pack("i", cuda)),
            "nvmlDeviceGetCount_v2": lambda out: _write(out, struct.pack("I", len(gpus))),
            "nvmlDeviceGetHandleByIndex_v2": lambda index, out: _write(
                out, struct.pack("P", _HANDLES + index.value)
            ),
        }
        for name, answer in _DEVICE_CALLS.items():

            def call(handle: Any, *rest: Any, answer: Callable[..., int] = answer) -> int:
                index = ctypes.cast(handle, ctypes.c_void_p).value - _HANDLES
                return answer(gpus[index], *rest)

            functions[name] = call
        for name, code in (codes or {}).items():
            functions[name] = lambda *arguments, code=code: code
        for name, function in functions.items():
            if name not in missing:
                setattr(self, name, function)

    def _shutdown(self) -> int:
        self.shut_down = True
        return 0


def _text(key: str) -> Callable[..., int]:
    return lambda gpu, out, size: _write(out, gpu[key].encode() + b"\0")


def _capability(gpu: dict[str, Any], major: Any, minor: Any) -> int:
    _write(major, struct.pack("i", gpu["capability"][0]))
    return _write(minor, struct.pack("i", gpu["capability"][1]))


def _memory(gpu: dict[str, Any], out: Any) -> int:
    if gpu["memory"] is None:
        return NOT_SUPPORTED
    return _write(out, struct.pack("QQQ", *gpu["memory"]))  # total, free, used


def _processes(key: str) -> Callable[..., int]:
    def answer(gpu: dict[str, Any], count: Any, rows: Any) -> int:
        found, room = gpu.get(key, []), _read_uint(count)
        _write(count, struct.pack("I", len(found)))
        if len(found) > room:
            return INSUFFICIENT_SIZE
        # pid, used memory, and the two instances of MIG, each struct aligned to 8.
        data = [struct.pack("I4xQII", pid, used, 0xFFFFFFFF, 0xFFFFFFFF) for pid, used in found]
        return _write(rows, b"".join(data)) if found else 0

    return answer


def _link(gpu: dict[str, Any], link: Any, out: Any) -> int:
    links = gpu.get("links", [])
    number = getattr(link, "value", link)  # a C call takes either
    return _write(out, struct.pack("I", links[number])) if number < len(links) else NOT_SUPPORTED


def _number(key: str) -> Callable[..., int]:
    return lambda gpu, *rest: _write(rest[-1], struct.pack("Q", gpu.get(key, 0)))


_DEVICE_CALLS: dict[str, Callable[..., int]] = {
    "nvmlDeviceGetName": _text("name"),
    "nvmlDeviceGetUUID": _text("uuid"),
    "nvmlDeviceGetCudaComputeCapability": _capability,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes("compute"),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": _processes("graphics"),
    "nvmlDeviceGetNvLinkState": _link,
    "nvmlDeviceGetCurrentClocksThrottleReasons": _number("reasons"),
    "nvmlDeviceGetTotalEccErrors": _number("errors"),
}
