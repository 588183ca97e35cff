import importlib.util
import threading
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "cli" / "fake_server.py"


@pytest.fixture
def fake_server():
    spec = importlib.util.spec_from_file_location("fake_server", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    server = module.FakeServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
