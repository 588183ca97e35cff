"""Machines that are unlike a developer's: one core, shared by two engines; no compiler."""

import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pagoda.base.env import child_environment

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_engines_on_one_core(serve, smollm2_gguf, one_core):
    """One sees that it has one core, the other is told to use more threads than there are."""
    small = ("--max-model-len", 256, "--kv-cache-memory-bytes", "16M")
    servers = [
        serve(smollm2_gguf, *small),
        serve(smollm2_gguf, *small, "--threads", 4),
    ]

    def ask(server) -> str:
        server.wait_ready(120)
        reply = server.openai().completions.create(
            model=server.name, prompt="The capital of France is", max_tokens=24, temperature=0
        )
        return str(reply.choices[0].text)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(ask, servers)
    assert first == second and "Paris" in first


@pytest.mark.slow
def test_installing_without_a_compiler_leaves_the_kernels_out(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "-v", "-w", str(tmp_path),
         "-C", f"build-dir={tmp_path / 'build'}", str(ROOT)],
        env=child_environment(CXX="/bin/false", CC="/bin/false"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert done.stdout.count("Pagoda was installed without its native kernels") == 1
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "pagoda/kernels/cpu/__init__.py" in names
    assert not [name for name in names if "_native" in name]
