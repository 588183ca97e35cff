"""Planning from headers alone: what travels, what is kept, what goes wrong."""

import json
import resource
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import gguf
import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save

from pagoda.base.errors import CheckpointError, SourceError
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.files import open_model
from pagoda.weights.hub import models as cache
from pagoda.weights.hub.remote import fetch_headers
from pagoda.weights.hub.store import headers_dir
from pagoda.weights.prequantized.checkpoint import PublishedCheckpoint
from pagoda.weights.source import resolve_model
from tests.unit.weights.hub_server import COMMIT, File, Server, serve

GIB = 1 << 30
CLOSED_PORT = "http://127.0.0.1:9"


def shard(**tensors: tuple[str, list[int], int]) -> File:
    """A safetensors file of tensors with (type, shape, bytes)."""
    header: dict[str, object] = {}
    end = 0
    for name, (kind, shape, nbytes) in tensors.items():
        offsets = [end, end + nbytes]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": offsets}
        end += nbytes
    text = json.dumps(header).encode()
    return File(struct.pack("<Q", len(text)) + text, 8 + len(text) + end)


def shard_name(number: int, count: int) -> str:
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def sharded(count: int) -> dict[str, File]:
    """A repository with an index and shards of 4 GiB, whose headers of 100 KB take two requests."""
    files = {"config.json": File(b'{"model_type": "llama"}'), "README.md": File(b"x" * 999)}
    files |= {"tokenizer.json": File(b"{}", 9 << 20), "generation_config.json": File(b"{}")}
    weight_map = {}
    for number in range(1, count + 1):
        small = {f"layer.{number}.norm.{i}": ("F32", [1], 4) for i in range(1000)}
        weight = {f"layer.{number}.weight": ("BF16", [1 << 16, 1 << 15], 4 * GIB)}
        files[shard_name(number, count)] = shard(**weight, **small)
        weight_map |= dict.fromkeys((*weight, *small), shard_name(number, count))
    index = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    return files | {"model.safetensors.index.json": File(index)}


