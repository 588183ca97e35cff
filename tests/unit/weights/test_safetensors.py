"""Our safetensors reader against the safetensors library, and against files that lie."""

import json
import random
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors
from safetensors.numpy import save_file

from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.weights.safetensors import INDEX_NAME, SafetensorsCheckpoint


def sample_tensors(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        f"model.{seed}.weight": rng.standard_normal((6, 8)).astype(np.float32),
        f"model.{seed}.experts": rng.standard_normal((3, 4, 8)).astype(np.float16),
        f"model.{seed}.norm": rng.standard_normal(8).astype(np.float64),
        f"model.{seed}.ids": rng.integers(-5, 5, (2, 3)),
        f"model.{seed}.scalar": np.array(2.5, dtype=np.float32),
        f"model.{seed}.none": np.zeros((0, 4), dtype=np.uint8),
    }


def assert_same_as_reference(path: Path) -> None:
    ours = SafetensorsCheckpoint(path)
    theirs = dict(safetensors.deserialize(path.read_bytes()))
    assert ours.tensors.keys() == theirs.keys()
    for name, tensor in theirs.items():
        info = ours.tensors[name]
        assert (info.type, list(info.shape)) == (tensor["dtype"], tensor["shape"])
        assert info.nbytes == len(tensor["data"])
        assert ours.read(name).tobytes() == bytes(tensor["data"])


def test_equal_to_the_reference_reader(tmp_path: Path) -> None:
    save_file(sample_tensors(), tmp_path / "model.safetensors", {"format": "pt"})
    assert_same_as_reference(tmp_path / "model.safetensors")
    checkpoint = SafetensorsCheckpoint(tmp_path)
    assert checkpoint.metadata == {"format": "pt"}
    assert not checkpoint.read("model.0.weight").flags.writeable


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "BOOL", "I16", "F4"])
def test_types_that_numpy_lacks(tmp_path: Path, dtype: str) -> None:
    nbytes = {"BF16": 48, "I16": 48, "F4": 12}.get(dtype, 24)
    path = tmp_path / "t.safetensors"
    path.write_bytes(raw_file({"t": entry([4, 6], 0, nbytes, dtype)}, nbytes))
    assert_same_as_reference(path)


def test_slices(tmp_path: Path) -> None:
    tensors = sample_tensors()
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = SafetensorsCheckpoint(tmp_path)
    part = checkpoint.read("model.0.weight", rows=slice(1, 4), columns=slice(2, 6))
    assert np.array_equal(part, tensors["model.0.weight"][1:4].view(np.uint8)[:, 8:24])
    stack = tensors["model.0.experts"]
    rows = checkpoint.read("model.0.experts", rows=slice(2, 5), columns=slice(4, 8))
    assert rows.tobytes() == stack.reshape(-1, stack.shape[-1])[2:5, 4:].tobytes()


def write_shards(folder: Path) -> dict[str, str]:
    weight_map = {}
    for i in range(2):
        name = f"model-{i + 1:05d}-of-00002.safetensors"
        save_file(sample_tensors(i), folder / name)
        weight_map |= dict.fromkeys(sample_tensors(i), name)
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return weight_map


@pytest.mark.parametrize("with_index", [True, False])
def test_shards(tmp_path: Path, with_index: bool) -> None:
    weight_map = write_shards(tmp_path)
    if not with_index:
        (tmp_path / INDEX_NAME).unlink()
    checkpoint = SafetensorsCheckpoint(tmp_path)
    assert checkpoint.tensors.keys() == weight_map.keys()
    for seed in range(2):
        for name, value in sample_tensors(seed).items():
            assert checkpoint.read(name).tobytes() == value.tobytes()


@pytest.mark.parametrize("with_index", [True, False])
def test_a_missing_shard_is_named(tmp_path: Path, with_index: bool) -> None:
    write_shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    if not with_index:
        (tmp_path / INDEX_NAME).unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00002.safetensors is missing"):
        SafetensorsCheckpoint(tmp_path)


def test_an_index_that_lies(tmp_path: Path) -> None:
    weight_map = write_shards(tmp_path)
    index = tmp_path / INDEX_NAME

    def write(changed: object) -> None:
        index.write_text(json.dumps({"weight_map": changed}))

    write(weight_map | {"model.9.weight": "model-00001-of-00002.safetensors"})
    with pytest.raises(CheckpointError, match="lacks tensor 'model.9.weight'"):
        SafetensorsCheckpoint(tmp_path)
    for bad in ("../secret.safetensors", "/etc/passwd", "", "..", 5, ["x"]):
        write(weight_map | {"t": bad})
        with pytest.raises(CheckpointError, match="no file name"):
            SafetensorsCheckpoint(tmp_path)
    for broken in ([], {}, None):
        write(broken)
        with pytest.raises(CheckpointError, match="no weight_map"):
            SafetensorsCheckpoint(tmp_path)


