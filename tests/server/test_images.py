"""Pictures from each dialect to the engine; the engine is a fake that notes what it gets."""

import base64
from functools import partial

import anthropic
import httpx
import numpy as np
import openai
import pytest

from pagoda.server.fetch import MediaFetcher
from pagoda.text.images.qwen_vl import QwenImageProcessor
from tests.server.conftest import RunningServer
from tests.server.fakes import REPLY
from tests.server.seeing import IMAGE, Serve, part, png, seeing, text, url
from tests.server.test_errors import error_of


@pytest.fixture
def serve(start: Serve) -> Serve:
    return partial(seeing, start)


def test_chat(serve: Serve) -> None:
    server = serve()
    parts = [text("A"), part(url()), text("B"), part(url(32, 96, "blue")), part(url())]
    reply = server.openai().chat.completions.create(
        model="fake", messages=[{"role": "user", "content": parts}]
    )
    assert reply.choices[0].message.content == REPLY
    (request,) = server.client.requests
    ids = request.prompt_token_ids
    first, second, third = request.media
    assert [item.length for item in request.media] == [2, 3, 2]
    assert [item.grid for item in request.media] == [(1, 1, 2), (1, 3, 1), (1, 1, 2)]
    for item in request.media:
        assert ids[item.start - 1 : item.start + item.length + 1] == [
            258, *[IMAGE] * item.length, 259,
        ]  # fmt: skip
    assert ids.count(IMAGE) == 7 and reply.usage.prompt_tokens == len(ids)
    assert first.content_hash == third.content_hash != second.content_hash
    assert server.client.pixels.keys() == {first.content_hash, second.content_hash}
    pixels = server.client.pixels[second.content_hash]
    np.testing.assert_array_equal(pixels, np.broadcast_to([0, 0, 255], (1, 96, 32, 3)))


def test_each_dialect_says_the_same(serve: Serve) -> None:
    server = serve()
    parts = [text("See"), part(url())]
    server.openai().chat.completions.create(
        model="fake", messages=[{"role": "user", "content": parts}]
    )
    server.openai().responses.create(
        model="fake",
        input=[{"role": "user", "content": [
            {"type": "input_text", "text": "See"}, {"type": "input_image", "image_url": url()},
        ]}],
    )  # fmt: skip
    source = {
        "type": "base64", "media_type": "image/png", "data": base64.b64encode(png()).decode(),
    }  # fmt: skip
    for given in (source, {"type": "url", "url": url()}):
        server.anthropic().messages.create(
            model="fake",
            max_tokens=9,
            messages=[{"role": "user", "content": [
                text("See"), {"type": "image", "source": given},
            ]}],
        )  # fmt: skip
    requests = server.client.requests
    assert len({tuple(request.prompt_token_ids) for request in requests}) == 1
    assert len({request.media[0].content_hash for request in requests}) == 1
    assert len(requests) == 4


def test_a_tool_s_result_may_be_a_picture(serve: Serve) -> None:
    server = serve()
    content = [{"type": "image", "source": {"type": "url", "url": url()}}]
    server.anthropic().messages.create(
        model="fake",
        max_tokens=9,
        messages=[
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "t1", "name": "screen", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": content},
            ]},
        ],
    )  # fmt: skip
    assert len(server.client.requests[0].media) == 1


def test_tokens_of_pictures_are_counted(serve: Serve) -> None:
    server = serve()
    messages = [{"role": "user", "content": [part(url())]}]
    server.chat(messages=messages)
    length = len(server.client.requests[0].prompt_token_ids)
    assert server.post("/tokenize", messages=messages).json()["count"] == length
    counted = server.post("/v1/chat/completions/input_tokens", messages=messages).json()
    assert length in counted.values()
    blocks = [{"type": "image", "source": {"type": "url", "url": url()}}]
    count = server.anthropic().messages.count_tokens(
        model="fake", messages=[{"role": "user", "content": blocks}]
    )
    assert count.input_tokens == length


def test_choices_and_batches(serve: Serve) -> None:
    server = serve()
    messages = [{"role": "user", "content": [part(url())]}]
    assert len(server.chat(messages=messages, n=2).json()["choices"]) == 2
    batch = server.post("/v1/chat/completions/batch", messages=[messages, messages])
    assert batch.status_code == 200
    assert [len(request.media) for request in server.client.requests] == [1] * 4


def test_templates_that_take_strings(serve: Serve) -> None:
    server = serve("{% for m in messages %}{{ m.content }}{% endfor %}")
    server.chat(messages=[{"role": "user", "content": [text("A"), part(url()), text("B")]}])
    (request,) = server.client.requests
    assert request.prompt_token_ids == [65, 10, 258, IMAGE, IMAGE, 259, 10, 66]


def test_what_the_model_takes_is_told(serve: Serve, shared: RunningServer) -> None:
    server = serve()
    for running, sees in ((server, True), (shared, False)):
        (card, *_) = running.http.get("/v1/models").json()["data"]
        taken = ["text", "image", "video"] if sees else ["text"]
        assert card["architecture"] == {
            "input_modalities": taken, "output_modalities": ["text"],
        }  # fmt: skip
        assert running.http.get("/props").json()["modalities"]["vision"] is sees


