"""All harnesses in turn, and what they did: `python -m fuzz [NAME ...] --seconds S`.

Under Atheris where it is installed, else from a seed; `native` is the kernels' driver. Prints a
table in Markdown at the end; what fails lies in build/fuzz/findings.
"""

import argparse
import importlib.util
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fuzz import native
from fuzz.registry import NAMES

FINDINGS = Path("build/fuzz/findings")
NATIVE = "native"


@dataclass(frozen=True)
class Volume:
    """What a harness did."""

    name: str
    executions: int
    coverage: str
    """Edges of Python code that Atheris saw; a dash where nothing counts them."""
    failures: int
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join((*NAMES, NATIVE)))
    parser.add_argument("--seconds", type=float, default=300, help="of each harness")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    unknown = set(options.names) - {*NAMES, NATIVE}
    if unknown:
        parser.error(f"there is no harness {', '.join(unknown)}; there are {', '.join(NAMES)}")
    FINDINGS.mkdir(parents=True, exist_ok=True)
    volumes = []
    for name in options.names or (*NAMES, NATIVE):
        print(f"== {name}: {options.seconds:g} s", flush=True)
        if name == NATIVE:
            volumes += [
                Volume(f"native, {isa}", done, "-", failed, took)
                for isa, done, failed, took in native.run(options.seconds, options.seed)
            ]
        else:
            volumes.append(_run(name, options.seconds, options.seed))
    print(_table(volumes))
    return 1 if any(volume.failures for volume in volumes) else 0


def _run(name: str, seconds: float, seed: int) -> Volume:
    guided = importlib.util.find_spec("atheris") is not None
    begun, log = time.monotonic(), []
    with subprocess.Popen(
        _guided(name, seconds, seed) if guided else _seeded(name, seconds, seed),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    ) as child:  # fmt: skip
        assert child.stdout is not None
        for line in child.stdout:
            log.append(line)
            # libFuzzer tells of progress at powers of two; the rest is for whoever looks into it.
            if not guided or "pulse" in line or "rror" in line or "SUMMARY" in line:
                print(line, end="", flush=True)
    text = "".join(log)
    if child.returncode not in (0, 1) or guided and child.returncode:
        print("".join(log[-60:]))
    executions = _last(r"(?:number_of_executed_units|executions): +(\d+)", text)
    if executions is None:  # a failure comes before libFuzzer's statistics
        executions = _last(r"^#(\d+)\t", text) or "0"
    failures = int(_last(r"failures: (\d+)", text) or child.returncode != 0)
    coverage = _last(r"cov: (\d+)", text) or "-"
    return Volume(name, int(executions), coverage, failures, time.monotonic() - begun)


def _guided(name: str, seconds: float, seed: int) -> list[str]:
    return [sys.executable, "-m", "fuzz.guided", name, f"-max_total_time={seconds:.0f}",
            f"-seed={seed % 2**31}", f"-artifact_prefix={FINDINGS}/{name}-"]  # fmt: skip


def _seeded(name: str, seconds: float, seed: int) -> list[str]:
    return [sys.executable, "-m", "fuzz.seeded", name, "--seconds", str(seconds),
            "--seed", str(seed), "--findings", str(FINDINGS)]  # fmt: skip


def _last(pattern: str, text: str) -> str | None:
    found: list[str] = re.findall(pattern, text, re.MULTILINE)
    return found[-1] if found else None


def _table(volumes: list[Volume]) -> str:
    lines = ["| harness | executions | seconds | edges | failures |", "|---|---:|---:|---:|---:|"]
    lines += [
        f"| {v.name} | {v.executions:,} | {v.seconds:.0f} | {v.coverage} | {v.failures} |"
        for v in volumes
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
