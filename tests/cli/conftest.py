import importlib.util
import threading
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "fake_server.py"


def load_fake_server():
    spec = importlib.util.spec_from_file_location("fake_server", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def fake_server():
    server = load_fake_server().FakeServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def own_environment(monkeypatch, tmp_path):
    """No key, cache or server of the machine's user reaches a test."""
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))
    for name in ("PAGODA_API_KEY", "PAGODA_DEBUG"):
        monkeypatch.delenv(name, raising=False)
