"""Adapters over HTTP: vLLM's routes and names, llama-server's list and field."""

import re
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagoda.config.adapters import AdapterConfig
from pagoda.core.messages import EngineReady, LoadedAdapter
from pagoda.engine.processes.adapters import KnownAdapters
from tests.server.conftest import RunningServer, running
from tests.server.fakes import FakeClient

STYLES = AdapterConfig(
    lora_modules=("sql=/a/sql",), lora=("/a/one.gguf",), lora_scaled=("/a/two.gguf:0.5",)
)


def known(config: AdapterConfig) -> KnownAdapters:
    """Of an engine that has loaded what flags name."""
    adapters = KnownAdapters(config)
    loaded = [LoadedAdapter(path, f"digest of {path}", 8) for path in config.paths]
    ready = EngineReady(
        max_model_len=1, vocab_size=1, num_blocks=1, block_size=1, kv_tokens=1, max_num_seqs=1,
        adapters=loaded,
    )  # fmt: skip
    assert not list(adapters.on_ready(ready))
    return adapters


@pytest.fixture
def server():
    client = FakeClient(adapters=known(STYLES), abilities={"max_loras": 4})
    with running(client) as made:
        yield made


def asked(server: RunningServer, **body) -> tuple[str | None, list[tuple[str, float]]]:
    """What the engine is told of a completion's adapter."""
    reply = server.post("/v1/completions", **{"prompt": "x", "max_tokens": 1, **body})
    assert reply.status_code == 200, reply.text
    request = server.client.requests[-1]
    return request.adapter, request.adapter_parts


def test_a_request_names_its_adapter(server):
    assert asked(server, model="sql") == ("digest of /a/sql", [])
    reply = server.chat(model="sql")
    assert reply.json()["model"] == "sql"
    request = server.client.requests[-1]
    assert (request.adapter, request.adapter_name) == ("digest of /a/sql", "sql")


def test_models_list_adapters_below_their_model(server):
    base, *_, adapter = server.http.get("/v1/models").json()["data"]
    assert base["parent"] is None
    assert (adapter["id"], adapter["parent"], adapter["root"]) == ("sql", base["id"], "/a/sql")
    assert server.http.get("/v1/models/sql").json()["parent"] == base["id"]


def test_loading_and_unloading_as_vllm_does(server, tmp_path):
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    body = {"lora_name": "new", "lora_path": str(tmp_path)}
    reply = server.post(load, **body)
    assert (reply.status_code, reply.text) == (
        200, "Success: LoRA adapter 'new' added successfully."
    )  # fmt: skip
    assert asked(server, model="new")[0] == f"digest of {tmp_path}"
    again = server.post(load, **body)
    assert again.status_code == 400 and "load_inplace" in again.json()["error"]["message"]
    assert server.post(load, **body, load_inplace=True).status_code == 200
    name = server.http.get("/v1/models").json()["data"][0]["id"]
    taken = server.post(load, lora_name=name, lora_path=str(tmp_path))
    assert taken.status_code == 400 and "is that of a model" in taken.json()["error"]["message"]
    missing = server.post(load, lora_name="other", lora_path=str(tmp_path / "no"))
    assert missing.status_code == 404
    (tmp_path / "broken").mkdir()
    broken = server.post(load, lora_name="other", lora_path=str(tmp_path / "broken"))
    assert broken.status_code == 400 and "is broken" in broken.json()["error"]["message"]
    assert server.post(load, lora_name="other").status_code == 400
    gone = server.post(unload, lora_name="new")
    assert gone.text == "Success: LoRA adapter 'new' removed successfully."
    assert server.post(unload, lora_name="new").status_code == 404
    assert server.chat(model="new").status_code == 404


