"""Kernels compiled for GPUs that are not there: they fit, and spill for known reasons only."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.base.env import child_environment
from pagoda.kernels.triton.target import SHARED_MEMORY

ROOT = Path(__file__).resolve().parents[3]


def table(*arguments: str) -> list[list[str]]:
    """What the tool prints, in a process that does not interpret kernels."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "tools" / "triton_table.py"), *arguments],
        env=child_environment(TRITON_INTERPRET="0"), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return [line.split("\t") for line in done.stdout.splitlines()]


def test_the_table_is_of_these_kernels():
    """Every kernel, form, type and target has its cell, made from the code as it is."""
    table("--check")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_form_of_each_kernel_compiles_for_each_target():
    """And needs what the table says, where the compiler is the same."""
    rows = table("--one-of-each")
    kernels = {row[0] for row in rows}
    assert len(kernels) > 20
    compiled = sorted((row[0], int(row[3])) for row in rows)
    assert compiled == sorted((name, target) for name in kernels for target in SHARED_MEMORY)
