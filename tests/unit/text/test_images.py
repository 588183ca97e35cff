"""Pictures in every form that people send, and forms that nobody should."""

import contextlib
import io
import zlib

import numpy as np
import pytest
from PIL import Image

from pagoda.arch.read import Reader
from pagoda.base.errors import CheckpointError, RequestError
from pagoda.text.images import decode
from pagoda.text.images.decode import decode_image
from pagoda.text.images.qwen_vl import fitting_size, from_config


def written(image: Image.Image, form: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def corners() -> Image.Image:
    """Red, green over blue, white."""
    values = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]]], np.uint8)
    return Image.fromarray(values.repeat(8, axis=0).repeat(12, axis=1))


@pytest.mark.parametrize("form", ["PNG", "BMP", "GIF", "WEBP", "JPEG"])
def test_formats(form: str):
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 95, "subsampling": 0}}.get(form, {})
    pixels = decode_image(written(corners(), form, **options))
    assert pixels.shape == (1, 16, 24, 3) and pixels.dtype == np.uint8
    np.testing.assert_allclose(pixels[0], np.asarray(corners()), atol=40 if form == "JPEG" else 0)


@pytest.mark.parametrize("turn", range(2, 9))
def test_exif_says_where_up_is(turn: int):
    exif = Image.Exif()
    exif[0x0112] = turn
    pixels = decode_image(written(corners(), exif=exif))[0]
    # EXIF 2.3, 4.6.4: where the first row and column of the stored picture are seen.
    seen = {
        2: np.fliplr, 3: lambda x: np.rot90(x, 2), 4: np.flipud,
        5: lambda x: x.transpose(1, 0, 2), 6: lambda x: np.rot90(x, -1),
        7: lambda x: np.rot90(x.transpose(1, 0, 2), 2), 8: np.rot90,
    }  # fmt: skip
    np.testing.assert_array_equal(pixels, seen[turn](np.asarray(corners())))


def test_transparency_is_seen_on_white():
    image = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    image.putpixel((1, 2), (10, 20, 30, 255))
    pixels = decode_image(written(image))[0]
    assert pixels[2, 1].tolist() == [10, 20, 30]
    assert (np.delete(pixels.reshape(-1, 3), 9, axis=0) == 255).all()
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([9, 9, 9, 7, 7, 7])
    palette.putpixel((1, 0), 1)
    assert decode_image(written(palette, transparency=0))[0].tolist() == [[[255] * 3, [7] * 3]]


def test_other_colors():
    cmyk = Image.new("CMYK", (2, 2), (0, 255, 255, 0))
    red = decode_image(written(cmyk, "JPEG"))[0, 0, 0]
    assert red[0] > 200 and red[1] < 60 and red[2] < 60
    assert decode_image(written(Image.new("L", (2, 2), 77)))[0, 0, 0].tolist() == [77] * 3
    assert decode_image(written(Image.new("1", (2, 2), 1)))[0, 0, 0].tolist() == [255] * 3
    deep = Image.fromarray(np.full((2, 2), 0x8123, np.uint16))
    assert decode_image(written(deep))[0, 0, 0].tolist() == [0x81] * 3


def test_of_a_film_the_first_frame():
    frames = [Image.new("RGB", (3, 3), color) for color in ("red", "blue")]
    film = written(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode_image(film)[0, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_cut_off_files_are_named(form: str):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)
    data = written(Image.fromarray(noise), form)
    for length in (0, 1, 20, len(data) // 2):
        with pytest.raises(RequestError, match=r"image"):
            decode_image(data[:length])


def test_damaged_files_are_refused_or_read():
    data = written(corners())
    choose = np.random.default_rng(1)
    for _ in range(300):
        damaged = bytearray(data)
        for place in choose.integers(0, len(data), 3):
            damaged[place] = choose.integers(0, 256)
        with contextlib.suppress(RequestError):
            decode_image(bytes(damaged))


@pytest.mark.parametrize("data", [b"%!PS-Adobe-3.0 EPSF-3.0\n", b"<svg xmlns='x'/>", b"II*\0" * 9])
def test_what_is_no_picture_here(data: bytes):
    with pytest.raises(RequestError, match="none of PNG"):
        decode_image(data)


@pytest.mark.parametrize("side", [1 << 15, 10_000])
def test_bombs_are_refused_by_their_header(side: int):
    """Where pillow itself refuses, and where it warns."""
    head = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", side.to_bytes(4) * 2 + b"\x08\2\0\0\0")
    bomb = head + _chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + _chunk(b"IEND", b"")
    with pytest.raises(RequestError, match="more than 67,108,864 pixels"):
        decode_image(bomb)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)


def test_large_files_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(decode, "MAX_BYTES", 100)
    with pytest.raises(RequestError, match="at most 100"):
        decode_image(written(corners()) + b"\0" * 100)


def test_sizes_are_whole_tokens_within_bounds():
    for height, width in [(1, 1), (5, 900), (31, 33), (1000, 999), (4000, 30), (48, 48)]:
        rows, columns = fitting_size(height, width, 32, 65536, 1 << 20)
        assert rows % 32 == columns % 32 == 0 and rows * columns <= 1 << 20
        assert rows * columns >= 65536
    with pytest.raises(RequestError, match="too long and narrow"):
        fitting_size(1, 201, 32, 65536, 1 << 20)


def test_fewer_tokens_where_asked():
    processor = from_config(Reader({}, "x")).limited({"image": 100})
    (image,) = processor.process(np.zeros((1, 2000, 1500, 3), np.uint8)).pieces
    assert 80 <= image.num_tokens <= 100
    assert image.values.shape == (1, image.grid[1] * 32, image.grid[2] * 32, 3)


def test_hashes_tell_shapes_apart():
    """The same bytes in two shapes are two pictures (CVE-2025-46722)."""
    processor = from_config(Reader({"size": {"shortest_edge": 1, "longest_edge": 1 << 20}}, "x"))
    wide, high = (
        processor.process(np.zeros((1, h, w, 3), np.uint8)).pieces[0]
        for h, w in ((32, 64), (64, 32))
    )
    assert wide.values.tobytes() == high.values.tobytes()
    assert wide.content_hash != high.content_hash


@pytest.mark.parametrize(
    "fields", [{"patch_size": 0}, {"image_std": [0, 1, 1]}, {"image_mean": "x"}, {"size": 3}]
)
def test_wrong_settings_are_named(fields: dict):
    with pytest.raises(CheckpointError, match=next(iter(fields))):
        from_config(Reader(fields, "preprocessor_config.json"))
