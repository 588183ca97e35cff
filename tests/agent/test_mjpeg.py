"""Pictures out of streams that are cut, mislabelled or hostile."""

import io
import random
from contextlib import suppress

import pytest
from PIL import Image

from pagoda_agent.base.errors import DriverError
from pagoda_agent.drivers.nanokvm.mjpeg import MjpegParser, boundary_of

DELIMITER = b"\r\n--frame\r\n"


def jpeg(colour: str, comment: bytes = b"") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (16, 16), colour).save(out, "JPEG", comment=comment or None)
    return out.getvalue()


PICTURES = [jpeg("red"), jpeg("green", b"inside" + DELIMITER + b"inside"), jpeg("blue")]


def part(body: bytes, length: int | None) -> bytes:
    said = b"" if length is None else b"Content-Length: %d\r\n" % length
    return b"--frame\r\nContent-Type: image/jpeg\r\n" + said + b"\r\n" + body + b"\r\n"


def parsed(stream: bytes, cuts: list[int] | None = None) -> list[bytes]:
    parser = MjpegParser("frame")
    places = [0, *(cuts or []), len(stream)]
    pictures = []
    for start, end in zip(places, places[1:], strict=False):
        pictures += parser.feed(stream[start:end])
    return pictures


WHOLE = b"".join(part(picture, len(picture)) for picture in PICTURES)


def test_the_stream_of_a_nanokvm():
    assert parsed(WHOLE) == PICTURES


def test_cut_anywhere():
    for place in range(len(WHOLE)):
        assert parsed(WHOLE, [place]) == PICTURES


def test_every_byte_by_itself():
    assert parsed(WHOLE, list(range(1, len(WHOLE)))) == PICTURES


def test_cut_at_random():
    draw = random.Random(5)
    for _ in range(50):
        cuts = sorted(draw.sample(range(1, len(WHOLE)), 20))
        assert parsed(WHOLE, cuts) == PICTURES


def test_a_picture_is_there_with_its_last_byte():
    stream = part(PICTURES[0], len(PICTURES[0])).removesuffix(b"\r\n")
    parser = MjpegParser("frame")
    assert parser.feed(stream[:-1]) == []
    assert parser.feed(stream[-1:]) == [PICTURES[0]]


@pytest.mark.parametrize("cuts", [None, "all"])
def test_without_lengths_parts_end_at_the_next_boundary(cuts):
    stream = b"".join(part(picture, None) for picture in (PICTURES[0], PICTURES[2])) + b"--frame"
    assert parsed(stream, list(range(1, len(stream))) if cuts else None) == [
        PICTURES[0],
        PICTURES[2],
    ]


@pytest.mark.parametrize("error", [-10, -1, 1, 10])
@pytest.mark.parametrize("cuts", [None, "all"])
def test_wrong_lengths_spoil_nothing(error, cuts):
    shown = [PICTURES[0], PICTURES[2], PICTURES[0]]
    stream = (
        b"".join(part(picture, len(picture) + error) for picture in shown) + b"--frame\r\nX-A: b"
    )
    got = parsed(stream, list(range(1, len(stream))) if cuts else None)
    assert got == shown


def test_a_length_beyond_the_next_part_costs_no_picture():
    first, second = PICTURES[0], PICTURES[2]
    stream = part(first, len(first) + 200) + part(second, len(second)) * 2 + b"--frame"
    assert parsed(stream) == [first, second, second]


def test_padding_behind_the_picture_belongs_to_the_part():
    padded = PICTURES[0] + bytes(5)
    assert parsed(part(padded, len(padded)) + part(PICTURES[2], len(PICTURES[2]))) == [
        padded,
        PICTURES[2],
    ]


def test_something_else_than_a_picture_comes_through_for_the_caller_to_see():
    page = b"<html>log in</html>"
    assert parsed(part(page, len(page)) + b"--frame") == [page]


def test_bare_newlines_and_foreign_headers():
    stream = b"junk\n--frame\nX-Timestamp: 0\ncontent-length: 4\n\n\xff\xd8\xff\xd9\n--frame\n\nabc"
    assert parsed(stream) == [b"\xff\xd8\xff\xd9"]


@pytest.mark.parametrize(
    "stream",
    [
        part(b"", 10**12),
        b"--frame\r\nContent-Length: " + b"9" * 500 + b"\r\n\r\n",
        b"--frame\r\n" + b"X-A: b\r\n" * 2000,
    ],
    ids=["12 digits", "500 digits", "headers without end"],
)
def test_parts_without_end_are_refused(stream):
    with pytest.raises(DriverError):
        parsed(stream)


def test_a_body_without_end_is_refused():
    parser = MjpegParser("frame")
    parser.feed(b"--frame\r\n\r\n")
    with pytest.raises(DriverError):
        for _ in range(40):
            parser.feed(bytes(1 << 20))


def test_what_comes_before_the_first_boundary_is_not_kept():
    parser = MjpegParser("frame")
    for _ in range(100):
        assert parser.feed(bytes(1 << 16)) == []
    assert len(parser._buffer) < 1000
    assert parser.feed(part(PICTURES[0], len(PICTURES[0]))) == [PICTURES[0]]


def test_noise_never_raises_anything_else():
    draw = random.Random(7)
    for _ in range(300):
        noise = bytearray(WHOLE)
        for _ in range(draw.randrange(1, 30)):
            noise[draw.randrange(len(noise))] = draw.randrange(256)
        with suppress(DriverError):
            parsed(bytes(noise), sorted(draw.sample(range(1, len(noise)), 5)))


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/x-mixed-replace; boundary=frame", "frame"),
        ('Multipart/x-mixed-replace;boundary="a b"', "a b"),
        ("multipart/x-mixed-replace; boundary=--x", "x"),
        ("multipart/x-mixed-replace", "frame"),
    ],
)
def test_boundaries(content_type, boundary):
    assert boundary_of(content_type) == boundary


@pytest.mark.parametrize("content_type", ["text/html; charset=utf-8", "", "image/jpeg"])
def test_other_types_are_refused(content_type):
    with pytest.raises(DriverError, match="not one of pictures"):
        boundary_of(content_type)