def test_several_checkpoints_in_a_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file(sample_tensors(), tmp_path / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match="several checkpoints"):
        SafetensorsCheckpoint(tmp_path)
    save_file(sample_tensors(1), tmp_path / "consolidated.safetensors")
    (tmp_path / "b.safetensors").unlink()
    assert "model.0.weight" in SafetensorsCheckpoint(tmp_path).tensors


def raw_file(header: bytes | dict, data: int = 0, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(data)


def entry(shape: list, begin: int, end: int, dtype: object = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


TWICE = b'{"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"t":%s}' % (
    b'{"dtype":"U8","shape":[4],"data_offsets":[4,8]}'
)
HOSTILE = {
    "empty": (b"", "empty"),
    "short": (b"abc", "3 bytes"),
    "header too long": (raw_file({}, length=2**63), "cannot have"),
    "header longer than the file": (raw_file({}, 8, length=11), "cannot have"),
    "not JSON": (raw_file(b"{]"), "not valid JSON"),
    "not an object": (raw_file(b"[1]"), "not a JSON object"),
    "not UTF-8": (raw_file(b'{"\xff": 1}'), "not valid JSON"),
    "endless number": (raw_file(b'{"t": ' + b"9" * 5000 + b"}"), "not valid JSON"),
    "nested": (raw_file(b'{"t":' + b"[" * 100_000), "nested too deeply"),
    "duplicate names": (raw_file(TWICE, 8), "'t' is there twice"),
    "entry is no object": (raw_file({"t": 5}), "'t' lacks dtype"),
    "no dtype": (raw_file({"t": {"shape": [1], "data_offsets": [0, 4]}}, 4), "'t' lacks dtype"),
    "metadata": (raw_file({"__metadata__": [1]}), "__metadata__"),
    "negative size": (raw_file({"t": entry([-1], 0, 4)}, 4), "whole numbers"),
    "fraction": (raw_file({"t": entry([1.5], 0, 4)}, 4), "whole numbers"),
    "boolean": (raw_file({"t": entry([True], 0, 4)}, 4), "whole numbers"),
    "negative offset": (raw_file({"t": entry([1], -4, 0)}, 4), "whole numbers"),
    "three offsets": (
        raw_file({"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}, 4),
        "whole numbers",
    ),
    "overflow": (raw_file({"t": entry([2**32] * 3, 0, 4)}, 4), "impossibly large"),
    "wrong size": (raw_file({"t": entry([2], 0, 4)}, 4), "needs 8 bytes"),
    "offsets backwards": (raw_file({"t": entry([1], 4, 0)}, 4), "needs 4 bytes"),
    "outside": (raw_file({"t": entry([8], 0, 32)}, 31), "cut short"),
    "overlap": (raw_file({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, 12), "'b'.*overlaps"),
    "hole": (raw_file({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, 12), "'b'.*hole"),
    "left over": (raw_file({"a": entry([1], 0, 4)}, 12), "8 bytes that belong to no tensor"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_by_name_and_place(tmp_path: Path, case: str) -> None:
    data, message = HOSTILE[case]
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message) as caught:
        SafetensorsCheckpoint(path)
    assert "hostile.safetensors" in str(caught.value)


@pytest.mark.parametrize("dtype", ["Q4_1", "F31", None, ["F32"], 7])
def test_unknown_types_are_named(tmp_path: Path, dtype: object) -> None:
    path = tmp_path / "t.safetensors"
    path.write_bytes(raw_file({"t": entry([1], 0, 4, dtype)}, 4))
    with pytest.raises(UnsupportedModelError, match="'t'"):
        SafetensorsCheckpoint(path)


def test_fuzz_damaged_files_open_or_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(sample_tensors(), path)
    whole = path.read_bytes()
    header = 8 + struct.unpack_from("<Q", whole)[0]
    rng = random.Random(5)
    refused = 0
    for _ in range(600):
        data = bytearray(whole)
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        for _ in range(rng.choice((0, 1, 1, 2, 8))):
            if data:
                data[rng.randrange(min(header, len(data)))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        try:
            checkpoint = SafetensorsCheckpoint(path)
        except CheckpointError as error:
            assert str(path) in str(error)
            refused += 1
        else:
            for name in checkpoint.tensors:
                checkpoint.read(name)
            checkpoint.close()
    assert 100 < refused < 600
