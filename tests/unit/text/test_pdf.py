"""The text of PDFs, good and bad."""

import io

import pytest
from pypdf import PdfReader, PdfWriter

from pagoda.base.errors import RequestError
from pagoda.text import pdf as module
from pagoda.text.pdf import PdfText, pdf_text
from tests.unit.text.pdfs import pdf


def test_pages_come_in_their_order() -> None:
    assert pdf_text(pdf("Hello PDF", "second page")) == PdfText("Hello PDF\n\nsecond page", 2, 2)


def test_a_page_without_text_is_no_error() -> None:
    assert pdf_text(pdf(b"0 0 m 9 9 l S")) == PdfText("", 1, 1)


def test_what_stands_before_the_mark_is_skipped() -> None:
    assert pdf_text(b"mail\r\n" + pdf("text")).text == "text"


@pytest.mark.parametrize(
    ("name", "most", "read"), [("MAX_PAGES", 2, 2), ("MAX_CHARS", 8, 2), ("SECONDS", -1.0, 0)]
)
def test_it_stops_at_bounds(monkeypatch, name: str, most: float, read: int) -> None:
    monkeypatch.setattr(module, name, most)
    told = pdf_text(pdf("first", "second", "third"))
    assert (told.pages, told.pages_read) == (3, read)
    assert len(told.text) <= 15


def encrypted(user: str, owner: str) -> bytes:
    writer = PdfWriter(PdfReader(io.BytesIO(pdf("secret"))))
    writer.encrypt(user, owner, algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def test_a_password_is_asked_for_only_where_reading_needs_one() -> None:
    assert pdf_text(encrypted("", "owner")).text == "secret"
    with pytest.raises(RequestError, match="needs a password"):
        pdf_text(encrypted("user", "owner"))


@pytest.mark.parametrize("data", [b"", b"plain text", b"PK\x03\x04" + bytes(2000) + b"%PDF-1.7"])
def test_what_is_no_pdf(data: bytes) -> None:
    with pytest.raises(RequestError, match="is no PDF"):
        pdf_text(data)


LOOP = pdf("x").replace(b"/Kids [4 0 R]", b"/Kids [2 0 R]")


@pytest.mark.parametrize("data", [b"%PDF-1.7\n", pdf("x")[:60], b"%PDF-1.7\n" + b"<<" * 5000, LOOP])
def test_broken_files_are_refused_or_empty(data: bytes) -> None:
    try:
        assert pdf_text(data).text == ""
    except RequestError as error:
        assert "cannot be read" in str(error)


def test_halves_of_characters_do_not_pass() -> None:
    assert module._clean("a\ud83d\ude00b\ud83dc\0") == "a😀b\ufffdc"