def test_a_list_with_scales_as_llama_server_has_it(server):
    one, two = "digest of /a/one.gguf", "digest of /a/two.gguf"
    assert server.http.get("/lora-adapters").json() == [
        {"id": 0, "path": "/a/one.gguf", "scale": 1.0, "task_name": "", "prompt_prefix": ""},
        {"id": 1, "path": "/a/two.gguf", "scale": 0.5, "task_name": "", "prompt_prefix": ""},
    ]
    identity, parts = asked(server)
    assert parts == [(one, 1.0), (two, 0.5)] and identity not in (one, two, None)
    assert asked(server, lora=[]) == (None, [])
    assert asked(server, lora=[{"id": 0, "scale": 1.0}]) == (one, [])
    other, parts = asked(server, lora=[{"id": 0, "scale": 1.0}, {"id": 1, "scale": 0.7}])
    assert parts == [(one, 1.0), (two, 0.7)] and other != identity
    changed = server.http.post("/lora-adapters", json=[{"id": 1, "scale": 1.0}])
    assert changed.json() == {"success": True}
    assert [each["scale"] for each in server.http.get("/lora-adapters").json()] == [0.0, 1.0]
    assert asked(server) == (two, [])
    native = server.post("/completion", prompt="x", n_predict=1, lora=[{"id": 0, "scale": 2.0}])
    assert native.status_code == 200
    assert server.client.requests[-1].adapter_parts == [(one, 2.0)]


def test_wrong_lists_are_refused(server):
    assert (
        "ids are 0 to 1"
        in server.post("/v1/completions", prompt="x", lora=[{"id": 2, "scale": 1}]).json()["error"][
            "message"
        ]
    )
    both = server.post("/v1/completions", prompt="x", model="sql", lora=[{"id": 0, "scale": 1}])
    assert both.status_code == 400 and "is an adapter itself" in both.json()["error"]["message"]
    for body in ({"id": 0}, [{"id": "x", "scale": 1}], [{"id": 7, "scale": 1}], [3]):
        assert server.http.post("/lora-adapters", json=body).status_code == 400, body


def test_the_metric_of_vllm(server):
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    (sample,) = next(f for f in families if f.name == "vllm:lora_requests_info").samples
    assert sample.labels["max_lora"] == "4"
    assert sample.labels["running_lora_adapters"] == "sql"
    assert sample.labels["waiting_lora_adapters"] == ""
    assert abs(sample.value - time.time()) < 60


def test_what_routers_read_is_there(server):
    """The table of docs/routers.md, read as an endpoint picker reads /metrics: one sample of each,
    and numbers in the labels that count something."""
    page = (Path(__file__).parents[2] / "docs" / "routers.md").read_text()
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `vllm:")]
    text = server.http.get("/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    read = {re.findall("`(.+?)`", name)[0]: re.findall("`(.+?)`", labels) for name, labels in rows}
    assert len(read) == 5
    for name, labels in read.items():
        (sample,) = families[name].samples
        assert families[name].type == "gauge" and set(labels) <= set(sample.labels)
        for label in {"block_size", "num_gpu_blocks", "max_lora"} & set(labels):
            assert int(sample.labels[label]) > 0


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/tmp"}),
        ("POST", "/v1/unload_lora_adapter", {"lora_name": "a"}),
        ("GET", "/lora-adapters", None),
        ("POST", "/lora-adapters", []),
    ],
)
def test_a_server_without_room_names_the_flag(method, path, body):
    with running(FakeClient()) as server:
        reply = server.http.request(method, path, json=body)
        assert reply.status_code == 400
        assert "--enable-lora" in reply.json()["error"]["message"]


def test_another_process_is_told_what_was_there():
    adapters = known(STYLES)
    adapters.named["late"] = LoadedAdapter("/a/late", "digest of /a/late", 4)
    del adapters.named["sql"]
    ready = EngineReady(
        max_model_len=1, vocab_size=1, num_blocks=1, block_size=1, kv_tokens=1, max_num_seqs=1,
        adapters=[LoadedAdapter(path, f"digest of {path}", 8) for path in STYLES.paths],
    )  # fmt: skip
    assert list(adapters.on_ready(ready)) == [
        ("load_adapter", ["/a/late", "digest of /a/late"]),
        ("unload_adapter", ["digest of /a/sql"]),
    ]


def test_what_the_page_asks_is_answered(server, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text()
    lines = re.findall(r"^curl localhost:8000(\S+)(?: -d '(.*)')?$", page, re.MULTILINE)
    assert len(lines) == 7
    for path, body in lines:
        body = body.replace("/srv/adapters/new", str(tmp_path))
        method = "POST" if body else "GET"
        reply = server.http.request(method, path, content=body)
        assert reply.status_code == 200, (path, reply.text)
