"""Ollama's and LM Studio's routes about models, and one length of context wherever one looks."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagoda.config.engine import EngineConfig, ModelConfig
from pagoda.config.server import ServerConfig
from pagoda.engine.served.model_entry import ModelEntry
from pagoda.text.parsers.select import parser_for
from pagoda.text.template.chat import ChatTemplate
from pagoda.weights.files import open_model
from tests.server.conftest import RunningServer
from tests.server.fakes import TEMPLATE, FakeClient, FimTokenizer
from tests.server.seeing import png, seeing
from tests.server.test_ollama import MOMENT, error_of, whole
from tests.server.test_pooling import encoder, unit

Start = Callable[..., RunningServer]
LENGTHS = {
    "max_model_len", "context_window", "context_length", "max_context_length", "max_input_tokens",
    "loaded_context_length", "n_ctx", "num_ctx", "llama.context_length", "model_max_length",
}  # fmt: skip

COUNT = 134_515_008
"""Parameters of the default model, as its publisher counts them."""


@pytest.fixture
def known(start: Start, smollm2_gguf: Path, minilm_folder: Path) -> RunningServer:
    """One model that is loaded, by its files; another that lies here; one that does not."""
    server = start(FakeClient(), files=open_model(smollm2_gguf))
    for name, model in (("org/idle", str(minilm_folder)), ("far", "hf:nobody/nothing-at-all")):
        config = EngineConfig(model=ModelConfig(model=model, download_dir=str(smollm2_gguf.parent)))
        server.context.fleet.add(ModelEntry((name,), config))
    return server


def lengths(value: Any) -> set[int]:
    """Everything that stands under a name for the length of a context."""
    if isinstance(value, list):
        return {length for item in value for length in lengths(item)}
    if not isinstance(value, dict):
        return set()
    own = {item for name, item in value.items() if name in LENGTHS and type(item) is int}
    return own.union(*(lengths(item) for item in value.values()))


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models", "/models", "/v1/models/fake", "/props", "/slots", "/server_info",
        "/tokenizer_info", "/api/ps", "/api/v0/models", "/api/v0/models/fake", "/api/v1/models",
        "/api/v1/models/fake", "POST /api/show", "ANTHROPIC /v1/models",
    ],
)  # fmt: skip
def test_one_context_length_wherever_clients_look(
    start: Start, smollm2_gguf: Path, path: str
) -> None:
    """The model was trained for 8,192 tokens, and is served with 2,048."""
    server = start(FakeClient(), files=open_model(smollm2_gguf))
    how, _, path = path.rpartition(" ")
    if how == "POST":
        reply = server.post(path, model="fake")
    else:
        headers = {"anthropic-version": "2023-06-01"} if how else {}
        reply = server.http.get(path, headers=headers)
    assert lengths(whole(reply)) == {2048}


def test_show(known: RunningServer, smollm2_gguf: Path) -> None:
    shown = whole(known.post("/api/show", model="fake:latest"))
    assert shown["details"] == {
        "parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"],
        "parameter_size": "134.52M", "quantization_level": "Q4_1",
    }  # fmt: skip
    info = shown["model_info"]
    assert info["general.architecture"] == "llama" and info["llama.context_length"] == 2048
    assert info["general.parameter_count"] == COUNT and info["llama.block_count"] == 30
    assert shown["template"] == TEMPLATE
    assert ["num_ctx", "2048"] in [line.split() for line in shown["parameters"].splitlines()]
    assert shown["modelfile"].startswith("FROM fake\nPARAMETER num_ctx 2048")
    assert MOMENT.fullmatch(shown["modified_at"])
    assert whole(known.post("/api/show", name="fake")) == shown, "the older name of the field"
    assert "not found" in error_of(known.post("/api/show", model="other"), 404)
    assert "model" in error_of(known.post("/api/show"))


def test_tags(known: RunningServer, smollm2_gguf: Path) -> None:
    models = whole(known.http.get("/api/tags"))["models"]
    assert [model["name"] for model in models] == ["fake", "fake-alias", "org/idle", "far"]
    assert all(model["model"] == model["name"] for model in models)
    assert all(MOMENT.fullmatch(model["modified_at"]) for model in models)
    assert all(len(bytes.fromhex(model["digest"])) == 32 for model in models)
    fake, alias, idle, far = models
    assert fake["size"] == smollm2_gguf.stat().st_size and fake["digest"] == alias["digest"]
    assert idle["details"]["family"] == "bert" and idle["details"]["format"] == "safetensors"
    assert (far["size"], far["details"]["family"]) == (0, "unknown")


def test_a_model_that_is_not_loaded_is_shown_by_its_files(known: RunningServer) -> None:
    shown = whole(known.post("/api/show", model="org/idle"))
    assert shown["model_info"]["bert.context_length"] == 512
    assert shown["capabilities"] == ["embedding"]
    shown = whole(known.post("/api/show", model="far"))
    assert shown["model_info"]["unknown.context_length"] == 0
    assert shown["capabilities"] == ["completion"]


def test_ps_lists_what_is_loaded(known: RunningServer) -> None:
    (model,) = whole(known.http.get("/api/ps"))["models"]
    assert (model["name"], model["context_length"]) == ("fake", 2048)
    assert model["expires_at"] > "2100" and MOMENT.fullmatch(model["expires_at"])
    # Its engine plays in the server's process.
    assert type(model["size"]) is int and model["size"] > 1 << 20
    assert model["size_vram"] == 0


def test_ps_says_when_idle_models_go(start: Start) -> None:
    config = ServerConfig(disable_uvicorn_access_log=True, idle_unload=600)
    (model,) = whole(start(FakeClient(), config).http.get("/api/ps"))["models"]
    assert "2020" < model["expires_at"] < "2100"


THINKING = "{% if enable_thinking %}<think>{% endif %}{{ messages[0].content }}"


def test_capabilities(serve: Start, start: Start) -> None:
    def able(server: RunningServer) -> list[str]:
        found: list[str] = whole(server.post("/api/show", model="fake"))["capabilities"]
        return found

    assert able(start(FakeClient())) == ["completion"]
    assert able(serve("x")) == ["completion", "tools"]
    thinking = ChatTemplate({"default": THINKING}, {})
    assert able(start(FakeClient(), chat_template=thinking)) == ["completion", "thinking"]
    assert able(start(FakeClient(), tokenizer=FimTokenizer())) == ["completion", "insert"]
    assert able(start(FakeClient(), chat_template=None)) == ["completion"]
    assert able(seeing(start)) == ["completion", "vision"]
    assert able(start(encoder())) == ["embedding"]


def test_version_is_a_bare_one_that_clients_take(shared: RunningServer) -> None:
    """VS Code asks for 0.6.4 at least."""
    version = whole(shared.http.get("/api/version"))["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)


def test_lm_studio(known: RunningServer, smollm2_gguf: Path) -> None:
    models = whole(known.http.get("/api/v1/models"))["models"]
    assert [model["key"] for model in models] == ["fake", "fake-alias", "org/idle", "far"]
    fake, _, idle, far = models
    size = smollm2_gguf.stat().st_size
    # The file is the weights, but for names and words.
    assert fake["quantization"].pop("bits_per_weight") == pytest.approx(8 * size / COUNT, rel=0.05)
    assert fake == {
        "type": "llm", "publisher": "pagoda", "key": "fake", "display_name": "fake",
        "architecture": "llama", "quantization": {"name": "Q4_1"},
        "size_bytes": size, "params_string": "134.52M",
        "loaded_instances": [
            {"id": "fake", "config": {"context_length": 2048, "parallel": 4}},
        ],
        "max_context_length": 2048, "format": "gguf",
        "capabilities": {"vision": False, "trained_for_tool_use": False},
    }  # fmt: skip
    assert (idle["type"], idle["publisher"], idle["loaded_instances"]) == ("embedding", "org", [])
    assert (idle["format"], far["quantization"]["name"]) == (None, None)
    assert whole(known.http.get("/api/v1/models/fake"))["key"] == "fake"
    assert whole(known.http.get("/api/v1/models/org/idle")) == idle
    error_of(known.http.get("/api/v1/models/other"), 404)


def test_lm_studio_s_older_list(known: RunningServer) -> None:
    listed = whole(known.http.get("/api/v0/models"))
    assert listed["object"] == "list"
    fake, _, idle, _ = listed["data"]
    assert fake == {
        "id": "fake", "object": "model", "type": "llm", "publisher": "pagoda", "arch": "llama",
        "compatibility_type": "gguf", "quantization": "Q4_1", "state": "loaded",
        "max_context_length": 2048, "loaded_context_length": 2048, "capabilities": [],
    }  # fmt: skip
    assert (idle["type"], idle["state"], idle["max_context_length"]) == (
        "embeddings", "not-loaded", 512,
    )  # fmt: skip
    assert "loaded_context_length" not in idle
    assert whole(known.http.get("/api/v0/models/org/idle")) == idle


def test_lists_while_the_server_starts(start: Start) -> None:
    server = start(FakeClient())
    server.context.fleet.entries.clear()
    for path in ("/api/tags", "/api/ps", "/api/v1/models"):
        assert "loading" in error_of(server.http.get(path), 503)


def test_embed(start: Start) -> None:
    server = start(encoder())
    reply = whole(server.post("/api/embed", model="fake:latest", input=["ab", "aab"]))
    assert reply["embeddings"] == [pytest.approx(unit(1, 1, 0, 0)), pytest.approx(unit(2, 1, 0, 0))]
    assert (reply["model"], reply["prompt_eval_count"]) == ("fake:latest", 5)
    assert reply["total_duration"] >= reply["load_duration"] >= 0
    assert len(whole(server.post("/api/embed", model="fake", input="a"))["embeddings"]) == 1
    assert whole(server.post("/api/embed", model="fake", input=[]))["embeddings"] == []
    reply = whole(server.post("/api/embeddings", model="fake", prompt="aab"))
    assert reply == {"embedding": [2, 1, 0, 0]}, "the older route normalizes nothing"
    assert whole(server.post("/api/embeddings", model="fake", prompt="")) == {"embedding": []}


def test_embed_cuts_unless_told(start: Start) -> None:
    server = start(encoder())
    reply = whole(server.post("/api/embed", model="fake", input="a" * 5000))
    assert reply["prompt_eval_count"] == 2048
    fields = {"model": "fake", "input": "a" * 5000, "truncate": False}
    assert "2048" in error_of(server.post("/api/embed", **fields))
    assert "dimensions" in error_of(server.post("/api/embed", model="fake", input="a",
                                                dimensions=2))  # fmt: skip


def test_an_encoder_writes_nothing(start: Start) -> None:
    server = start(encoder())
    error_of(server.post("/api/chat", model="fake", messages=[{"role": "user", "content": "a"}]))
    error_of(server.post("/api/generate", model="fake", prompt="a"))


def test_a_model_that_sees_gets_pictures(start: Start) -> None:
    server = seeing(start)
    image = base64.b64encode(png()).decode()
    message = {"role": "user", "content": "What is it?", "images": [image]}
    whole(server.post("/api/chat", model="fake", messages=[message], stream=False))
    reply = whole(
        server.post("/api/generate", model="fake", prompt="What?", images=[image], stream=False)
    )
    assert "context" not in reply, "its tokens alone would not bring the picture back"
    assert [len(request.media) for request in server.client.requests] == [1, 1]
    assert len(server.client.pixels) == 1, "the same picture"
    for wrong in ("http://example.invalid/a.png", "no base64!", base64.b64encode(b"x").decode()):
        reply = server.post(
            "/api/chat", model="fake", messages=[{**message, "images": [wrong]}], stream=False
        )
        assert "image" in error_of(reply)


def test_a_model_whose_template_shows_no_tools_calls_them_all_the_same(start: Start) -> None:
    """As smollm2: it is told of them in words, and was not trained for them."""
    plain = "{% for message in messages %}{{ message.content }}{% endfor %}"
    parser = parser_for(plain)
    server = start(FakeClient(), chat_template=ChatTemplate({"default": plain}, {}), parser=parser)
    assert "tools" in whole(server.post("/api/show", model="fake"))["capabilities"]
    shown = whole(server.http.get("/api/v0/models"))["data"]
    (model,) = [model for model in shown if model["id"] == "fake"]
    assert model["capabilities"] == []
