"""The metadata part of a GGUF: counts, key-values, strings, arrays."""

import mmap
import struct
from pathlib import Path
from typing import Any

from pagoda.base.errors import CheckpointError
from pagoda.weights.pointer import START, refuse_pointer

_MAX_KEYS = 1 << 20
_MAX_NAME = 1 << 16
# Many times the largest vocabulary (262,144 tokens and 512,000 merges); bounds what a hostile
# header can make us allocate.
_MAX_ELEMENTS = 1 << 24
_MAX_STRING_BYTES = 1 << 28

_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING = 8
_ARRAY = 9
_U64 = _SCALARS[10].unpack_from
_U32 = _SCALARS[4].unpack_from


class CutShortError(CheckpointError):
    """The header goes on behind the last byte that is there."""


class Cursor:
    """Reads forward through a header; every step is checked against the end of what is there: a
    file, or its first bytes."""

    def __init__(self, path: Path, source: mmap.mmap | bytearray):
        self.path = path
        self.map = source
        self.end = len(source)
        self.offset = 0
        self.place = "at the start"
        self._elements_left = _MAX_ELEMENTS
        self._string_bytes_left = _MAX_STRING_BYTES

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(self._sentence(problem))

    def cut_short(self) -> CutShortError:
        return CutShortError(self._sentence("ends too early; fetch it again"))

    def _sentence(self, problem: str) -> str:
        return f"{self.path} is broken at byte {self.offset}, {self.place}: it {problem}."

    def take(self, nbytes: int) -> int:
        """Step over that many bytes; their offset."""
        start = self.offset
        if nbytes > self.end - start:
            raise self.cut_short()
        self.offset = start + nbytes
        return start

    def u32(self) -> int:
        return int(_U32(self.map, self.take(4))[0])

    def u64(self) -> int:
        return int(_U64(self.map, self.take(8))[0])

    def name(self, kind: str) -> str:
        """The name of a key or tensor; errors speak of it from here on."""
        length = self.u64()
        if length > _MAX_NAME:
            raise self.error(f"goes on with a {kind} name of {length} bytes")
        start = self.take(length)
        try:
            text = self.map[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise self.error(f"goes on with a {kind} name that is not UTF-8") from error
        self.place = f"in {kind} {text!r}"
        return text

    def value(self, type_id: int) -> Any:
        """A value of a GGUF type: int, float, bool, str or a list of these."""
        if type_id == _STRING:
            return self._strings(1)[0]
        if type_id == _ARRAY:
            return self._array()
        scalar = self._scalar(type_id)
        return scalar.unpack_from(self.map, self.take(scalar.size))[0]

    def _scalar(self, type_id: int) -> struct.Struct:
        if type_id not in _SCALARS:
            raise self.error(f"has a value of type {type_id}, which GGUF does not know")
        return _SCALARS[type_id]

    def _array(self) -> list[Any]:
        type_id = self.u32()
        count = self.u64()
        if count > self._elements_left:
            raise self.error(f"has an array of {count} elements")
        self._elements_left -= count
        if type_id == _ARRAY:
            raise self.error("has an array of arrays")
        if type_id == _STRING:
            return self._strings(count)
        scalar = self._scalar(type_id)
        start = self.take(count * scalar.size)
        return list(struct.unpack_from(f"<{count}{scalar.format[1:]}", self.map, start))

    def _strings(self, count: int) -> list[str]:
        # A loop over local names: vocabularies have hundreds of thousands of strings.
        if count * 8 > self.end - self.offset:
            raise self.cut_short()
        source, end, offset = self.map, self.end, self.offset
        longest = offset + 8 * count + self._string_bytes_left
        limit = min(end, longest)
        unpack = _U64
        strings = []
        try:
            for _ in range(count):
                start = offset + 8
                offset = start + unpack(source, offset)[0]
                if offset > limit:
                    self.offset = start
                    if offset > longest:
                        raise self.error("holds an impossibly long string")
                    raise self.cut_short()
                strings.append(source[start:offset].decode())
        except UnicodeDecodeError as error:
            self.offset = start
            raise self.error(f"has a string that is not UTF-8 ({error.reason})") from error
        except struct.error as error:
            self.offset = start
            raise self.cut_short() from error
        self._string_bytes_left -= offset - self.offset - 8 * count
        self.offset = offset
        return strings


def read_metadata(cursor: Cursor) -> tuple[int, dict[str, Any]]:
    """The number of tensors, and the key-values; leaves the cursor at the tensor table."""
    if cursor.end < 24 or cursor.map[:4] != b"GGUF":
        refuse_pointer(cursor.path, cursor.map[:START])
        raise CheckpointError(f"{cursor.path} is not a GGUF file.")
    cursor.take(4)
    version = cursor.u32()
    if version & 0xFFFF == 0 and version:
        raise CheckpointError(
            f"{cursor.path} is a big-endian GGUF; convert it with `gguf-convert-endian`."
        )
    if version not in (2, 3):
        raise CheckpointError(
            f"{cursor.path} is a GGUF of version {version}; Pagoda reads 2 and 3. Convert it anew."
        )
    tensor_count = cursor.u64()
    key_count = cursor.u64()
    if key_count > _MAX_KEYS:
        raise cursor.error(f"says that it has {key_count} keys")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.name("key")
        if key in metadata:
            raise cursor.error("has the key twice")
        metadata[key] = cursor.value(cursor.u32())
    return tensor_count, metadata
