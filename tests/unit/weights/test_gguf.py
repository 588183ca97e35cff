"""Our GGUF reader against the gguf package's, and against files that lie."""

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.weights.gguf.checkpoint import GgufCheckpoint


def write_sample(path: Path) -> dict[str, np.ndarray]:
    """A GGUF with every kind of metadata and some tensors; returns the tensors' raw bytes."""
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("test.u8", 200)
    writer.add_int8("test.i8", -3)
    writer.add_uint16("test.u16", 60000)
    writer.add_int16("test.i16", -30000)
    writer.add_uint32("test.u32", 4_000_000_000)
    writer.add_int32("test.i32", -7)
    writer.add_uint64("test.u64", 2**60)
    writer.add_int64("test.i64", -(2**60))
    writer.add_float32("test.f32", 1.5)
    writer.add_float64("test.f64", 1e-300)
    writer.add_bool("test.bool", True)
    writer.add_string("test.string", "a pagoda: 塔 🏯")
    writer.add_array("test.strings", ["塔", "", "x" * 100])
    writer.add_array("test.ints", [1, -2, 3])
    writer.add_array("test.floats", [0.5, 1.5])
    writer.add_array("test.bools", [True, False])
    raw: dict[str, np.ndarray] = {}
    for name, shape, kind in (
        ("token_embd.weight", (10, 64), "F16"),
        ("blk.0.ffn_down.weight", (6, 96), "Q4_1"),
        ("blk.0.ffn_down_exps.weight", (3, 4, 64), "Q8_0"),
        ("output_norm.weight", (64,), "F32"),
    ):
        values = rng.standard_normal(shape).astype(np.float32)
        packed = gguf.quantize(values, gguf.GGMLQuantizationType[kind])
        quantized = None if kind in ("F16", "F32") else gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, packed, raw_dtype=quantized)
        raw[name] = packed.reshape(-1, packed.shape[-1]).view(np.uint8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return raw


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def key_u32(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


def tensor(name: str | bytes, shape: tuple[int, ...], type_id: int, offset: int) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", type_id, offset)


def file_of(
    keys: list[bytes],
    tensors: list[bytes],
    data: int = 0,
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A GGUF of these raw entries and `data` zero bytes; `counts` lies about their number."""
    tensor_count, key_count = counts or (len(tensors), len(keys))
    header = b"GGUF" + struct.pack("<IQQ", version, tensor_count, key_count)
    header += b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + bytes(data)


@pytest.fixture
def sample(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    path = tmp_path / "sample.gguf"
    return path, write_sample(path)


def open_bytes(tmp_path: Path, data: bytes) -> GgufCheckpoint:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(data)
    return GgufCheckpoint(path)


def assert_same_as_reference(path: Path) -> None:
    ours, theirs = GgufCheckpoint(path), gguf.GGUFReader(path)
    expected = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.metadata == expected
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.type == tensor.tensor_type.name
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert info.nbytes == tensor.n_bytes
        raw = ours.read(tensor.name)
        assert np.array_equal(raw.ravel(), tensor.data.ravel().view(np.uint8))


def test_equal_to_the_reference_reader(sample) -> None:
    assert_same_as_reference(sample[0])


def test_default_model_equal_to_the_reference_reader(smollm2_gguf: Path) -> None:
    assert_same_as_reference(smollm2_gguf)


def test_version_2(sample) -> None:
    path, raw = sample
    data = bytearray(path.read_bytes())
    data[4:8] = struct.pack("<I", 2)
    path.write_bytes(data)
    assert np.array_equal(
        GgufCheckpoint(path).read("output_norm.weight")[0], raw["output_norm.weight"].ravel()
    )


def test_reads_are_read_only_views(sample) -> None:
    path, raw = sample
    checkpoint = GgufCheckpoint(path)
    for name, expected in raw.items():
        view = checkpoint.read(name)
        assert np.array_equal(view, expected)
        assert not view.flags.writeable
        assert not view.flags.owndata
    with pytest.raises(KeyError):
        checkpoint.read("nothing")


def test_slices(sample) -> None:
    path, raw = sample
    checkpoint = GgufCheckpoint(path)
    name = "blk.0.ffn_down.weight"
    part = checkpoint.read(name, rows=slice(2, 5), columns=slice(32, 96))
    assert np.array_equal(part, raw[name][2:5, 20:60])
    experts = checkpoint.read("blk.0.ffn_down_exps.weight", rows=slice(3, 10))
    assert np.array_equal(experts, raw["blk.0.ffn_down_exps.weight"][3:10])
    norm = raw["output_norm.weight"]
    assert np.array_equal(
        checkpoint.read("output_norm.weight", rows=slice(8, 16)).ravel(), norm.ravel()[32:64]
    )
    assert checkpoint.read(name, rows=slice(3, 3)).shape == (0, 60)
    with pytest.raises(ValueError, match="cut blocks of 32"):
        checkpoint.read(name, columns=slice(16, 96))
    with pytest.raises(ValueError, match="step"):
        checkpoint.read(name, rows=slice(0, 6, 2))


def test_views_outlive_the_checkpoint(sample) -> None:
    path, raw = sample
    checkpoint = GgufCheckpoint(path)
    view = checkpoint.read("output_norm.weight")
    checkpoint.release("output_norm.weight")
    checkpoint.close()
    assert np.array_equal(view.ravel(), raw["output_norm.weight"].ravel())


def write_split(folder: Path) -> list[Path]:
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=1)
    for i in range(3):
        writer.add_tensor(f"t{i}", np.full((2, 8), i, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("m-*.gguf"))


def test_split_files_open_by_any_part(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    assert len(paths) == 3
    for source in (paths[0], paths[2], paths):
        checkpoint = GgufCheckpoint(source)
        assert sorted(checkpoint.tensors) == ["t0", "t1", "t2"]
        assert checkpoint.metadata["general.architecture"] == "llama"
        assert checkpoint.read("t2").view(np.float32).tolist() == [[2.0] * 8] * 2


def test_split_files_that_miss_a_part(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    with pytest.raises(CheckpointError, match="split.count"):
        GgufCheckpoint(paths[:2])
    with pytest.raises(CheckpointError, match="not part 1"):
        GgufCheckpoint([paths[1], paths[0], paths[2]])
    paths[1].unlink()
    with pytest.raises(CheckpointError, match="00002-of-00003.gguf is missing"):
        GgufCheckpoint(paths[0])


HUGE = 2**63
HOSTILE = {
    "empty": (b"", "empty"),
    "no magic": (b"GGML" + bytes(60), "not a GGUF"),
    "too short": (b"GGUF\x03\x00", "not a GGUF"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(32), "big-endian"),
    "version 1": (file_of([], [], version=1), "version 1"),
    "tensor count": (file_of([], [], counts=(HUGE, 0)), "tensors"),
    "many tensors": (file_of([], [], counts=(1000, 0), data=64), "byte"),
    "key count": (file_of([], [], counts=(0, HUGE)), "keys"),
    "key length": (file_of([struct.pack("<Q", HUGE)], []), "key name of"),
    "key cut": (file_of([struct.pack("<Q", 5000) + b"x"], []), "ends too early"),
    "key not utf-8": (file_of([text(b"\xff\xfe") + bytes(8)], []), "UTF-8"),
    "string length": (
        file_of([text("k") + struct.pack("<IQ", 8, HUGE)], []),
        "'k'.*impossibly long",
    ),
    "string not utf-8": (
        file_of([text("k") + struct.pack("<I", 8) + text(b"\xc3(")], []),
        "in key 'k'.*UTF-8",
    ),
    "array count": (
        file_of([text("k") + struct.pack("<IIQ", 9, 4, HUGE)], []),
        "array of 9223372036854775808",
    ),
    "array cut": (
        file_of([text("k") + struct.pack("<IIQ", 9, 10, 1 << 20)], []),
        "ends too early",
    ),
    "strings cut": (
        file_of([text("k") + struct.pack("<IIQ", 9, 8, 1 << 20)], []),
        "ends too early",
    ),
    "nested array": (
        file_of([text("k") + struct.pack("<IIQ", 9, 9, 1)], []),
        "array of arrays",
    ),
    "value type": (file_of([text("k") + struct.pack("<II", 77, 0)], []), "type 77"),
    "key twice": (file_of([key_u32("k", 1)] * 2, []), "'k'.*key twice"),
    "alignment": (
        file_of([key_u32("general.alignment", 24)], []),
        "general.alignment is 24",
    ),
    "alignment type": (
        file_of([text("general.alignment") + struct.pack("<I", 8) + text("x")], []),
        "general.alignment is 'x'",
    ),
    "tensor twice": (
        file_of([], [tensor("t", (8,), 0, 0)] * 2, 64),
        "two tensors named 't'",
    ),
    "five dimensions": (file_of([], [tensor("t", (1,) * 5, 0, 0)], 64), "5 dimensions"),
    "many dimensions": (
        file_of([], [text("t") + struct.pack("<I", 2**31)], 64),
        "dimensions",
    ),
    "dimension overflow": (
        file_of([], [tensor("t", (2**32, 2**32, 2**32), 0, 0)], 64),
        "impossibly large",
    ),
    "no elements, huge rows": (
        file_of([], [tensor("t", (2**63 - 1, 0), 0, 0)], 64),
        "impossibly large",
    ),
    "huge tensor": (file_of([], [tensor("t", (2**40,), 0, 0)], 64), "cut short.*'t'"),
    "partial block": (file_of([], [tensor("t", (33,), 2, 0)], 64), "Q4_0 blocks of 32"),
    "offset outside": (
        file_of([], [tensor("t", (8,), 0, 2**62)], 64),
        "cut short: tensor 't'",
    ),
    "offset overflow": (
        file_of([], [tensor("t", (8,), 0, 2**64 - 32)], 64),
        "cut short: tensor 't'",
    ),
    "unaligned": (file_of([], [tensor("t", (8,), 0, 4)], 64), "multiple of 32"),
    "overlap": (
        file_of([], [tensor("a", (16,), 0, 0), tensor("b", (8,), 0, 32)], 128),
        "'b' overlaps",
    ),
    "data cut": (file_of([], [tensor("t", (64,), 0, 0)], 255), "cut short"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_by_name_and_place(tmp_path: Path, case: str) -> None:
    data, message = HOSTILE[case]
    with pytest.raises(CheckpointError, match=message) as caught:
        open_bytes(tmp_path, data)
    assert "hostile.gguf" in str(caught.value)


@pytest.mark.parametrize(("type_id", "said"), [(4, "Q4_2"), (99, "type 99")])
def test_types_unknown_here_are_named(tmp_path: Path, type_id: int, said: str) -> None:
    with pytest.raises(UnsupportedModelError, match=said):
        open_bytes(tmp_path, file_of([], [tensor("t", (32,), type_id, 0)], 64))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is missing"):
        GgufCheckpoint(tmp_path / "none.gguf")


def test_fuzz_damaged_files_open_or_are_refused(sample) -> None:
    """Truncations and flipped bits: every outcome is a checkpoint or a CheckpointError."""
    path, _ = sample
    whole = path.read_bytes()
    header = whole.index(b"output_norm.weight") + 64
    rng = random.Random(11)
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
            checkpoint = GgufCheckpoint(path)
        except CheckpointError as error:
            assert str(path) in str(error)
            refused += 1
        else:
            for name in checkpoint.tensors:
                checkpoint.read(name)
            checkpoint.close()
    assert 100 < refused < 600
