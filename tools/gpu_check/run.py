"""Runs phases as processes, and keeps what each has found whatever becomes of it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.gpu_check.found import read, write
from tools.gpu_check.plan import ROOT, Phase, Stage

Record = dict[str, Any]
"""`found`, `seconds`, and `fault` where the phase did not end well."""
_POLL = 0.05
_END_SECONDS = 5.0
_LOG_LINES = 8


@dataclass
class _Running:
    phase: Phase
    process: "subprocess.Popen[bytes]"
    begun: float
    bound: float
    """Seconds."""


@dataclass(frozen=True)
class Runner:
    out: Path
    until: float
    """time.time() at which all is over."""
    play: bool = False
    faults: Mapping[str, str] | None = None
    """What tests have phases do, by their names."""
    tell: Callable[[str], None] = print

    def run(self, stages: tuple[Stage, ...]) -> dict[str, Record]:
        """What became of each phase. A file for each is there when it has ended, and one of all."""
        self.out.mkdir(parents=True, exist_ok=True)
        records: dict[str, Record] = {}
        for stage in stages:
            for name, record in self._stage(stage):
                records[name] = record
                write(self.out / f"{_file(name)}.json", record)
                write(self.out / "gpu_check.json", records)
                self.tell(f"{name}: {record['seconds']:.0f} s, {record.get('fault', 'done')}")
        return records

    def _stage(self, stage: Stage) -> Iterator[tuple[str, Record]]:
        waiting, running = list(stage.phases), list[_Running]()
        until = min(self.until, time.time() + stage.seconds)
        try:
            while waiting or running:
                while waiting and len(running) < stage.at_once:
                    phase = waiting.pop(0)
                    left = until - time.time()
                    if left < phase.least:
                        fault = f"not begun, for {max(0, left):.0f} s were left"
                        yield phase.name, {"found": {}, "seconds": 0.0, "fault": fault}
                    else:
                        running.append(self._start(phase, min(phase.seconds, left)))
                for one in list(running):
                    if (record := self._ended(one)) is not None:
                        running.remove(one)
                        yield one.phase.name, record
                time.sleep(_POLL)
        finally:
            for one in running:
                _kill(one.process)

    def _start(self, phase: Phase, seconds: float) -> _Running:
        path = self.out.resolve() / _file(phase.name)
        Path(f"{path}.part").unlink(missing_ok=True)
        command = [
            sys.executable, "-m", "tools.gpu_check.child", phase.work, *phase.args,
            "--file", f"{path}.part", "--until", str(time.time() + seconds),
        ]  # fmt: skip
        if self.play:
            command += ["--play"]
        if self.faults and phase.name in self.faults:
            command += ["--fault", self.faults[phase.name]]
        with open(f"{path}.log", "wb") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=_environment(), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        return _Running(phase, process, time.perf_counter(), seconds)

    def _ended(self, one: _Running) -> Record | None:
        """None while it runs and may."""
        status, seconds = one.process.poll(), time.perf_counter() - one.begun
        if status is None and seconds < one.bound:
            return None
        _kill(one.process)  # its children, too
        path = self.out / _file(one.phase.name)
        part = Path(f"{path}.part")
        found = read(part)
        part.unlink(missing_ok=True)
        record: Record = {"found": found, "seconds": round(seconds, 1)}
        fault = found.pop("fault", None)
        if fault is None and status is None:
            fault = f"out of time: ended behind {one.bound:.0f} s"
        elif fault is None and status:
            how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            fault = f"its process ended with {how}"
        if fault is not None:
            record["fault"] = fault
            log = Path(f"{path}.log").read_text(errors="replace").splitlines()
            record["log"] = log[-_LOG_LINES:]
        return record


def _file(name: str) -> str:
    return name.replace(" ", "-").removesuffix(".py")


def _environment() -> dict[str, str]:
    """Kernels, and what engines measure, are kept from one check to the next."""
    cache = ROOT / ".cache" / "gpu-check"
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    defaults = {"TRITON_CACHE_DIR": str(cache / "triton"), "PAGODA_CACHE": str(cache / "pagoda")}
    return {**defaults, **os.environ, "PYTHONPATH": path.rstrip(os.pathsep)}


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """It and its children. One that the driver holds is left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        return
