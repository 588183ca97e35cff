"""Kernels compiled for GPUs that are not there: they fit, and spill for known reasons only."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.base.env import child_environment
from pagoda.kernels.triton.target import SHARED_MEMORY
from tools.triton_compile import Form, Needs
from tools.triton_table import problems

TOOL = Path(__file__).resolve().parents[3] / "tools" / "triton_table.py"
TILES = Form("gemm.tiles", "16 x 4096 x 4096, Q4_K", "float16")


@pytest.mark.slow
def test_a_form_of_each_kernel_compiles():
    """For targets in turn, and needs what docs/benchmarks/triton.md says, where the compiler is the
    same; that page has all kernels. In a process that does not interpret them."""
    done = subprocess.run(
        [sys.executable, "-W", "error", TOOL, "--one-of-each"],
        env=child_environment(TRITON_INTERPRET="0"), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    compiled = [line.split("\t") for line in done.stdout.splitlines()]
    assert {int(target) for _, _, _, target, *_ in compiled} == set(SHARED_MEMORY)


@pytest.mark.parametrize(
    ("target", "needs", "problem"),
    [
        (75, Needs(64, 64 * 1024, 0), None),
        (75, Needs(64, 64 * 1024 + 4, 0), "needs 65540 bytes of shared memory; there are 65536"),
        (90, Needs(64, 227 * 1024 + 4, 0), "needs 232452 bytes of shared memory"),
        (90, Needs(255, 0, 128), "spills 128 bytes"),
        (75, Needs(255, 0, 128), None),
    ],
)
def test_what_does_not_fit_is_refused(target, needs, problem):
    found = list(problems(TILES, {target: needs}))
    assert [problem in text for text in found] == ([True] if problem else [])
