"""The C++ kernels under ASan and UBSan: builds the driver, runs it, reads what it says."""

import itertools
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fuzz.registry import ROOT, corpus, regressions

_CSRC = ROOT.parent / "src/pagoda/kernels/cpu/csrc"
_BUILD = ROOT.parent / "build/fuzz/native"
_BATCH = 500
"""Inputs of one process; its seed names them."""
# Those of CMakeLists.txt that no optimizer needs. Without optimizing, all kernels of a set compile
# in seconds instead of minutes, and checks stand at the places that the source names.
_FLAGS = ("-std=c++20", "-O0", "-g1", "-fno-omit-frame-pointer", "-ffp-contract=off",
          "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", "-pthread",
          "-fsanitize=address,undefined,float-cast-overflow",
          "-fno-sanitize-recover=all")  # fmt: skip
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vnni", "bf16")))
# By instruction set: its family, its flags, and the CPU's word for the last thing that it needs.
_ISAS: dict[str, tuple[str, Sequence[str], str]] = {
    "generic": ("GENERIC", (), ""),
    "avx2": ("AVX2", _AVX2, "f16c"),
    "avx512": ("AVX512", _AVX512, "avx512_bf16"),
}


class FoundError(Exception):
    """The driver ended; the message is what it said, the input in hexadecimal among it."""


def isas() -> list[str]:
    """Those that this machine runs, `generic` first."""
    if platform.machine() != "x86_64":
        return ["generic"]
    known = Path("/proc/cpuinfo").read_text().split()
    return [name for name, (_, _, needs) in _ISAS.items() if not needs or needs in known]


def compiler() -> str | None:
    """A compiler that has the sanitizers' libraries, or None."""
    for name in ("g++", "clang++"):
        if shutil.which(name) and _has_sanitizers(name):
            return name
    return None


def _has_sanitizers(name: str) -> bool:
    command = [name, "-fsanitize=address,undefined", "-x", "c++", "-", "-o", os.devnull]
    return (
        subprocess.run(command, input="int main(){}", text=True, capture_output=True).returncode
        == 0
    )


def build(isa: str) -> Path:
    """The driver of one instruction set, compiled where a source is newer."""
    cxx = compiler()
    if cxx is None:
        raise RuntimeError("No compiler here has ASan and UBSan; on Debian: apt install g++.")
    family, flags, _ = _ISAS[isa]
    driver = _BUILD / isa
    sources = [*(ROOT / "native").glob("*.*"), *_CSRC.iterdir()]
    newest = max(path.stat().st_mtime for path in sources)
    if driver.is_file() and driver.stat().st_mtime > newest:
        return driver
    _BUILD.mkdir(parents=True, exist_ok=True)
    own = [ROOT / "native" / name for name in ("driver.cpp", "main.cpp")]
    names = ("kernels.cpp", "products.cpp", "packed.cpp", "grids.cpp", "pool.cpp", "memory.cpp")
    theirs = [_CSRC / name for name in names]
    defined = (f"-DPAGODA_ISA={isa}", f"-DPAGODA_ISA_{family}=1")
    part = driver.with_suffix(f".{os.getpid()}")
    command = [cxx, *_FLAGS, *flags, *defined, f"-I{_CSRC}", *own, *theirs, "-o", part]
    subprocess.run(command, check=True)
    part.replace(driver)
    return driver


def execute(driver: Path, seed: int, count: int) -> int:
    """The corpus and so many random inputs; how many it was. Raises FoundError."""
    files = [*corpus("native"), *regressions("native")]
    command = [driver, str(seed), str(count), *files]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise FoundError(f"{' '.join(map(str, command[:3]))} failed:\n{done.stderr[-6000:]}")
    return int(done.stdout.split()[-1])


def run(seconds: float, seed: int) -> Iterator[tuple[str, int, int, float]]:
    """For each instruction set: its name, the executions, the failures and the seconds."""
    for isa in isas():
        driver, begun, done, failed = build(isa), time.monotonic(), 0, 0
        for number in itertools.count(seed):
            try:
                done += execute(driver, number, _BATCH)
            except FoundError as error:
                failed += 1
                print(error, flush=True)
                for data in re.findall(r"^INPUT: ([0-9a-f]*)$", str(error), re.MULTILINE):
                    path = ROOT.parent / "build/fuzz/findings" / f"native-{isa}-{number}"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(bytes.fromhex(data))
                    print(f"kept: {path}")
            if time.monotonic() - begun >= seconds:
                break
        print(f"{isa}: executions: {done}, failures: {failed}", flush=True)
        yield isa, done, failed, time.monotonic() - begun
