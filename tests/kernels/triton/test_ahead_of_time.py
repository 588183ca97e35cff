"""Kernels compiled for GPUs that are not there: they fit, and spill for known reasons only."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.base.env import child_environment
from pagoda.kernels.triton.target import SHARED_MEMORY
from tools.triton_examples import files

ROOT = Path(__file__).resolve().parents[3]


def compiled(*arguments: str) -> list[list[str]]:
    """The rows of the table, in a process that does not interpret kernels."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "tools" / "triton_table.py"), *arguments],
        env=child_environment(TRITON_INTERPRET="0"), capture_output=True, text=True,
    )  # fmt: skip
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr[-4000:] + "\n".join(row[-1] for row in rows)
    return rows


@pytest.mark.parametrize("target", [75, 90])
def test_some_kernels_compile(target):
    rows = compiled("--files", "attention", "--targets", str(target), "--only", "decode, head 64")
    assert {row[0] for row in rows} == {"attention.paged_attention", "attention.merge_splits"}
    # No bfloat16 without the hardware for it.
    assert any(row[2] == "bfloat16" for row in rows) == (target >= 80)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", SHARED_MEMORY)
@pytest.mark.parametrize("file", files())
def test_all_kernels_compile(file, target):
    assert compiled("--files", file, "--targets", str(target))
