"""What an installation says while it runs, and what `bench.install` reads from it."""

from importlib.util import cache_from_source
from pathlib import Path

import pytest

from bench import install as bench_install
from tools import install

ROOT = Path(__file__).parents[2]
PIP = """Using pip 26.0
  Installing build dependencies: started
  Collecting scikit-build-core>=0.11
  Installing build dependencies: finished with status 'done'
Collecting msgspec
  Downloading msgspec-0.20.0.whl
  *** Configuring CMake...
  [1/15] Building CXX object CMakeFiles/_native.dir/src/pool.cpp.o
  [2/15] Building CXX object CMakeFiles/_native.dir/src/cpu.cpp.o
  ../pool.cpp: warning: something
  [15/15] Linking CXX shared module _native.so
Installing collected packages: pagoda-llm
Successfully installed pagoda-llm-0.1.0
"""


def test_stages_of_what_pip_says():
    assert list(install.stages(PIP.splitlines())) == [
        "Fetching build tools",
        "Fetching packages",
        "Fetching build tools",
        "Fetching packages",
        "Preparing to compile",
        "Compiling kernels, 1 of 15",
        "Compiling kernels, 2 of 15",
        "Compiling kernels, 15 of 15",
        "Installing packages",
    ]


def test_pip_that_fails_shows_why(tmp_path, monkeypatch, capfd):
    """In a folder that is no package."""
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setattr(install, "LOG", tmp_path / "build/install.log")
    monkeypatch.setattr("sys.argv", ["install.py"])
    assert install.main() != 0
    out = capfd.readouterr().out
    assert "ERROR" in out
    assert "Installing failed; all that pip said is in build/install.log." in out


def test_python_modules_are_compiled(tmp_path):
    """Some packages have files that are no Python of this version."""
    sound, broken = tmp_path / "package/sound.py", tmp_path / "broken.py"
    sound.parent.mkdir()
    sound.write_text("x = 1\n")
    broken.write_text("x =\n")
    assert list(install.compiling(tmp_path)) == ["Compiling Python modules"]
    assert Path(cache_from_source(sound)).exists()
    assert not Path(cache_from_source(broken)).exists()


def test_steps_take_their_signs_from_the_makefile_and_the_log():
    said = (ROOT / "Makefile").read_text() + (ROOT / "tools/install.py").read_text()
    for sign, _ in bench_install._STEPS[:4]:
        assert sign.removesuffix("1 of") in said
    lines = ["Installing Pagoda into .venv", "", "Installing Pagoda itself; compiling"]
    assert [name for name, _ in bench_install.steps(lines)] == ["clone and environment", "PyTorch"]


@pytest.mark.parametrize("line", ["", "[3/4] Generating", "  Running command pip"])
def test_other_lines_are_no_stage(line):
    assert list(install.stages([line])) == []
