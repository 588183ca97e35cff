"""Videos in chat requests over HTTP: how they arrive at the engine, and what is refused."""

import base64
import io
import threading
from functools import partial

import pytest
from PIL import Image

from pagoda.text.images import film
from tests.server.conftest import RunningServer
from tests.server.seeing import VIDEO, Serve, part, seeing, text, url
from tests.server.test_errors import error_of
from tests.unit.text.test_film import shades, written

GIF, MP4 = "image/gif", "video/mp4"


@pytest.fixture
def serve(start: Serve) -> Serve:
    return partial(seeing, start)


def gif(count: int = 8, milliseconds: int = 500) -> bytes:
    frames = [Image.fromarray(frame) for frame in shades(count)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], duration=milliseconds)
    return buffer.getvalue()


def data_url(data: bytes, kind: str = GIF) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def video(target: str) -> dict:
    return {"type": "video_url", "video_url": {"url": target}}


def user(*parts: dict) -> list[dict]:
    return [{"role": "user", "content": list(parts)}]


def sent(server: RunningServer, **body) -> tuple[str, list]:
    """The prompt that the engine got, frames as `#`, and its media."""
    reply = server.chat(**body)
    assert reply.status_code == 200, reply.text
    request = server.client.requests[-1]
    ids = [ord("#") if token == VIDEO else token for token in request.prompt_token_ids]
    return bytes(token for token in ids if token < 256).decode(), request.media


def test_times_stand_between_frames(serve: Serve) -> None:
    server = serve()
    parts = text("See "), video(data_url(gif())), text(" Well?")
    prompt, items = sent(server, messages=user(*parts))
    # 8 frames of 0.5 s in pairs; each of 48 x 64 is 2 x 2 tokens.
    times = "".join(f"<{0.25 + number:.1f} seconds>####" for number in range(4))
    assert prompt == f"<user>See {times} Well?"
    assert [(item.length, item.grid) for item in items] == [(4, (1, 2, 2))] * 4
    assert len({item.content_hash for item in items}) == 4


def test_a_file_of_the_openai_client(serve: Serve) -> None:
    server = serve()
    server.openai().chat.completions.create(
        model="fake", messages=user(video(data_url(written("mp4", "libx264", shades()), MP4)))
    )
    # 12 frames at 25 per second are less than a second, of which at least 4 are looked at.
    assert len(server.client.requests[0].media) == 2


def test_stills_and_what_is_asked_of_them(serve: Serve) -> None:
    server = serve()
    stills = []
    for frame in shades(5):
        buffer = io.BytesIO()
        Image.fromarray(frame).save(buffer, "JPEG")
        stills.append(base64.b64encode(buffer.getvalue()).decode())
    messages = user(video("data:video/jpeg;base64," + ",".join(stills)))
    assert sent(server, messages=messages)[0].count("seconds") == 3
    assert "<0.5 seconds>####<2.5 seconds>####<4.0" in sent(server, messages=messages)[0]
    prompt, _ = sent(server, messages=messages, media_io_kwargs={"video": {"fps": 4}})
    assert "<0.1 seconds>####<0.6 seconds>" in prompt
    prompt, _ = sent(server, messages=messages, media_io_kwargs={"video": {"num_frames": 2}})
    assert prompt.count("seconds") == 1


def test_which_frames_are_looked_at(serve: Serve) -> None:
    server = serve()
    messages = user(video(data_url(gif())))

    def pairs(**body) -> int:
        return len(sent(server, messages=messages, **body)[1])

    assert pairs() == 4
    assert pairs(mm_processor_kwargs={"fps": 1}) == 2
    assert pairs(media_io_kwargs={"video": {"num_frames": 6}}) == 3
    assert pairs(media_io_kwargs={"video": {"num_frames": -1}}) == 4
    both = {"media_io_kwargs": {"video": {"fps": 2}}, "mm_processor_kwargs": {"num_frames": 2}}
    assert pairs(**both) == 1


def test_images_and_videos_in_one_message(serve: Serve) -> None:
    server = serve()
    parts = part(url()), video(data_url(gif(4))), part(url(color="blue"))
    _, items = sent(server, messages=user(*parts))
    assert [item.grid for item in items] == [(1, 1, 2), (1, 2, 2), (1, 2, 2), (1, 1, 2)]


def test_templates_that_take_strings(serve: Serve) -> None:
    server = serve("{% for m in messages %}{{ m.content }}{% endfor %}")
    prompt, _ = sent(server, messages=user(text("A"), video(data_url(gif(2)))))
    assert prompt == "A\n<0.2 seconds>####"


def test_what_is_wrong_is_named(serve: Serve) -> None:
    server = serve(limit_mm_per_prompt={"video": 1})
    cases = [
        (video("data:video/mp4,AAAA"), "must be data:video/"),
        (video("data:video/jpeg;base64,AAAA,"), "none of PNG"),
        (video("http://127.0.0.1/x.mp4"), "no public address"),
        (video("file:///etc/passwd"), "begin with http"),
        ({"type": "video_url"}, "needs a URL in video_url.url"),
    ]
    for given, words in cases:
        error = error_of(server.chat(messages=user(given)))
        assert error["param"] == "messages" and words in error["message"], error
    several = user(*[video(data_url(gif(2)))] * 2)
    assert "hold 2 videos, and at most 1" in error_of(server.chat(messages=several))["message"]
    mark = user(text("<|vision_start|><|video_pad|><|vision_end|>"), video(data_url(gif(2))))
    assert "2 places for 1 videos" in error_of(server.chat(messages=mark))["message"]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("mm_processor_kwargs", {"size": {}}, "mm_processor_kwargs.size is not supported"),
        ("media_io_kwargs", {"image": {}}, "media_io_kwargs.image is not supported"),
        ("media_io_kwargs", {"video": 3}, "must be an object"),
        ("mm_processor_kwargs", {"fps": 0}, "above 0"),
        ("mm_processor_kwargs", {"fps": "2"}, "must be a number"),
        ("mm_processor_kwargs", {"num_frames": 0}, "1 or more"),
    ],
)
def test_wrong_choices_are_named(serve: Serve, field: str, value: dict, words: str) -> None:
    error = error_of(serve().chat(messages=user(text("Hi")), **{field: value}))
    assert words in error["message"]


def test_a_damaged_file_is_named(serve: Serve) -> None:
    pytest.importorskip("av", reason="the extra `video` is not installed")
    error = error_of(serve().chat(messages=user(video("data:video/mp4;base64,AAAA"))))
    assert "damaged, cut off or of an unknown kind" in error["message"]


def test_a_model_without_videos_says_so(shared: RunningServer) -> None:
    error = error_of(shared.chat(messages=user(video(data_url(gif(2))))))
    assert "reads text only" in error["message"]


def test_others_are_answered_while_a_video_is_decoded(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, begun, done = serve(), threading.Event(), threading.Event()
    decode = film.open_film

    def slow(*given: object):
        begun.set()
        assert done.wait(30)
        return decode(*given)

    monkeypatch.setattr(film, "open_film", slow)
    replies = []
    thread = threading.Thread(
        target=lambda: replies.append(server.chat(messages=user(video(data_url(gif())))))
    )
    thread.start()
    assert begun.wait(30)
    assert server.chat(messages=user(part(url()))).status_code == 200
    done.set()
    thread.join()
    assert replies[0].status_code == 200
