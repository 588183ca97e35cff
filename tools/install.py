"""What `make install` does after torch: pip installs Pagoda, whose kernels are compiled for this
machine's CPU, and a line says how far that is. All that pip says is in build/install.log."""

import compileall
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).parents[1]
LOG = ROOT / "build/install.log"
_COMPILED = re.compile(r"\s*\[(\d+)/(\d+)\] (?:Building|Linking)")
_STAGES = (
    (re.compile(r"\s*(?:Collecting|Downloading|Requirement already)"), "Fetching packages"),
    (re.compile(r"\s*Installing build dependencies"), "Fetching build tools"),
    (re.compile(r"\s*\*\*\* Configuring CMake"), "Preparing to compile"),
    (re.compile(r"\s*Installing collected packages"), "Installing packages"),
)


def stages(lines: Iterable[str]) -> Iterable[str]:
    """What is under way, whenever that changes."""
    last = ""
    for line in lines:
        found = _stage(line)
        if found and found != last:
            yield (last := found)


def _stage(line: str) -> str:
    if compiled := _COMPILED.match(line):
        return f"Compiling kernels, {compiled[1]} of {compiled[2]}"
    return next((stage for pattern, stage in _STAGES if pattern.match(line)), "")


def main() -> int:
    """`install.py [EXTRAS]`: with the extras of that list beside."""
    extras = f"[{sys.argv[1]}]" if len(sys.argv) > 1 else ""
    options = [
        "--disable-pip-version-check",
        "-v",
        "--progress-bar",
        "off",
        "--no-compile",
        "-c",
        "constraints.txt",
    ]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        *options,
        "-e",
        "./agent[mcp]",
        "-e",
        f".{extras}",
    ]
    environment = dict(os.environ)
    environment["CMAKE_ARGS"] = f"-DPAGODA_ISAS=native {environment.get('CMAKE_ARGS', '')}"
    LOG.parent.mkdir(exist_ok=True)
    with (
        LOG.open("w", buffering=1) as log,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        _show(stages(_logged(process.stdout, log)))
    code = process.returncode
    if code:
        print("".join(LOG.read_text().splitlines(keepends=True)[-40:]))
        print(f"Installing failed; all that pip said is in {LOG.relative_to(ROOT)}.")
        return code
    _show(compiling(Path(sysconfig.get_path("purelib"))))
    return 0


def compiling(folder: Path) -> Iterable[str]:
    """Bytecode of all Python modules there. pip would make it, too, but on one core only."""
    yield "Compiling Python modules"
    compileall.compile_dir(folder, quiet=2, workers=0)


def _logged(lines: Iterable[str], log: TextIO) -> Iterable[str]:
    for line in lines:
        log.write(line)
        yield line


def _show(stages: Iterable[str]) -> None:
    """In one line of a terminal, which changes; elsewhere a line each."""
    is_terminal = sys.stdout.isatty()
    for stage in stages:
        print(
            f"\r  {stage:<60}" if is_terminal else f"  {stage}",
            end="" if is_terminal else "\n",
            flush=True,
        )
    if is_terminal:
        print("\r" + " " * 64, end="\r", flush=True)


if __name__ == "__main__":
    sys.exit(main())
