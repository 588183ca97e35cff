"""Pictures out of a stream of `multipart/x-mixed-replace`, however it is cut into pieces."""

from pagoda_agent.base.errors import DriverError
from pagoda_agent.drivers.kvm.pictures import MAX_BYTES

_MAX_HEADERS = 8 << 10
_END = b"\xff\xd9"
"""The last bytes of a whole JPEG."""


def boundary_of(content_type: str) -> str:
    """The boundary that the stream's Content-Type names. DriverError if it is no multipart type."""
    kind, *parameters = (part.strip() for part in content_type.split(";"))
    if not kind.lower().startswith("multipart/"):
        raise DriverError(f"the stream is {kind[:80] or 'of no type'!r}, not one of pictures")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "boundary" and 0 < len(value) <= 200:
            return value.strip().strip('"').removeprefix("--")
    return "frame"


class MjpegParser:
    """`feed` returns the pictures that ended in what was fed.

    A part ends by its Content-Length, so that a picture is there with its last byte. Where the
    length is missing, or what follows shows that it is wrong, the part ends at the next boundary.
    """

    def __init__(self, boundary: str):
        self._delimiter = b"--" + boundary.encode("latin-1", "replace")
        self._buffer = bytearray()
        self._length: int | None = None
        """Bytes of the part that is being read, as its header says; -1 where nobody knows."""
        self._searched = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Raises DriverError for a part or header beyond all measure."""
        self._buffer += data
        pictures: list[bytes] = []
        while True:
            if self._length is None and not self._read_headers():
                return pictures
            picture = self._read_body()
            if picture is None:
                return pictures
            pictures.append(picture)

    def _read_headers(self) -> bool:
        """Go to the body of the next part; False where there is more to come before it."""
        start = self._buffer.find(self._delimiter)
        if start < 0:
            # A part of the boundary may be at the end.
            del self._buffer[: max(0, len(self._buffer) - len(self._delimiter) + 1)]
            return False
        del self._buffer[:start]
        end, width = self._buffer.find(b"\r\n\r\n", 0, _MAX_HEADERS), 4
        if end < 0:
            end, width = self._buffer.find(b"\n\n", 0, _MAX_HEADERS), 2
        if end < 0:
            if len(self._buffer) >= _MAX_HEADERS:
                raise DriverError("a part of the stream has headers without end")
            return False
        self._length = _content_length(bytes(self._buffer[:end]))
        del self._buffer[: end + width]
        self._searched = 0
        return True

    def _read_body(self) -> bytes | None:
        """The body once it is whole; the buffer then begins behind it."""
        assert self._length is not None
        if self._length > MAX_BYTES or len(self._buffer) > MAX_BYTES + (1 << 20):
            raise DriverError("a picture of the stream is without end")
        if self._length >= 0:
            if len(self._buffer) < self._length:
                return None
            if self._buffer.endswith(_END, 0, self._length):
                return self._take(self._length)
            after = bytes(self._buffer[self._length : self._length + len(self._delimiter) + 2])
            follows = b"\r\n" + self._delimiter
            if after == follows:
                return self._take(self._length)
            if follows.startswith(after):
                return None
            self._length = -1  # it was wrong
        end = self._buffer.find(b"\n" + self._delimiter, self._searched)
        if end < 0:
            self._searched = max(0, len(self._buffer) - len(self._delimiter))
            return None
        return self._take(end).removesuffix(b"\r")

    def _take(self, length: int) -> bytes:
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        self._length = None
        return body


def _content_length(headers: bytes) -> int:
    for line in headers.splitlines():
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            digits = value.strip()
            return int(digits) if len(digits) < 12 else MAX_BYTES + 1
    return -1
