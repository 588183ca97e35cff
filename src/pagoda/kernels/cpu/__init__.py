"""The native kernels on a CPU: one set of them, on one pool of threads, per process.

Whoever only asks what they can do need not wait for torch.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagoda.base import env
from pagoda.base.errors import ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.base.log import get_logger
from pagoda.base.machine import anonymous_bytes, cpu_facts, usable_threads
from pagoda.kernels.cpu.siblings import measured, worth_starting
from pagoda.planner.resolved import NodeThreads

if TYPE_CHECKING:
    from pagoda.kernels.cpu.ops import CpuOps

try:
    import pagoda.kernels.cpu._native as _native
except ImportError:  # installed without a compiler
    _native = None

log = get_logger(__name__)

_cached: dict[str, Any] = {}


def native() -> Any | None:
    """The `_native.Native` of this process, with as many threads as it may use until
    `set_num_threads`; None where the kernels were not built (which the log says once) or
    PAGODA_CPU_ISA is `none`.

    ConfigError if PAGODA_CPU_ISA names an instruction set that this build does not know.
    """
    if "native" not in _cached:
        _cached["native"] = _make(usable_threads())
    return _cached["native"]


def native_ops() -> "CpuOps | None":
    """The native ops on tensors, on `native()`'s threads; None where that is."""
    current = native()
    if current is None:
        return None
    if "ops" not in _cached:
        from pagoda.kernels.cpu.ops import CpuOps

        _cached["ops"] = CpuOps(current)
    found: CpuOps = _cached["ops"]
    return found


def set_num_threads(count: int, nodes: Sequence[NodeThreads] = ()) -> None:
    """Run the kernels on so many threads from now on; no kernel may be running. With `nodes`, whose
    threads they are: each node then reads the weights in its own memory, and these are loaded
    there."""
    current = native()
    if current is None:
        return
    if current.num_threads != count or current.num_nodes != max(1, len(nodes)):
        _cached["native"] = _make(list(nodes) or count)
        _cached.pop("ops", None)


def instruction_sets() -> tuple[str, ...]:
    """Sets that the kernels have and this CPU runs, best first; none where they were not built."""
    return () if _native is None else tuple(_native.INSTRUCTION_SETS)


def device_facts() -> DeviceFacts:
    """The CPU as it is now, and what its kernels can do. What this process takes itself counts as
    free, for a plan is of a whole engine: it says the same however far one has come."""
    facts = cpu_facts()
    threads = usable_threads()
    if facts.num_threads < threads and native() is not None:
        facts = replace(facts, num_threads=_worth_starting(facts.num_threads, threads))
    free = min(facts.total_memory, facts.free_memory + anonymous_bytes())
    return replace(facts, free_memory=free, packed_storages=packed_storages())


def activation(name: str) -> Any:
    """The `_native.Activation` of that name; only where `native()` is there."""
    return getattr(_native.Activation, name)


def float_type(dtype: object) -> Any:
    """The `_native.FloatType` of a torch dtype; only where `native()` is there."""
    return getattr(_native.FloatType, str(dtype).removeprefix("torch."))


def packed_matrix(storage: str, rows: int, columns: int) -> Any:
    """Room for a `_native.PackedMatrix`; only where `native()` is there."""
    _fill_grid(storage)
    return _native.PackedMatrix(storage, rows, columns)


def mapped_matrix(storage: str, rows: int, columns: int, path: Path, offset: int) -> Any:
    """A `_native.PackedMatrix` in a file, from `offset` on; only where `native()` is there. OSError
    where it cannot be mapped."""
    _fill_grid(storage)
    return _native.PackedMatrix(storage, rows, columns, str(path), offset)


def panel_layout() -> int:
    """The number of the layout of a packed matrix's bytes; only where `native()` is there."""
    layout: int = _native.PANEL_LAYOUT
    return layout


def panel_rows() -> int:
    """Rows of a packed matrix that lie together; only where `native()` is there."""
    count: int = _native.PANEL_ROWS
    return count


def packed_storages() -> frozenset[str]:
    """Storage formats that a packed matrix keeps as they are; none where `native()` is None."""
    return frozenset() if native() is None else frozenset(_native.PACKED_STORAGES)


@cache
def _fill_grid(storage: str) -> None:
    """Hand over the codewords of a format that has any; for others torch is not imported."""
    if not storage.startswith(("IQ1", "IQ2", "IQ3")):
        return
    from pagoda.kernels.ref.dequant.grids import GRIDS, grid

    levels = grid(GRIDS[storage]).char()
    _native.fill_grid(storage, levels.data_ptr(), levels.numel())


@cache
def _worth_starting(cores: int, threads: int) -> int:
    return worth_starting(cores, threads, partial(measured, _make))


def _make(threads: int | list[NodeThreads]) -> Any | None:
    """Their number, or where they are."""
    isa = env.get("PAGODA_CPU_ISA")
    if isa == "none":
        return None
    if _native is None:
        log.warning(
            "Pagoda was installed without its native kernels and computes with torch, several "
            "times slower. Install a C++ compiler (Debian: apt install g++) and Pagoda again."
        )
        return None
    if isa is None:
        _warn_of_missing_set()
    try:
        return _native.Native(threads, isa or "")
    except ValueError as error:
        raise ConfigError(
            f"The variable PAGODA_CPU_ISA is {isa!r}: this build has no such instruction set; "
            f"write {', '.join(_native.INSTRUCTION_SETS)} or none."
        ) from error


@cache
def _warn_of_missing_set() -> None:
    missing = _native.MISSING_INSTRUCTION_SET
    if missing:
        log.warning(
            "Pagoda's kernels were compiled for another CPU: %s, which this one runs, would be "
            "faster than %s. Install Pagoda again here (in a clone: make clean install).",
            missing,
            _native.INSTRUCTION_SETS[0],
        )
