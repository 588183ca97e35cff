"""What passes between the server and a worker: frames of JSON and raw bytes over a socket, and
arrays in sealed memory whose descriptor comes with a frame.

JSON, since what clients send may hold integers beyond 64 bits, which msgpack has not.
"""

import contextlib
import fcntl
import functools
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from pagoda.engine.aside.jobs import AnyJob, Bounds, Rendered
from pagoda.engine.constraint import Constraint
from pagoda.text.images.base import Grid, Pixels, ProcessedImage
from pagoda.text.images.video import ProcessedVideo

HEAD = struct.Struct("!II")
"""Bytes of JSON and of what is raw."""
_MOST_INLINE = 4096
# Pictures that are remembered would each keep a descriptor, of which there are only so many.
_MOST_COPIED = 4 << 20
_SEALS = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE", "F_SEAL_SEAL")


class Order(msgspec.Struct):
    """To a worker. The bytes of `files`, each so long, follow the JSON."""

    job: AnyJob
    bounds: Bounds
    files: list[int] = []
    several: bool = False
    """The files are stills of one video."""


class Picture(msgspec.Struct):
    shape: tuple[int, int, int, int]
    grid: Grid
    in_a_row: bool
    content_hash: str


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
    """Pictures, whose pixels lie one behind the other in shared memory. `seconds` of a video."""

    pictures: list[Picture]
    seconds: list[float] | None = None


class Refused(msgspec.Struct, tag=True):
    """A RequestError."""

    message: str
    param: str | None


class Exhausted(msgspec.Struct, tag=True):
    """Memory did not suffice; the worker leaves."""


class Failed(msgspec.Struct, tag=True):
    """A fault of Pagoda's own, with its traceback."""

    reason: str


Answer = Many | Few | Prompted | Held | Shown | Refused | Exhausted | Failed
AnyT = TypeVar("AnyT")


def frame(message: Any, files: Sequence[bytes] = ()) -> bytes:
    """Raises UnicodeEncodeError for text that is not Unicode."""
    text = msgspec.json.encode(message)
    return b"".join((HEAD.pack(len(text), sum(map(len, files))), text, *files))


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
    if isinstance(result, list):
        if len(result) <= _MOST_INLINE:
            return Few(result), []
        return Many(len(result)), [np.asarray(result, np.int32).data.cast("B")]
    images = result.frames if isinstance(result, ProcessedVideo) else [result]
    seconds = list(result.seconds) if isinstance(result, ProcessedVideo) else None
    pictures = [_picture(image) for image in images]
    arrays = [np.ascontiguousarray(image.pixels).reshape(-1).data for image in images]
    return Shown(pictures, seconds), arrays


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


def pictures(shown: Shown, file: int) -> ProcessedImage | ProcessedVideo:
    """Of a worker's answer; takes the descriptor over."""
    sizes = [int(np.prod(picture.shape)) for picture in shown.pictures]
    memory, start, images = mapped(file, sum(sizes)), 0, []
    for picture, size in zip(shown.pictures, sizes, strict=True):
        pixels: Pixels = np.frombuffer(memory, np.uint8, size, start).reshape(picture.shape)
        if sum(sizes) <= _MOST_COPIED:
            pixels = pixels.copy()
        image = ProcessedImage(pixels, picture.grid, picture.in_a_row)
        # The worker has counted it already; it reads every pixel.
        vars(image)["content_hash"] = picture.content_hash
        images.append(image)
        start += size
    if shown.seconds is None:
        return images[0]
    return ProcessedVideo(tuple(images), tuple(shown.seconds))


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


def _picture(image: ProcessedImage) -> Picture:
    return Picture(image.pixels.shape, image.grid, image.in_a_row, image.content_hash)
