"""A clone compiles the sets of its CPU alone; the others must compile, too."""

import platform
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "src/pagoda/kernels/cpu/csrc"
SETS = ("amx", "avx512", "avx512vnni", "avxvnni", "avx2", "generic")


def flags(isa: str) -> list[str]:
    """Those of CMakeLists.txt; its variables that name others are resolved."""
    text = (ROOT / "CMakeLists.txt").read_text()
    value = re.search(rf"set\(FLAGS_{isa} ([^)]*)\)", text)
    lines = [] if value is None else re.sub(r"#.*", "", value[1]).split()
    family = re.search(rf"set\(FAMILY_{isa} (\w+)\)", text)
    known = [flag for part in lines for flag in _resolved(part)]
    return [*known, f"-DPAGODA_ISA={isa}", f"-DPAGODA_ISA_{family[1] if family else isa.upper()}=1"]


def _resolved(part: str) -> list[str]:
    other = re.fullmatch(r"\$\{FLAGS_(\w+)\}", part)
    return flags(other[1])[:-2] if other else [part]


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are x86-64's sets")
def test_each_set_compiles():
    """Without optimizing: that finds what instructions a set's flags do not allow, in seconds."""

    def compile_part(isa: str, part: str) -> str:
        options = ["-std=c++20", "-O0", "-Wno-psabi", "-ffp-contract=off"]
        command = ["g++", *options, *flags(isa), "-c", str(CSRC / f"{part}.cpp"), "-o", "/dev/null"]
        done = subprocess.run(command, capture_output=True, text=True)
        return f"{isa}: {done.stderr}" if done.returncode else ""

    from pagoda.kernels.cpu import _native

    compiled = () if _native is None else _native.INSTRUCTION_SETS
    others = [isa for isa in SETS if isa not in compiled]
    with ThreadPoolExecutor(2) as pool:
        said = pool.map(lambda what: compile_part(*what), product(others, ("kernels", "products")))
        assert [text for text in said if text] == []


def test_a_clone_has_the_best_set_and_plain_c():
    from pagoda.kernels.cpu import _native

    if _native is None:
        pytest.skip("no native kernels")
    assert _native.INSTRUCTION_SETS[-1] == "generic"
    assert _native.MISSING_INSTRUCTION_SET == ""


def test_sets_share_no_function():
    """Of a function that several files have the linker keeps one, which other CPUs may not run."""
    newest = max(path.stat().st_mtime for path in CSRC.iterdir())
    objects = [
        path
        for path in ROOT.glob("build/*/CMakeFiles/kernels_*.dir/**/*.cpp.o")
        if "kernels_generic" not in str(path) and path.stat().st_mtime > newest
    ]
    if not objects or shutil.which("nm") is None:
        pytest.skip("no objects of these kernels: make install leaves them in build/")
    for path in objects:
        command = ["nm", "-C", "--defined-only", path]
        names = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert [line for line in names.splitlines() if " W " in line or " u " in line] == []
