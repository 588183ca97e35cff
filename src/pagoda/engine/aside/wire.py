"""What passes between the server and a worker: frames of JSON and raw bytes over a socket, and
arrays in sealed memory whose descriptor comes with a frame.

JSON, since what clients send may hold integers beyond 64 bits, which msgpack has not.
"""

import contextlib
import fcntl
import functools
import math
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from pagoda.engine.aside.jobs import AnyJob, Bounds, Rendered
from pagoda.engine.constraint import Constraint
from pagoda.text.media.base import Grid, Medium, Piece, Values
from pagoda.text.pdf import PdfText

HEAD = struct.Struct("!II")
"""Bytes of JSON and of what is raw."""
_MOST_INLINE = 4096
# Pictures that are remembered would each keep a descriptor, of which there are only so many.
_MOST_COPIED = 4 << 20
_SEALS = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE", "F_SEAL_SEAL")


class Order(msgspec.Struct):
    """To a worker. A file's bytes follow the JSON, where the job needs one."""

    job: AnyJob
    bounds: Bounds


class Shape(msgspec.Struct):
    """The shape of a piece's values, and the rest of it."""

    dtype: Literal["|u1", "<i2", "<f4"]
    shape: list[int]
    num_tokens: int
    grid: Grid | None
    encoder: str
    seconds_on: float | None
    content_hash: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Many(msgspec.Struct, tag=True):
    """So many token ids, as int32 in shared memory."""

    count: int


class Few(msgspec.Struct, tag=True):
    ids: list[int]


class Prompted(msgspec.Struct, tag=True):
    rendered: Rendered


class Held(msgspec.Struct, tag=True):
    constraint: Constraint


class Shown(msgspec.Struct, tag=True):
    """A medium, the values of whose pieces lie one behind the other in shared memory."""

    pieces: list[Shape]
    text: str | None
    seconds: float | None = None


class Extracted(msgspec.Struct, tag=True):
    pdf: PdfText


class Refused(msgspec.Struct, tag=True):
    """A RequestError."""

    message: str
    param: str | None


class Exhausted(msgspec.Struct, tag=True):
    """Memory did not suffice; the worker leaves."""


class Failed(msgspec.Struct, tag=True):
    """A fault of Pagoda's own, with its traceback."""

    reason: str


Answer = Many | Few | Prompted | Held | Shown | Extracted | Refused | Exhausted | Failed
AnyT = TypeVar("AnyT")


def frame(message: Any, file: bytes = b"") -> bytes:
    """Raises UnicodeEncodeError for text that is not Unicode."""
    text = msgspec.json.encode(message)
    return b"".join((HEAD.pack(len(text), len(file)), text, file))


def decoded(text: memoryview, kind: Any) -> Any:
    """A frame's JSON. Raises msgspec.MsgspecError."""
    return _decoder(kind).decode(text)


@functools.cache  # to make one takes longer than to decode an answer
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def packed(result: Any) -> tuple[Answer, list[memoryview]]:
    """A job's result as it travels, and the arrays that go into shared memory."""
    if isinstance(result, Rendered):
        return Prompted(result), []
    if isinstance(result, Constraint):
        return Held(result), []
    if isinstance(result, PdfText):
        return Extracted(result), []
    if isinstance(result, list):
        if len(result) <= _MOST_INLINE:
            return Few(result), []
        return Many(len(result)), [np.asarray(result, np.int32).data.cast("B")]
    arrays = [np.ascontiguousarray(piece.values).reshape(-1) for piece in result.pieces]
    shown = Shown([_shape(piece) for piece in result.pieces], result.text, result.seconds)
    return shown, [array.view(np.uint8).data for array in arrays]


def shared(arrays: Sequence[memoryview]) -> int:
    """A descriptor of memory that holds them and never changes again."""
    file = os.memfd_create("pagoda", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    for array in arrays:
        written = 0
        while written < len(array):
            written += os.write(file, array[written:])
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, _seals())
    return file


def _seals() -> int:
    return sum(getattr(fcntl, name) for name in _SEALS)  # bits, which only Linux has


def mapped(file: int, size: int) -> mmap.mmap:
    """Takes the descriptor over. ValueError for memory that could change or has another size."""
    try:
        if fcntl.fcntl(file, fcntl.F_GET_SEALS) != _seals() or os.fstat(file).st_size != size:
            raise ValueError("a worker's memory is not what it said")
        return mmap.mmap(file, size, prot=mmap.PROT_READ)
    finally:
        os.close(file)


def medium(shown: Shown, file: int) -> Medium:
    """The medium in a worker's answer; takes the descriptor over."""
    total = sum(shape.nbytes for shape in shown.pieces)
    memory, start, pieces = mapped(file, total), 0, []
    for shape in shown.pieces:
        values: Values = np.frombuffer(memory, np.uint8, shape.nbytes, start)
        values = values.view(shape.dtype).reshape(shape.shape)
        if total <= _MOST_COPIED:
            values = values.copy()
        piece = Piece(values, shape.num_tokens, shape.grid, shape.encoder, shape.seconds_on)
        # The worker has counted it already; it reads every value.
        vars(piece)["content_hash"] = shape.content_hash
        pieces.append(piece)
        start += shape.nbytes
    return Medium(tuple(pieces), shown.text, shown.seconds)


def receive(link: socket.socket, kind: type[AnyT]) -> tuple[AnyT, memoryview] | None:
    """The next frame, for the side that may block; None when the peer is gone."""
    head = _exactly(link, HEAD.size)
    if head is None:
        return None
    sizes = HEAD.unpack(head)
    body = _exactly(link, sum(sizes))
    if body is None:
        return None
    view = memoryview(body)
    return decoded(view[: sizes[0]], kind), view[sizes[0] :]


def send(link: socket.socket, message: Any, arrays: Sequence[memoryview] = ()) -> None:
    """A frame, with the arrays in shared memory."""
    data = frame(message)
    if not arrays:
        link.sendall(data)
        return
    file = shared(arrays)
    try:
        sent = socket.send_fds(link, [data], [file])
        link.sendall(data[sent:])
    finally:
        os.close(file)


def _exactly(link: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view, filled = memoryview(data), 0
    with contextlib.suppress(ConnectionError):
        while filled < size:
            count = link.recv_into(view[filled:])
            if not count:
                return None
            filled += count
        return data
    return None


def _shape(piece: Piece) -> Shape:
    values = piece.values
    return Shape(
        msgspec.convert(values.dtype.str, Literal["|u1", "<i2", "<f4"]),
        list(values.shape), piece.num_tokens, piece.grid, piece.encoder, piece.seconds_on,
        piece.content_hash,
    )  # fmt: skip