def write_gguf(path: Path, architecture: str, keys: dict[str, int], tokens: int) -> File:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        writer.add_uint32(key, value)
    if tokens:
        writer.add_token_list([f"token number {number:012d}" for number in range(tokens)])
    writer.add_tensor("w", np.ones((256, 4096), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return File(path.read_bytes())


def point_to(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both hubs; the Hugging Face library reads its variable when it is imported."""
    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", url)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Server]]:
    empty = {"repos": {}, "sent": Counter(), "requests": [], "says": {}, "fails": []}
    kind = type("Hub", (Server,), {**empty, "storage": None, "ignores_ranges": False})
    servers = [serve(kind), serve(kind)]
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "MODELSCOPE_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    point_to(servers[0][1], monkeypatch)
    kind.other_host = servers[1][1]
    monkeypatch.setattr("pagoda.weights.hub.ranges.time.sleep", lambda seconds: None)
    yield kind
    huggingface_hub.close_session()
    for server, _ in servers:
        server.shutdown()
        server.server_close()


def fetch(ref: str, tmp_path: Path, **options: str) -> Path:
    """With a folder for the hub's own cache that is not the user's."""
    return fetch_headers(ref, download_dir=tmp_path / "pulled", **options)


@pytest.mark.parametrize("kind", ["hf", "modelscope"])
def test_shards_of_4_gib_are_planned_with_from_their_headers(
    kind: str, hub: type[Server], tmp_path: Path
) -> None:
    files = hub.repos["org/big"] = sharded(3)
    path = fetch(f"{kind}:org/big", tmp_path)
    model = open_model(path)
    assert model.config == {"model_type": "llama"}
    assert len(model.checkpoint.tensors) == 3003
    weight = TensorInfo("layer.2.weight", (1 << 16, 1 << 15), "BF16", 4 * GIB)
    assert model.checkpoint.tensors["layer.2.weight"] == weight
    for name in (shard_name(number, 3) for number in (1, 2, 3)):
        assert hub.sent[name] == len(files[name].head)
        assert (path / name).stat().st_size == files[name].size
        assert (path / name).stat().st_blocks * 512 < 1 << 20
    planned = {"config.json", "generation_config.json", "model.safetensors.index.json"}
    shards = {shard_name(number, 3) for number in (1, 2, 3)}
    assert set(hub.sent) == planned | shards
    assert path.is_relative_to(headers_dir() / kind / "org" / "big")


def test_small_headers_take_one_request_each(hub: type[Server], tmp_path: Path) -> None:
    files = {
        shard_name(n, 60): shard(**{f"t{n}": ("I8", [1 << 20], 1 << 20)}) for n in range(1, 61)
    }
    hub.repos["org/many"] = {"config.json": File(b"{}"), **files}
    checkpoint = open_model(fetch("org/many", tmp_path)).checkpoint
    assert checkpoint.tensors.keys() == {f"t{number}" for number in range(1, 61)}
    assert len(hub.requests) == 62
    assert max(hub.sent.values()) == 1 << 16


def test_a_gguf_with_a_large_vocabulary_and_its_projector(
    hub: type[Server], tmp_path: Path
) -> None:
    keys = {"qwen3vl.embedding_length": 4096}
    model = write_gguf(tmp_path / "m.gguf", "qwen3vl", keys, tokens=150_000)
    tower = write_gguf(tmp_path / "v.gguf", "clip", {"clip.vision.projection_dim": 4096}, tokens=0)
    tower.head = tower.head.replace(b"\1\0\0\0\0\0\0\0w", b"\1\0\0\0\0\0\0\0v")
    model.size, tower.size = 3 * GIB, 3 * GIB
    hub.repos["org/g"] = {
        "m-Q4_K_M.gguf": model,
        "m-Q8_0.gguf": model,
        "mmproj-F16.gguf": tower,
        "mmproj-F32.gguf": tower,
    }
    path = fetch("org/g", tmp_path)
    assert path.name == "m-Q4_K_M.gguf"
    found = open_model(path)
    assert found.projector == path.with_name("mmproj-F16.gguf")
    assert list(found.checkpoint.tensors) == ["w", "v"]
    assert found.metadata["tokenizer.ggml.tokens"][-1] == "token number 000000149999"
    assert set(hub.sent) == {"m-Q4_K_M.gguf", "mmproj-F16.gguf"}
    header = len(model.head) - (4 << 20)
    assert header > 4 << 20
    assert header < hub.sent["m-Q4_K_M.gguf"] < 2 * header
    assert hub.sent["mmproj-F16.gguf"] == 2 << 20
    assert path.stat().st_size == 3 * GIB
    with path.open("rb") as file:
        assert file.read(header).rstrip(b"\0") == model.head[:header].rstrip(b"\0")
        assert not file.read(1 << 20).strip(b"\0")
    hub.sent.clear()
    assert fetch("org/g:Q8_0", tmp_path) == path.with_name("m-Q8_0.gguf")
    assert set(hub.sent) == {"m-Q8_0.gguf"}


def test_a_quantized_model_opens_as_what_it_stands_for(hub: type[Server], tmp_path: Path) -> None:
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    hub.repos["org/fp8"] = {
        "config.json": File(json.dumps({"quantization_config": quantization}).encode()),
        "model.safetensors": shard(
            **{
                "l.weight": ("F8_E4M3", [1 << 15, 1 << 15], GIB),
                "l.weight_scale_inv": ("F32", [256, 256], 4 << 16),
            }
        ),
    }
    checkpoint = open_model(fetch("org/fp8", tmp_path)).checkpoint
    assert isinstance(checkpoint, PublishedCheckpoint)
    assert list(checkpoint.tensors) == ["l.weight"]
    assert checkpoint.tensors["l.weight"].shape == (1 << 15, 1 << 15)
    checkpoint.close()


def test_configs_of_modules_come_too(hub: type[Server], tmp_path: Path) -> None:
    weights = File(save({"t": np.ones((4, 4), np.float32)}))
    hub.repos["org/embed"] = {"model.safetensors": weights} | {
        name: File(b"{}")
        for name in (
            "config.json", "modules.json", "sentence_bert_config.json", "tokenizer_config.json",
            "1_Pooling/config.json", "vocab.txt", "tokenizer.json", "openvino/config.json",
        )
    }  # fmt: skip
    path = fetch("org/embed", tmp_path)
    length = len(weights.head) - 64
    assert (path / "model.safetensors").read_bytes() == weights.head[:length] + bytes(64)
    assert set(hub.sent) == {
        "config.json", "modules.json", "sentence_bert_config.json", "tokenizer_config.json",
        "1_Pooling/config.json", "model.safetensors",
    }  # fmt: skip


def test_a_second_call_asks_for_the_commit_alone(
    hub: type[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    hub.repos["org/big"] = sharded(2)
    refs = ("hf:org/big", "modelscope:org/big")
    first = [fetch(ref, tmp_path) for ref in refs]
    hub.requests.clear()
    assert [fetch(ref, tmp_path) for ref in refs] == first
    assert len(hub.requests) == 2
    point_to(CLOSED_PORT, monkeypatch)
    caplog.set_level("INFO", "pagoda")
    assert [fetch(ref, tmp_path) for ref in refs] == first
    assert caplog.text.count("org/big comes from the cache: ") == 2
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch("org/big", tmp_path) == first[0]
    assert fetch("org/big", tmp_path, revision=COMMIT) == first[0]
    for ref, options in (("org/big:Q4_0", {}), ("org/big", {"revision": "v2"}), ("org/no", {})):
        with pytest.raises(SourceError, match="HF_HUB_OFFLINE forbids asking the hub"):
            fetch(ref, tmp_path, **options)
    next(first[0].glob("*-00002-*")).unlink()
    with pytest.raises(SourceError, match="HF_HUB_OFFLINE"):
        fetch("org/big", tmp_path)


@pytest.mark.parametrize("kind", ["hf", "modelscope"])
def test_what_was_pulled_is_used_as_it_is(
    kind: str, hub: type[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {name: File(save({name: np.ones(8, np.float32)})) for name in ("a", "b")}
    hub.repos["org/small"] = {
        "config.json": File(b"{}"),
        "model-00001-of-00002.safetensors": weights["a"],
        "model-00002-of-00002.safetensors": weights["b"],
    }
    folder = tmp_path / "models/modelscope/org/small"
    if kind == "hf":
        repo = tmp_path / "models/models--org--small"
        folder = repo / "snapshots" / COMMIT
        (repo / "refs").mkdir(parents=True)
        (repo / "refs/main").write_text(COMMIT)
    folder.mkdir(parents=True)
    for name, file in hub.repos["org/small"].items():
        (folder / name).write_bytes(file.head)
    ref = f"{kind}:org/small"
    assert fetch_headers(ref, download_dir=tmp_path / "models") == folder
    assert not hub.sent
    endpoint = f"http://{hub.requests[0][0]}"
    point_to(CLOSED_PORT, monkeypatch)
    assert fetch_headers(ref, download_dir=tmp_path / "models") == folder
    next(folder.glob("*-00002-*")).unlink()
    with pytest.raises(SourceError, match="could not be fetched"):
        fetch_headers(ref, download_dir=tmp_path / "models")
    point_to(endpoint, monkeypatch)
    assert fetch_headers(ref, download_dir=tmp_path / "models") != folder


def test_local_models_are_their_own_path(hub: type[Server], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert fetch_headers(str(tmp_path)) == tmp_path
    assert fetch_headers(str(tmp_path / "config.json")) == tmp_path / "config.json"
    assert not hub.requests


@pytest.mark.parametrize("kind", ["hf", "modelscope"])
def test_tokens_stay_with_the_hub(
    kind: str, hub: type[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "secret")
    hub.repos["org/big"] = sharded(1)
    hub.storage = hub.other_host
    assert open_model(fetch(f"{kind}:org/big", tmp_path)).checkpoint.tensors
    from_storage = [token for _, path, token in hub.requests if path.startswith("/storage")]
    from_hub = [token for _, path, token in hub.requests if not path.startswith("/storage")]
    assert set(from_storage) == {None}
    assert set(from_hub) == {"Bearer secret"}
    assert {host for host, path, _ in hub.requests if path.startswith("/storage")} == {
        hub.other_host.removeprefix("http://")
    }


def test_a_server_that_ignores_ranges_is_cut_off(hub: type[Server], tmp_path: Path) -> None:
    hub.repos["org/big"] = sharded(1)
    hub.ignores_ranges = True
    assert open_model(fetch("org/big", tmp_path)).checkpoint.tensors
    # The sockets of both sides hold some megabytes.
    assert hub.sent[shard_name(1, 1)] < 64 << 20


def test_passing_failures_are_tried_again(hub: type[Server], tmp_path: Path) -> None:
    hub.repos["org/big"] = sharded(1)
    hub.fails = [503, 429]
    assert open_model(fetch("org/big", tmp_path)).checkpoint.tensors
    hub.repos["org/other"] = sharded(1)
    hub.fails = [503] * 100
    with pytest.raises(SourceError, match=r"org/other could not be fetched from .*503"):
        fetch("org/other", tmp_path)


def test_gated_and_unknown_models(hub: type[Server], tmp_path: Path) -> None:
    hub.repos["org/gated"] = sharded(2)
    hub.fails = [403] * 100
    with pytest.raises(SourceError, match="accept a licence.*HF_TOKEN"):
        fetch("org/gated", tmp_path)
    assert max(Counter(path for _, path, _ in hub.requests).values()) == 1
    for ref in ("org/unknown", "modelscope:org/unknown"):
        with pytest.raises(SourceError, match="no model org/unknown"):
            fetch(ref, tmp_path)


def test_hubs_that_cannot_be_reached(
    hub: type[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_to(CLOSED_PORT, monkeypatch)
    for ref in ("org/big", "modelscope:org/big"):
        with pytest.raises(SourceError, match=f"org/big could not be fetched from {CLOSED_PORT}"):
            fetch(ref, tmp_path)


HTML = b"<!DOCTYPE html><html>Please log in</html>"
BROKEN = {
    "header of 100 GB": ("m.safetensors", File(struct.pack("<Q", 10**11), 10**12), "cannot have"),
    "no JSON": ("m.safetensors", File(struct.pack("<Q", 9) + b"not JSON!", 64), "not valid JSON"),
    "empty": ("m.safetensors", File(b""), "has 0 bytes"),
    "no GGUF": ("m.gguf", File(HTML, GIB), "is not a GGUF"),
    "GGUF without end": (
        "m.gguf",
        # A key with 16 million numbers, then keys without names.
        File(b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1 << 20, 1, b"k", 9, 0, 1 << 24), GIB),
        "org/bad/m.gguf is broken",
    ),
    "string without end": (
        "m.gguf",
        File(b"GGUF" + struct.pack("<IQQQ1sIQ", 3, 0, 1, 1, b"k", 8, 1 << 27), GIB),
        "does not end within 64.00 MiB",
    ),
    "huge config": ("config.json", File(b"{}", GIB), "too many for a JSON file"),
    "size of 2^70": ("m.safetensors", File(struct.pack("<Q", 2) + b"{}", 1 << 70), "sparse file"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_hostile_files(case: str, hub: type[Server], tmp_path: Path) -> None:
    name, file, said = BROKEN[case]
    hub.repos["org/bad"] = {"config.json": File(b"{}"), **{name: file}}
    if name == "config.json":
        hub.repos["org/bad"]["m.safetensors"] = shard(t=("I8", [4], 4))
    with pytest.raises((CheckpointError, SourceError), match=said) as caught:
        fetch("org/bad", tmp_path)
    assert name in str(caught.value)
    assert hub.sent[name] <= 64 << 20
    assert not list(headers_dir().rglob(f"{name}*"))


@pytest.mark.parametrize("name", ["config.json", "m.safetensors"])
def test_a_login_page_is_no_file(name: str, hub: type[Server], tmp_path: Path) -> None:
    hub.repos["org/m"] = {"config.json": File(b"{}"), "m.safetensors": shard(t=("I8", [4], 4))}
    hub.says = {name: HTML}
    with pytest.raises(SourceError, match=f"org/m/{name}.*sent text/html of 41: a login page"):
        fetch("org/m", tmp_path)
    hub.says = {"listing": HTML}
    with pytest.raises(SourceError, match="in a form unknown here"):
        fetch("org/m", tmp_path)
    hub.says = {}
    assert open_model(fetch("org/m", tmp_path)).checkpoint.tensors


def test_a_file_system_without_room_for_sparse_files(hub: type[Server], tmp_path: Path) -> None:
    hub.repos["org/big"] = sharded(1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (GIB, before[1]))
    try:
        with pytest.raises(SourceError, match=r"File too large.*sparse file of 4.00 GiB"):
            fetch("org/big", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(headers_dir().rglob("*.part"))


def test_headers_are_no_model(hub: type[Server], tmp_path: Path) -> None:
    hub.repos["org/big"] = sharded(1)
    hub.repos["org/g"] = {"m.gguf": write_gguf(tmp_path / "m.gguf", "llama", {}, tokens=10)}
    fetch("modelscope:org/big", tmp_path)
    folder, file = fetch("org/big", tmp_path), fetch("org/g", tmp_path)
    assert [model for model in cache.list_models() if "org/" in model.name] == []
    with pytest.raises(SourceError, match="cache has no modelscope:org/big"):
        cache.remove("modelscope:org/big")
    assert folder.is_dir()
    for path in (folder, file):
        checkpoint = open_model(resolve_model(str(path))).checkpoint
        with pytest.raises(CheckpointError, match="header but no weights.*pagoda pull"):
            checkpoint.read(next(iter(checkpoint.tensors)))
