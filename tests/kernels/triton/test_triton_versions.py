"""The kernels under other versions of Triton than the one that is installed.

    python -m pip install --no-deps --target .cache/triton-3.6 triton==3.6.0

puts one where it is found; CONTRIBUTING.md says why that one.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.base.env import child_environment

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
FOLDERS = sorted(folder for folder in (ROOT / ".cache").glob("triton-*") if folder.is_dir())
APART = ("test_ahead_of_time.py", "test_triton_versions.py")

if not FOLDERS:
    pytest.skip("no other version of Triton is in .cache/triton-VERSION", allow_module_level=True)


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def other(request) -> Path:
    return request.param


def run(other: Path, *command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """In a process that finds this Triton first."""
    paths = f"{other}:{ROOT / 'src'}:{ROOT}"
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True,
        env=child_environment(PYTHONPATH=paths, **environment),
    )  # fmt: skip


def test_it_is_the_one_that_is_asked_for(other):
    said = run(other, "-c", "import triton; print(triton.__version__)").stdout
    assert said.startswith(other.name.removeprefix("triton-"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kernels_equal_their_references(other):
    """All tests beside this one, interpreted."""
    files = sorted(str(path) for path in HERE.glob("test_*.py") if path.name not in APART)
    done = run(other, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_form_of_each_kernel_compiles(other):
    """They need what their targets have, and spill for known reasons; the page's figures are those
    of the Triton that it names."""
    done = run(other, "tools/triton_table.py", "--one-of-each", TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("\n") > 10
