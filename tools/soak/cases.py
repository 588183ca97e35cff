"""What clients ask: requests with one right answer, and rude ones with none."""

import base64
import io
import json
import random
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
RESPONSES, MESSAGES, VECTORS = "/v1/responses", "/v1/messages", "/v1/embeddings"
WORDS = ("the", "old", "stone", "river", "seven", "floors", "bell", "wind", "keeper", "at", "dawn")
Body = dict[str, Any]


@dataclass(frozen=True)
class Case:
    name: str
    model: str
    path: str
    body: Body
    choices: int = 1
    """Requests of the engine that it becomes."""
    max_tokens: int = 0
    """New tokens of one choice, at most."""
    streams: bool = True

    def salted(self, salt: str) -> "Case":
        """The same from no cached prefix."""
        salted = {**self.body, "cache_salt": salt}
        return Case(
            self.name, self.model, self.path, salted, self.choices, self.max_tokens, self.streams
        )


def prose(seed: str, words: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def _said(content: object, system: str = "") -> list[Body]:
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": content}]


def texts(model: str) -> list[Case]:
    """Of a model that writes."""
    cold, warm = {"temperature": 0}, {"temperature": 0.9, "seed": 7}
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "old": {"type": "boolean"}},
        "required": ["name", "old"],
        "additionalProperties": False,
    }
    tool = {"name": "ring", "parameters": schema}
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    hello = _said("Tell me of the keeper of a pagoda.")

    def case(name: str, path: str, tokens: int, choices: int = 1, **body: Any) -> Case:
        field = {RESPONSES: "max_output_tokens", NATIVE: "n_predict"}.get(path, "max_tokens")
        whole = {"model": model, field: tokens, **body}
        return Case(name, model, path, whole, choices, tokens)

    shared = prose("shared", 300)
    return [
        case("chat", CHAT, 48, messages=hello, **cold),
        case("chat, long reply", CHAT, 200, messages=hello, ignore_eos=True, **warm),
        case("chat, seeded, n=3", CHAT, 24, 3, messages=hello, n=3, **warm),
        case("chat, logprobs", CHAT, 16, messages=hello, logprobs=True, top_logprobs=2, **cold),
        case("chat, stop strings", CHAT, 64, messages=hello, stop=[" the", "."], **cold),
        case("chat, a tool", CHAT, 64, messages=hello, tool_choice="required",
             tools=[{"type": "function", "function": tool}], **cold),
        case("chat, a schema", CHAT, 64, messages=hello, response_format=form, **cold),
        case("chat, a long prompt", CHAT, 8, messages=_said(prose("long", 1500)), **cold),
        *(case(f"chat, a shared beginning {number}", CHAT, 24,
               messages=_said(f"Say {number}.", shared), **warm) for number in range(3)),
        case("completion", TEXT, 32, prompt="Once upon a time", **cold),
        case("completion, two prompts, n=2", TEXT, 12, 4, n=2,
             prompt=["Once", "The river " + prose("two", 60)], **warm),
        case("completion, logprobs", TEXT, 12, prompt="Seven floors", logprobs=1, **warm),
        case("llama-server's completion", NATIVE, 24, prompt="Once upon a time", **cold),
        case("responses", RESPONSES, 32, input="Who rings the bell?", **cold),
        case("responses, seeded", RESPONSES, 24, input="Who rings the bell?", **warm),
        case("messages", MESSAGES, 32, messages=hello, **cold),
        case("messages, stop string", MESSAGES, 48, messages=hello, stop_sequences=[" of"], **cold),
        Case("tokenize", model, "/tokenize", {"model": model, "prompt": shared}, 0, streams=False),
        Case("detokenize", model, "/detokenize", {"model": model, "tokens": [*range(300, 400)]}, 0,
             streams=False),
    ]  # fmt: skip


def vectors(model: str) -> list[Case]:
    """Of a model that embeds."""
    few, many = ["a bell", "the river"], [prose(str(number), 40) for number in range(8)]
    return [
        Case(f"embeddings of {len(some)}", model, VECTORS, {"model": model, "input": some},
             len(some), streams=False)
        for some in (few, many)
    ]  # fmt: skip


def sights(model: str) -> list[Case]:
    """Of a model that sees."""
    one = {"type": "image_url", "image_url": {"url": _url("png", drawing(0))}}
    other = {"type": "image_url", "image_url": {"url": _url("png", drawing(60))}}
    film = {"type": "video_url", "video_url": {"url": _url("gif", *map(drawing, range(0, 60, 10)))}}
    base = {"model": model, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    url = one["image_url"]["url"]
    shown = {"type": "image", "source": {"type": "url", "url": url}}
    see = {"type": "text", "text": "See"}
    cases = {
        "a picture": [see, one],
        "two pictures": [one, see, other],
        "a video": [film, see],
    }
    return [
        *(Case(name, model, CHAT, {**base, "messages": _said(parts)}, max_tokens=24)
          for name, parts in cases.items()),
        Case("messages, a picture", model, MESSAGES, {**base, "messages": _said([see, shown])},
             max_tokens=24),
    ]  # fmt: skip


def drawing(shift: int) -> Image.Image:
    image = Image.new("RGB", (96, 64), (shift, 90, 200))
    ImageDraw.Draw(image).ellipse((10 + shift // 2, 10, 50 + shift // 2, 50), fill=(250, 220, 40))
    return image


def _url(kind: str, first: Image.Image, *more: Image.Image) -> str:
    buffer = io.BytesIO()
    film = {"save_all": True, "append_images": more, "duration": 500} if more else {}
    first.save(buffer, kind, **film)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


@dataclass(frozen=True)
class Rude:
    """A request that must get a 4xx and harm nobody."""

    name: str
    model: str
    path: str
    content: bytes
    kind: str = "application/json"


def rude(model: str, seer: str) -> list[Rude]:
    def said(name: str, path: str = CHAT, to: str = model, **body: Any) -> Rude:
        return Rude(name, to, path, json.dumps({"model": to, "max_tokens": 8, **body}).encode())

    hello, bad = _said("hello"), {"type": "image_url"}
    return [
        Rude("broken JSON", model, CHAT, b'{"model": "smollm2", "messages": ['),
        Rude("no text at all", model, TEXT, b"\xff\xfe\x00\x80" * 50),
        Rude("deep JSON", model, CHAT, b'{"messages":' + b"[" * 20_000),
        Rude("another type", model, CHAT, b"model=smollm2", "application/x-www-form-urlencoded"),
        Rude("no such route", model, "/v1/nothing", b"{}"),
        said("no such model", to="nobody", messages=hello),
        said("many choices", messages=hello, n=1_000_000),
        said("many stop strings", messages=hello, stop=["x"] * 10_000),
        said("a hot temperature", messages=hello, temperature="hot"),
        said("less than nothing", messages=hello, max_tokens=-5),
        said("no messages", messages=[]),
        said("a prompt that is too long", TEXT, prompt="bell " * 20_000),
        said("a million tokens", TEXT, prompt=[1] * 1_000_000),
        said("tokens that are none", TEXT, prompt=[10**9, -4]),
        said("a schema that is none", messages=hello,
             response_format={"type": "json_schema", "json_schema": {"schema": {"type": 7}}}),
        said("a picture that is none", to=seer,
             messages=_said([{**bad, "image_url": {"url": "data:image/png;base64,AAAA"}}])),
        said("a picture of this machine", to=seer,
             messages=_said([{**bad, "image_url": {"url": "file:///etc/hostname"}}])),
    ]  # fmt: skip
