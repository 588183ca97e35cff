"""Video files of many kinds to their frames, and files that nobody should send."""

import contextlib
import io
import sys
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image

from pagoda.base.errors import RequestError
from pagoda.text.images import film
from pagoda.text.images.film import Stills, open_film

KINDS = [
    ("mp4", "libx264"), ("mp4", "mpeg4"), ("webm", "libvpx"), ("webm", "libvpx-vp9"),
    ("matroska", "libx264"), ("avi", "mjpeg"), ("mov", "libx264"), ("mpegts", "mpeg2video"),
]  # fmt: skip
NUM_FRAMES, FPS = 12, 25


def shades(count: int = NUM_FRAMES) -> list[np.ndarray]:
    """Gray frames, each brighter than the one before."""
    return [np.full((48, 64, 3), 20 + number * 16, np.uint8) for number in range(count)]


def written(container: str, codec: str, frames: Iterable[np.ndarray]) -> bytes:
    av = pytest.importorskip("av")
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=FPS)
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.height, stream.width = 48, 64
        for number, values in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(values, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return buffer.getvalue()


@pytest.mark.parametrize(("container", "codec"), KINDS)
def test_frames_of_containers(container: str, codec: str):
    with open_film(written(container, codec, shades())) as video:
        assert (video.num_frames, video.fps) == (NUM_FRAMES, FPS)
        found = list(video.frames([1, 4, 11]))
    assert [frame.shape for frame in found] == [(1, 48, 64, 3)] * 3
    for frame, index in zip(found, (1, 4, 11), strict=True):
        assert abs(frame.astype(int) - shades()[index]).mean() < 4


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_animations(form: str):
    frames = [Image.fromarray(frame) for frame in shades(5)]
    buffer = io.BytesIO()
    options = {"lossless": True} if form == "WEBP" else {}
    frames[0].save(
        buffer, form, save_all=True, append_images=frames[1:], duration=[100, 100, 200, 100, 100],
        **options,
    )  # fmt: skip
    with open_film(buffer.getvalue()) as video:
        assert video.num_frames == 5
        assert video.fps == pytest.approx(5 / 0.6)
        first, last = video.frames([0, 4])
    assert abs(first.astype(int) - shades()[0]).max() <= 1
    assert abs(last.astype(int) - shades()[4]).max() <= 1


def test_a_picture_is_a_short_film():
    buffer = io.BytesIO()
    Image.fromarray(shades(1)[0]).save(buffer, "PNG")
    with open_film(buffer.getvalue()) as video:
        assert [frame.shape for frame in video.frames([0])] == [(1, 48, 64, 3)]


def test_stills():
    files = []
    for frame in shades(3):
        buffer = io.BytesIO()
        Image.fromarray(frame).save(buffer, "JPEG")
        files.append(buffer.getvalue())
    stills = Stills(files, 2.0)
    assert stills.num_frames == 3
    assert [int(frame.mean()) for frame in stills.frames([0, 2])] == [20, 52]


def test_frames_are_turned_as_the_file_says():
    av = pytest.importorskip("av")
    left = np.zeros((48, 64, 3), np.uint8)
    left[:, :32] = 255
    data = bytearray(written("mp4", "mpeg4", [left] * 3))
    # ISO 14496-12, 8.3.2: the track header's matrix, 16.16 numbers; this one turns by 90 degrees.
    one, minus, zero = (1 << 16).to_bytes(4), (-(1 << 16)).to_bytes(4, signed=True), bytes(4)
    plain = one + zero * 3 + one + zero * 3 + (1 << 30).to_bytes(4)
    turned = zero + one + zero + minus + zero * 4 + (1 << 30).to_bytes(4)
    place = data.index(plain, data.index(b"tkhd"))
    data[place : place + 36] = turned
    with open_film(bytes(data)) as video:
        (frame,) = video.frames([0])
    assert frame.shape == (1, 64, 48, 3)
    with av.open(io.BytesIO(bytes(data))) as container:
        assert next(container.decode(video=0)).rotation == -90
    # Turned clockwise, what was left is on top.
    assert frame[0, :32].mean() > 250 and frame[0, 32:].mean() < 5


@pytest.mark.parametrize("length", [0, 1, 40, 400, 1500])
def test_cut_off_files_are_named(length: int):
    data = written("mp4", "libx264", shades())
    with pytest.raises(RequestError, match="video"), open_film(data[:length]) as video:
        list(video.frames(range(NUM_FRAMES)))


def test_damaged_files_are_refused_or_read():
    choose = np.random.default_rng(3)
    for container, codec in KINDS[:4]:
        data = written(container, codec, shades())
        for _ in range(25):
            damaged = bytearray(data)
            for place in choose.integers(0, len(data), 12):
                damaged[place] = choose.integers(0, 256)
            with contextlib.suppress(RequestError), open_film(bytes(damaged)) as video:
                list(video.frames(range(NUM_FRAMES)))


def test_lists_of_other_files_are_not_followed(tmp_path, monkeypatch):
    """What FFmpeg would open for a playlist."""
    secret = tmp_path / "secret.mp4"
    secret.write_bytes(written("mp4", "mpeg4", shades()))
    monkeypatch.chdir(tmp_path)
    relative = b"ffconcat version 1.0\nfile 'secret.mp4'\n"
    av = pytest.importorskip("av")
    with av.open(io.BytesIO(relative)) as container:  # as it does unless told otherwise
        assert container.streams.video
    with pytest.raises(RequestError, match="can't be read"), open_film(relative):
        pass
    lists = [
        f"ffconcat version 1.0\nfile '{secret}'\n",
        f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{secret}\n#EXT-X-ENDLIST\n",
        f"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 9 RTP/AVP 96\n{secret}",
        "<?xml version='1.0'?><MPD xmlns='urn:mpeg:dash:schema:mpd:2011'></MPD>",
    ]
    for text in lists:
        with pytest.raises(RequestError, match="can't be read"), open_film(text.encode()):
            pass


def test_sound_alone_is_no_video():
    av = pytest.importorskip("av")
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as output:
        stream = output.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
        frame.sample_rate = 8000
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    with pytest.raises(RequestError, match="no pictures"), open_film(buffer.getvalue()):
        pass


@pytest.mark.parametrize(
    ("bound", "value", "words"),
    [("MAX_BYTES", 100, "at most 100"), ("MAX_SECONDS", 0.1, "lasts"),
     ("MAX_FRAME_PIXELS", 64 * 47, "64 x 48"), ("MAX_ALL_PIXELS", 64 * 48 * 11, "12 frames"),
     ("MAX_DECODE_SECONDS", -1.0, "to decode")],
)  # fmt: skip
def test_bounds(monkeypatch, bound: str, value: float, words: str):
    gif = io.BytesIO()
    frames = [Image.fromarray(frame) for frame in shades()]
    frames[0].save(gif, "GIF", save_all=True, append_images=frames[1:], duration=40)
    files = [written("mp4", "mpeg4", shades()), gif.getvalue()]
    monkeypatch.setattr(film, bound, value)
    for data in files:
        with pytest.raises(RequestError, match=words), open_film(data) as video:
            list(video.frames([0]))


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    data = b"\0\0\0\x18ftypmp42"
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(RequestError, match=r"pip install 'pagoda-llm\[video\]'"), open_film(data):
        pass
