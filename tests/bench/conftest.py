import importlib.util
import threading
from pathlib import Path

import gguf
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


@pytest.fixture
def tokenizer(tmp_path):
    """A file with the fields of a tokenizer of three tokens."""
    path = tmp_path / "tokenizer.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab"])
    writer.add_token_types([gguf.TokenType.NORMAL] * 3)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
