"""GGUF files: what is read lies inside the file, and the gguf package finds it in the same places.

Sources: src/pagoda/weights/gguf/checkpoint.py, gguf_header.py.
"""

from pathlib import Path

from fuzz.harnesses.files import written
from pagoda.base.errors import CheckpointError
from pagoda.weights.gguf.checkpoint import GgufCheckpoint, read_header
from pagoda.weights.gguf.header import Cursor, CutShortError

WORDS = (
    b"GGUF",
    *(bytes([kind, 0, 0, 0]) for kind in range(13)),
    b"general.alignment",
    b"general.architecture",
    b"split.count",
    b"split.no",
    b"\xff" * 8,
    b"\x00\x00\x00\x80\x00\x00\x00\x00",
)


def fuzz_gguf(data: bytes) -> None:
    path = written("model.gguf", data)
    whole = _header(path, data)
    for end in (len(data) // 2, len(data) - 1):
        # A header that is fetched piece by piece asks for more, or says the same.
        if data[4:] and (part := _header(path, data[: max(0, end)])) is not None:
            assert part == whole
    try:
        checkpoint = GgufCheckpoint(path)
    except CheckpointError:
        return
    try:
        _check_inside(checkpoint, data)
    finally:
        checkpoint.close()
    _check_with_reader(path, checkpoint)


def _header(path: Path, data: bytes) -> object:
    try:
        return repr(read_header(Cursor(path, bytearray(data))))
    except CutShortError:
        return None
    except CheckpointError:
        return None


def _check_inside(checkpoint: GgufCheckpoint, data: bytes) -> None:
    for name, info in checkpoint.tensors.items():
        place = checkpoint._places[name]
        assert 0 <= place.offset <= place.offset + info.nbytes <= len(data)
        assert checkpoint.read(name).tobytes() == data[place.offset : place.offset + info.nbytes]
        checkpoint.release(name)


def _check_with_reader(path: Path, checkpoint: GgufCheckpoint) -> None:
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
    except Exception:  # noqa: BLE001  # it raises what its reads happen to raise
        return
    theirs = {
        tensor.name: int(tensor.data_offset) for tensor in reader.tensors if tensor.n_elements
    }
    ours = {name: checkpoint._places[name].offset for name in theirs}
    assert ours == theirs, (ours, theirs)