def test_a_model_of_text_says_so(shared: RunningServer) -> None:
    messages = [{"role": "user", "content": [part(url())]}]
    assert "reads text only" in error_of(shared.chat(messages=messages))["message"]
    with pytest.raises(openai.BadRequestError, match="reads text only"):
        shared.openai().responses.create(
            model="fake",
            input=[{"role": "user", "content": [{"type": "input_image", "image_url": url()}]}],
        )
    with pytest.raises(anthropic.BadRequestError, match="reads text only"):
        source = {"type": "url", "url": url()}
        shared.anthropic().messages.create(
            model="fake",
            max_tokens=9,
            messages=[{"role": "user", "content": [{"type": "image", "source": source}]}],
        )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (part("data:image/png;base64,AAAA"), "none of PNG"),
        (part("data:image/png;base64,*"), "no valid base64"),
        (part("data:image/png,AAAA"), "base64"),
        (part(url()[:-40] + "=="), "base64|damaged"),
        (part(url(4000, 4)), "too long and narrow"),
        (part("file:///etc/passwd"), "begin with http"),
        (part("/etc/passwd"), "begin with http"),
        (part("http://127.0.0.1/x.png"), "no public address"),
        ({"type": "image_url"}, "needs a URL"),
        ({"type": "image_url", "image_url": {"url": 3}}, "needs a URL"),
        ({"type": "audio_url", "audio_url": {"url": url()}}, "text, images and videos"),
    ],
)
def test_wrong_pictures_are_named(serve: Serve, given: dict, words: str) -> None:
    error = error_of(serve().chat(messages=[{"role": "user", "content": [given]}]))
    assert error["param"] == "messages"
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(error["message"])


def test_the_number_of_pictures_is_limited(serve: Serve) -> None:
    server = serve(limit_mm_per_prompt={"image": 2})
    parts = [part(url())] * 3
    error = error_of(server.chat(messages=[{"role": "user", "content": parts}]))
    assert "hold 3 images, and at most 2" in error["message"]
    assert server.chat(messages=[{"role": "user", "content": parts[:2]}]).status_code == 200


def test_the_model_s_own_mark_in_a_text_moves_no_picture(serve: Serve) -> None:
    server = serve()
    parts = [text("A <|image_pad|> B"), part(url())]
    error = error_of(server.chat(messages=[{"role": "user", "content": parts}]))
    assert "2 places for 1 pictures" in error["message"]
    # Without pictures it is a token as any other.
    assert server.chat(messages=[{"role": "user", "content": parts[:1]}]).status_code == 200
    assert not server.client.requests[-1].media


def test_prompts_with_pictures_are_not_cut(serve: Serve) -> None:
    messages = [{"role": "user", "content": [part(url())]}]
    error = error_of(serve().chat(messages=messages, truncate_prompt_tokens=4))
    assert "would cut pictures" in error["message"]


def test_a_picture_is_processed_once(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    process = QwenImageProcessor.process
    monkeypatch.setattr(
        QwenImageProcessor, "process", lambda *given: calls.append(1) or process(*given)
    )
    server = serve()
    for _ in range(3):
        server.chat(messages=[{"role": "user", "content": [part(url())]}])
    assert len(calls) == 1


def test_pictures_by_url_need_no_flag(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["93.184.215.14"]

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=httpx.ByteStream(png()))

    fetcher = partial(MediaFetcher, resolve=resolve, transport=httpx.MockTransport(answer))
    monkeypatch.setattr("pagoda.server.fetch.MediaFetcher", fetcher)
    server = serve()
    address = "https://upload.example/boardwalk.jpg"
    see = [text("See"), part(address)]
    server.openai().chat.completions.create(
        model="fake", messages=[{"role": "user", "content": see}]
    )
    see = [
        {"type": "input_text", "text": "See"}, {"type": "input_image", "image_url": address},
    ]  # fmt: skip
    server.openai().responses.create(model="fake", input=[{"role": "user", "content": see}])
    see = [text("See"), {"type": "image", "source": {"type": "url", "url": address}}]
    server.anthropic().messages.create(
        model="fake", max_tokens=9, messages=[{"role": "user", "content": see}]
    )
    assert [[item.grid for item in request.media] for request in server.client.requests] == [
        [(1, 1, 2)]
    ] * 3


def test_a_picture_is_fetched_once_for_a_conversation_that_is_cut(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = []

    async def fetch(self: MediaFetcher, target: str) -> bytes:
        fetched.append(target)
        return png()

    monkeypatch.setattr(MediaFetcher, "fetch", fetch)
    server = serve()
    picture = {"type": "input_image", "image_url": "https://images.example/a.png"}
    asked = {"role": "user", "content": [{"type": "input_text", "text": "x" * 300}, picture]}
    turns = [asked, {"role": "assistant", "content": "Yes."}] * 9 + [asked]
    server.openai().responses.create(model="fake", input=turns, truncation="auto")
    (request,) = server.client.requests
    assert 0 < len(request.media) < 10
    assert len(fetched) == 1
