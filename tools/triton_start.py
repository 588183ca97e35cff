"""How long the kernels of whole models take to compile for a GPU that is not there.

    python tools/triton_start.py                    # three models, sm_80 and sm_90, one process
    python tools/triton_start.py --models gpt --targets 90 --jobs 8
    python tools/triton_start.py --report           # compiles nothing: the table of what is known

The kernels are those that an engine compiles before it is ready (`runtime/triton/needed.py`).
Nothing that was compiled before is used. Each kernel's row is written as soon as it is there, so
that an interrupted run goes on where it was; rows of kernels that have changed are made anew.
Seconds are the processor's, of Triton and of ptxas. What N processes would take follows from them:
each takes the next kernel when it is done with one.
"""

import argparse
import csv
import hashlib
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from heapq import heapreplace
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import triton  # noqa: E402 - behind the path
from triton import knobs  # noqa: E402 - behind the path
from triton.backends.compiler import GPUTarget  # noqa: E402 - behind the path
from triton.runtime import driver  # noqa: E402 - behind the path

from pagoda.kernels.triton.target import assuming  # noqa: E402 - behind the path
from pagoda.runtime.triton.needed import Launch, needed  # noqa: E402 - behind the path
from tools.triton_models import LIMITS, MODELS, weightless_model  # noqa: E402 - behind the path

ROWS = ROOT / "build" / "triton_start.csv"
_PROCESSES = (1, 4, 8)
"""That the table has columns for."""


class Row(NamedTuple):
    model: str
    target: int
    kernel: str
    mark: str
    """A hash of Triton's version, the kernel's code and the launch."""
    cpu: float
    wall: float


class PlayedDriver:
    """What Triton asks of a GPU before it compiles; each model has one of its own, for kernels are
    compiled once for a GPU."""

    def __init__(self, target: int, model: str = ""):
        self._target, self._model = target, model

    def get_current_device(self) -> tuple[int, str]:
        return self._target, self._model

    def get_current_stream(self, device: object) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._target, 32)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=[""], help="parts of their names")
    parser.add_argument("--targets", nargs="*", type=int, default=[80, 90])
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile")
    parser.add_argument("--rows", type=Path, default=ROWS, help="where rows are kept")
    parser.add_argument("--report", action="store_true", help="only the table")
    options = parser.parse_args()
    models = [name for name in MODELS if any(part in name for part in options.models)]
    wanted = {(m, t): list(_marked(m, t)) for m in models for t in options.targets}
    known = {(row.model, row.target, row.mark): row for row in _read(options.rows)}
    if not options.report:
        missing = [(*of, m) for of, marks in wanted.items() for m in marks if (*of, m) not in known]
        for row in _compiled(missing, options.jobs):
            known[row.model, row.target, row.mark] = row
            _append(options.rows, row)
    _print(wanted, known)
    return 0


@cache
def _marked(model: str, target: int) -> dict[str, Launch]:
    """What the model launches, by mark."""
    driver.set_active(PlayedDriver(target, model))
    with assuming(target):
        launches = needed(*weightless_model(MODELS[model]), LIMITS)
    return {_mark(launch): launch for launch in launches}


def _mark(launch: Launch) -> str:
    told = (triton.__version__, launch.kernel.cache_key, launch.key)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:12]


def _compiled(missing: Sequence[tuple[str, int, str]], jobs: int) -> Iterator[Row]:
    """One after the other, as they are done."""
    if not missing:
        return
    begun, spent = time.perf_counter(), 0.0
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for count, row in enumerate(pool.map(_compile, missing), 1):
            spent += row.cpu
            print(f"{count}/{len(missing)}", *row[:3], f"{row.cpu:.1f} s", sep="\t", flush=True)
            yield row
    wall = time.perf_counter() - begun
    print(f"{len(missing)} kernels in {spent:.0f} s of CPU and {wall:.0f} s with {jobs} processes")


def _compile(what: tuple[str, int, str]) -> Row:
    model, target, mark = what
    launch = _marked(model, target)[mark]
    driver.set_active(PlayedDriver(target, model))
    with tempfile.TemporaryDirectory() as folder, knobs.cache.scope():
        knobs.cache.dir = folder
        begun, before = time.perf_counter(), _cpu_seconds()
        launch.compile()
        cpu, wall = _cpu_seconds() - before, time.perf_counter() - begun
    return Row(model, target, launch.name, mark, round(cpu, 2), round(wall, 2))


def _cpu_seconds() -> float:
    """Of this process and of the ptxas that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _read(path: Path) -> Iterator[Row]:
    if path.exists():
        with path.open(newline="") as file:
            for model, target, kernel, mark, cpu, wall in csv.reader(file):
                yield Row(model, int(target), kernel, mark, float(cpu), float(wall))


def _append(path: Path, row: Row) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        csv.writer(file).writerow(row)


def _print(
    wanted: dict[tuple[str, int], list[str]], known: dict[tuple[str, int, str], Row]
) -> None:
    print(f"\nTriton {triton.__version__}; seconds of a processor\n")
    columns = "".join(f" {count} processes |" for count in _PROCESSES[1:])
    print(f"| model | GPU | kernels | all |{columns} slowest kernel |")
    print("|---|---|---:|" + "---:|" * len(_PROCESSES) + "---|")
    for (model, target), marks in wanted.items():
        rows = [known[model, target, mark] for mark in marks if (model, target, mark) in known]
        count = f"{len(marks)}" if len(rows) == len(marks) else f"{len(rows)} of {len(marks)}"
        slowest = max(rows, key=lambda row: row.cpu, default=None)
        worst = "" if slowest is None else f"`{slowest.kernel}`, {slowest.cpu:.1f}"
        times = "".join(f" {_makespan(rows, jobs):.0f} |" for jobs in _PROCESSES)
        print(f"| {model} | sm_{target} | {count} |{times} {worst} |")


def _makespan(rows: Sequence[Row], jobs: int) -> float:
    """When the last of `jobs` processes is done, which take the rows in turn."""
    done = [0.0] * jobs
    for row in rows:
        heapreplace(done, done[0] + row.cpu)
    return max(done)


if __name__ == "__main__":
    sys.exit(main())
