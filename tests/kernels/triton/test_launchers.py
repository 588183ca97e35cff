"""What a start says where Triton cannot compile what launches its kernels."""

import logging
import sysconfig
from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="triton is not installed")
from triton.runtime import driver

from pagoda.base.errors import MissingLibraryError
from pagoda.runtime.triton import launchers
from pagoda.runtime.triton.launchers import check_launchers, launcher_problem


@pytest.fixture
def compiles(monkeypatch, tmp_path):
    """A machine without what Triton's launchers take."""
    monkeypatch.setattr(launchers.shutil, "which", lambda name: None)
    monkeypatch.setattr(sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    monkeypatch.delenv("CC", raising=False)
    return tmp_path


def play_driver(monkeypatch, error: Exception | None) -> None:
    def target():
        if error is not None:
            raise error

    monkeypatch.setattr(driver, "_active", SimpleNamespace(get_current_target=target))


def test_each_thing_that_is_missing_is_named(compiles, monkeypatch):
    problem = launcher_problem()
    assert problem is not None and "a C compiler and Python's headers" in problem
    assert "are missing. On Debian: apt install gcc python3." in problem
    (compiles / "Python.h").touch()
    problem = launcher_problem()
    assert problem is not None and "a C compiler is missing. On Debian: apt install gcc;" in problem
    monkeypatch.setattr(launchers.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert launcher_problem() is None
    (compiles / "Python.h").unlink()
    problem = launcher_problem()
    assert problem is not None and "gcc" not in problem and str(compiles / "Python.h") in problem


def test_a_compiler_that_is_asked_for_and_not_there(compiles, monkeypatch):
    (compiles / "Python.h").touch()
    monkeypatch.setattr(launchers.shutil, "which", {"gcc": "/usr/bin/gcc"}.get)
    monkeypatch.setenv("CC", "icx")
    assert "CC is 'icx'" in (launcher_problem() or "")


def test_a_start_without_ends_with_what_to_install(compiles, monkeypatch):
    play_driver(monkeypatch, RuntimeError("Failed to find C compiler."))
    with pytest.raises(MissingLibraryError, match="apt install gcc"):
        check_launchers()


def test_what_an_earlier_start_compiled_is_enough(compiles, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "pagoda")
    play_driver(monkeypatch, None)
    check_launchers()
    assert "Only kernels that an earlier start left in Triton's cache work" in caplog.text
