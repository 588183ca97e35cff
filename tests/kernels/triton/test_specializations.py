"""Kernels are not compiled anew for each number of requests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")

# Two sizes of rows, gated products and others, one largest value and many.
TWICE = {"experts_grouped", "norm_rms_norm", "sampling_largest", "sampling_unpack"}


def test_steps_of_other_sizes_compile_nothing():
    script = Path(__file__).with_name("specializations.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=True
    )
    counts = json.loads(done.stdout)
    assert counts == {name: 1 + (name in TWICE) for name in counts} and len(counts) == 18
