"""What `open_model` makes of files and folders."""

import json
import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from pagoda.base.errors import CheckpointError, ConfigError, SourceError
from pagoda.weights.files import open_model
from pagoda.weights.source import resolve_model


def write_gguf(path: Path, **keys: float) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in keys.items():
        writer.add_float32(key.replace("__", "."), value)
    writer.add_tensor("t", np.ones((2, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def test_a_gguf_and_its_sampling_defaults(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", general__sampling__temp=0.5)
    model = open_model(path)
    assert (model.kind, model.config, model.folder) == ("gguf", None, tmp_path)
    assert model.metadata["general.architecture"] == "llama"
    assert model.generation_config == {"temperature": 0.5}
    write_json(tmp_path / "generation_config.json", {"temperature": 0.2, "top_p": 0.9})
    assert open_model(path).generation_config == {"temperature": 0.2, "top_p": 0.9}
    assert list(model.checkpoint.tensors) == ["t"]


def test_a_folder_of_one_gguf_is_that_gguf(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    write_gguf(tmp_path / "mmproj-m.gguf")
    write_json(tmp_path / "config.json", {})
    assert open_model(tmp_path).path == path
    write_gguf(tmp_path / "n.gguf")
    with pytest.raises(CheckpointError, match=r"several GGUF models \(m.gguf, n.gguf\)"):
        open_model(tmp_path)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("", "m-Q4_K_M.gguf"),
        (":Q8_0", "m-Q8_0.gguf"),
        (":q2_k", "Q2_K/m-Q2_K.gguf"),
        (":m-F16-00002-of-00002.gguf", "m-F16-00001-of-00002.gguf"),
    ],
)
def test_one_gguf_of_a_folder(wanted, found, tmp_path: Path, caplog) -> None:
    quants = ("Q8_0", "Q4_K_M", "F16-00001-of-00002", "F16-00002-of-00002")
    for name in (*(f"m-{quant}" for quant in quants), "mmproj-F16", "imatrix"):
        write_gguf(tmp_path / f"{name}.gguf")
    (tmp_path / "Q2_K").mkdir()
    write_gguf(tmp_path / "Q2_K" / "m-Q2_K.gguf")
    write_json(tmp_path / "config.json", {})
    with caplog.at_level("INFO", "pagoda"):
        assert resolve_model(f"{tmp_path}{wanted}") == tmp_path / found
    assert f"{found} (" in caplog.text
    with pytest.raises(SourceError, match="has no 'mmproj-F16.gguf'; it has Q2_K, F16, Q4_K_M"):
        resolve_model(f"{tmp_path}:mmproj-F16.gguf")


def test_a_folder_with_safetensors_is_that_model(tmp_path: Path) -> None:
    save_file({"t": np.ones(4, dtype=np.float32)}, tmp_path / "model.safetensors")
    for name in ("m-Q8_0.gguf", "m-Q4_0.gguf"):
        write_gguf(tmp_path / name)
    assert resolve_model(str(tmp_path)) == tmp_path
    assert resolve_model(f"{tmp_path}:Q4_0") == tmp_path / "m-Q4_0.gguf"


def test_a_hugging_face_folder(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    write_json(tmp_path / "generation_config.json", {"temperature": 0.6})
    write_gguf(tmp_path / "m.gguf")
    save_file({"t": np.ones(4, dtype=np.float32)}, tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        model = open_model(path)
        assert model.kind == "safetensors"
        assert model.config == {"model_type": "llama"}
        assert model.generation_config == {"temperature": 0.6}
        assert model.metadata == {}
        assert list(model.checkpoint.tensors) == ["t"]


def test_a_config_without_weights_opens_until_weights_are_asked_for(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    model = open_model(tmp_path)
    assert model.config == {"model_type": "llama"}
    assert model.generation_config == {}
    with pytest.raises(CheckpointError, match="no safetensors weights"):
        _ = model.checkpoint


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        open_model(tmp_path / "none")
    with pytest.raises(CheckpointError, match="holds no model"):
        open_model(tmp_path)
    pickle = tmp_path / "pytorch_model.bin"
    pickle.write_bytes(b"PK\x03\x04")
    with pytest.raises(CheckpointError, match="reads no other weights"):
        open_model(pickle)
    (tmp_path / "config.json").write_text('{"a": 1, "a": 2}')
    with pytest.raises(CheckpointError, match=r"config.json is not valid JSON.*'a' is there twice"):
        open_model(tmp_path)


def test_a_bare_config_is_the_model_of_its_folder(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    model = open_model(tmp_path / "config.json")
    assert (model.kind, model.config) == ("safetensors", {"model_type": "llama"})
    assert (model.folder, model.weight_paths(), model.generation_config) == (tmp_path, [], {})
    with pytest.raises(CheckpointError, match="no safetensors weights"):
        _ = model.checkpoint


def test_a_pipe_is_said_to_be_none(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="neither a file nor a folder"):
        open_model(tmp_path / "pipe")


POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 12345678\n"
)


def test_a_projector_that_is_not_there_is_told_before_what_the_model_is(tmp_path):
    write_gguf(tmp_path / "m.gguf")
    with pytest.raises(ConfigError, match="there is no such file"):
        open_model(tmp_path / "m.gguf", str(tmp_path / "mmproj.gguf"))


@pytest.mark.parametrize("name", ["m.gguf", "model.safetensors", "config.json"])
@pytest.mark.parametrize("folder", [True, False])
def test_what_git_left_of_a_large_file_is_named(tmp_path: Path, name: str, folder: bool) -> None:
    (tmp_path / name).write_bytes(POINTER)
    with pytest.raises(CheckpointError, match=f"{name} is a Git LFS pointer.*`git lfs pull`"):
        assert open_model(tmp_path if folder else tmp_path / name).checkpoint


def test_a_folder_without_weights_that_can_be_read_is_told_what_to_do(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {})
    with pytest.raises(CheckpointError, match="no safetensors weights; fetch them, or pass --load"):
        assert open_model(tmp_path).checkpoint
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(CheckpointError, match="pickles.*Choose a converted copy"):
        assert open_model(tmp_path).checkpoint
