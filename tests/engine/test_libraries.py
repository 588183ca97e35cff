"""A torch that is not there, or broken, is answered with the command that mends it."""

import shlex
import sys
from importlib.metadata import requires

import pytest

from pagoda.base.errors import CapacityError, EngineDeadError, MissingLibraryError
from pagoda.cli.main import main
from pagoda.engine.processes.client import EngineClient
from pagoda.engine.start import libraries
from pagoda.engine.start.libraries import import_torch

MISSING_FILE = "libcudart.so.99: cannot open shared object file"
BROKEN = {
    f'raise ImportError("{MISSING_FILE}")': MISSING_FILE,
    'import ctypes; ctypes.CDLL("libcudart.so.99")': MISSING_FILE,
    'raise ValueError("libcublas.so.*[0-9] not found in the system path")': "libcublas",
    "": "it has no code",
}


def advised(message: str) -> list[str]:
    """The words of the command in backquotes."""
    return shlex.split(message.split("`")[1])


def test_a_torch_that_is_there_is_loaded():
    import_torch()
    assert hasattr(sys.modules["torch"], "Tensor")


def test_a_torch_that_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingLibraryError, match="not installed") as caught:
        import_torch()
    (wanted,) = [name for name in requires("pagoda-llm") if name.startswith("torch")]
    assert advised(str(caught.value)) == [sys.executable, "-m", "pip", "install", wanted]


@pytest.fixture(params=BROKEN)
def broken_torch(request, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(request.param)
    return tmp_path, BROKEN[request.param]


def test_a_torch_that_is_broken(broken_torch, monkeypatch):
    folder, words = broken_torch
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(MissingLibraryError, match="cannot be loaded") as caught:
        import_torch()
    sys.modules.pop("torch", None)
    assert words in str(caught.value)
    assert "--force-reinstall" in advised(str(caught.value))


def test_too_few_addresses_are_no_broken_torch(tmp_path, monkeypatch):
    words = "libtorch_cpu.so: failed to map segment from shared object"
    (tmp_path / "torch.py").write_text(f'raise ImportError("{words}")')
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(libraries, "address_limit", lambda: 700 << 20)
    with pytest.raises(CapacityError, match=r"700.00 MiB of addresses .* ulimit -v unlimited"):
        import_torch()
    sys.modules.pop("torch", None)


@pytest.mark.parametrize("kind", ["micro", "gpu", "host-overhead"])
def test_a_bench_says_it_in_one_line(kind, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["bench", kind]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pagoda bench: PyTorch is not installed") and "pip install" in line


async def test_the_engine_process_says_it_without_a_traceback(
    tiny_config, tmp_path, monkeypatch, capfd
):
    (tmp_path / "torch.py").write_text(f'raise ImportError("{MISSING_FILE}")')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    client = EngineClient.launch(tiny_config)
    with pytest.raises(EngineDeadError, match="pip install --force-reinstall") as caught:
        await client.wait_ready(60)
    assert MISSING_FILE in str(caught.value)
    assert "Traceback" not in capfd.readouterr().err
