"""Tables of instruction sets that this CPU lacks, cross-compiled and run by an emulator."""

import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "src/pagoda/kernels/cpu/csrc"
# As in CMakeLists.txt, but optimised less: the emulator is slow anyway, and compiling slower.
FLAGS = ["-std=c++20", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"]
TABLES = {
    "neondot": ["-DPAGODA_ISA_NEON=1", "-march=armv8.2-a+dotprod"],
    "neon": ["-DPAGODA_ISA_NEON=1"],
    "generic": ["-DPAGODA_ISA_GENERIC=1"],
}


def _emulator() -> str | None:
    return shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")


@pytest.fixture(scope="module")
def compare_tables(tmp_path_factory) -> Path:
    """The program of that name, for ARM64."""
    if platform.machine() == "aarch64":
        pytest.skip("this CPU runs the tables itself: the other tests compare them")
    if _emulator() is None:
        pytest.skip("no qemu-aarch64 (Debian: apt install qemu-user)")
    compiler = shutil.which("aarch64-linux-gnu-g++")
    if compiler is None:
        pytest.skip("no cross-compiler (Debian: apt install g++-aarch64-linux-gnu)")
    folder = tmp_path_factory.mktemp("tables")
    program = Path(__file__).parent / "native/compare_tables.cpp"
    parts = (program, *(CSRC / f"{name}.cpp" for name in ("pool", "cpu", "grids")))
    units = {path.stem: (path, []) for path in parts}
    for isa, flags in TABLES.items():
        for part in ("kernels", "products"):
            source = CSRC / f"{part}.cpp"
            units[f"{part}_{isa}"] = (source, [f"-DPAGODA_ISA={isa}", *flags])

    def compile_unit(name: str) -> str:
        source, flags = units[name]
        out = str(folder / f"{name}.o")
        subprocess.run(
            [compiler, *FLAGS, *flags, f"-I{CSRC}", "-c", str(source), "-o", out], check=True
        )
        return out

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_unit, units))
    linked = folder / "compare_tables"
    subprocess.run([compiler, "-static", *objects, "-pthread", "-o", str(linked)], check=True)
    return linked


def _run(program: Path, cpu: str, *tables: str) -> subprocess.CompletedProcess[str]:
    emulator = _emulator()
    assert emulator is not None
    command = [emulator, "-cpu", cpu, str(program), *tables]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


@pytest.mark.slow
def test_neon_tables_equal_the_generic_one(compare_tables):
    done = _run(compare_tables, "max", "neondot", "neon")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    lines = [line.split(":")[0] for line in done.stdout.splitlines() if "cases, 0 fail" in line]
    assert lines == ["neondot", "neon"]


@pytest.mark.slow
def test_dot_products_are_used_only_where_the_cpu_has_them(compare_tables):
    assert _run(compare_tables, "cortex-a72").stdout.split() == ["neon", "generic"]
    assert _run(compare_tables, "cortex-a76").stdout.split() == ["neondot", "neon", "generic"]
