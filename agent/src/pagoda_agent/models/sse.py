"""Server-sent events out of bytes (WHATWG HTML, 9.2.6)."""

from collections.abc import AsyncIterator

MAX_LINE = 8 << 20
"""Bytes; what is longer is no event of a reply."""


class LineTooLongError(ValueError):
    """A line does not end."""


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, str]]:
    """(event, data) of each event; what the end cuts off is left out. Lines end at LF or CRLF and
    nowhere else: JSON may hold U+2028, at which `splitlines` would cut it.

    Raises LineTooLongError.
    """
    name, data = "", list[str]()
    async for line in _lines(chunks):
        if not line:
            if data:
                yield name, "\n".join(data)
            name, data = "", []
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif line.startswith("event:"):
            name = line[6:].strip()


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    rest = bytearray()
    async for chunk in chunks:
        rest += chunk
        if b"\n" in chunk:
            *lines, rest = rest.split(b"\n")
            for line in lines:
                yield line.removesuffix(b"\r").decode(errors="replace")
        if len(rest) > MAX_LINE:
            raise LineTooLongError("a line of the stream does not end")
