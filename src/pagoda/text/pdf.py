"""The text of PDF files.

They are made by anyone and read by a large library: so this runs aside, in a process with bounds on
time and memory (`engine/aside`).
"""

import io
import logging
import time
from typing import TYPE_CHECKING

import msgspec

from pagoda.base.errors import RequestError

if TYPE_CHECKING:
    import pypdf

MAX_PAGES = 1000
MAX_CHARS = 1_000_000
SECONDS = 10.0
"""No further page is begun after that."""
_MARK = b"%PDF-"
# Readers take a file whose first bytes are something else, as mail programs leave it.
_MARK_WITHIN = 1024


class PdfText(msgspec.Struct):
    text: str
    """A blank line between pages."""
    pages: int
    pages_read: int
    """From the first; fewer than there are where a bound was met."""


def pdf_text(data: bytes) -> PdfText:
    """The text of a PDF's first pages. RequestError for what is none, is broken or needs a
    password."""
    if _MARK not in data[:_MARK_WITHIN]:
        raise RequestError("The file is no PDF. Send a PDF, or send text as it is.")
    # Half a second, which only those who send PDFs shall wait.
    import pypdf

    # It complains of every file that is not quite right.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise RequestError("The PDF needs a password. Save it without one and send that.")
        return _read(reader)
    except (RequestError, MemoryError):
        raise
    except Exception as error:  # what a broken file makes the library raise
        raise RequestError(
            "The PDF is broken and cannot be read. Open it in another program, save it again and "
            "send that."
        ) from error


def _read(reader: "pypdf.PdfReader") -> PdfText:
    end = time.monotonic() + SECONDS
    pages = len(reader.pages)
    texts: list[str] = []
    room = MAX_CHARS
    for number in range(min(pages, MAX_PAGES)):
        if room <= 0 or time.monotonic() > end:
            break
        text = _clean(reader.pages[number].extract_text())[:room]
        texts.append(text)
        room -= len(text) + 2
    return PdfText("\n\n".join(texts).strip(), pages, len(texts))


def _clean(text: str) -> str:
    """Without halves of characters, which fonts' tables may yield, and without zeros."""
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return whole.replace("\0", "").strip()
