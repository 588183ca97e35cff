"""What the GPUs of this machine do now."""

import pynvml

from pagoda.base.units import format_bytes
from pagoda.base.words import tell


def gpu_lines() -> list[str]:
    """A line for each, and an empty one behind them; none without a GPU or its driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        lines = [_line(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()
    return [*lines, ""] if lines else []


def _line(index: int) -> str:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    name = pynvml.nvmlDeviceGetName(handle)
    busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    used, total = format_bytes(memory.used), format_bytes(memory.total)
    return tell(
        "GPU {index} {name}: {busy}% busy, {used} of {total}",
        index=index, name=name, busy=busy, used=used, total=total,
    )  # fmt: skip
