"""Safetensors files: what is read lies inside the file; what we take, the library takes too.

Sources: src/pagoda/weights/safetensors.py, mapped.py.
"""

from safetensors import SafetensorError, safe_open

from fuzz.harnesses.files import written
from pagoda.base.errors import CheckpointError
from pagoda.weights.safetensors import SafetensorsCheckpoint

WORDS = (
    b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}',
    b'"data_offsets":[0,0]',
    b'"shape":[]',
    b'"shape":[0]',
    b'"__metadata__":{}',
    *(b'"%s"' % name for name in (b"F64", b"F32", b"BF16", b"I8", b"BOOL", b"F8_E4M3", b"U64")),
    b"18446744073709551615",
    b"-1",
    b"1e3",
    b"null",
    b"[",
    b"{",
    b"\\ud800",
)


def fuzz_safetensors(data: bytes) -> None:
    path = written("model.safetensors", data)
    try:
        checkpoint = SafetensorsCheckpoint(path)
    except CheckpointError:
        return
    try:
        for name, info in checkpoint.tensors.items():
            place = checkpoint._places[name]
            assert 0 <= place.offset <= place.offset + info.nbytes <= len(data)
            raw = checkpoint.read(name)
            assert raw.tobytes() == data[place.offset : place.offset + info.nbytes]
            checkpoint.release(name)
        ours = {name: list(info.shape) for name, info in checkpoint.tensors.items()}
    finally:
        checkpoint.close()
    if b"\\ud" in data.lower():
        return  # half a character: JSON to Python, none to Rust
    try:
        with safe_open(path, "numpy") as opened:
            theirs = {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118  # no dict
    except SafetensorError as error:
        raise AssertionError(f"safetensors refuses what we take: {error}") from error
    assert ours == theirs, (ours, theirs)
