"""A server whose model sees, around a fake engine; and pictures for it."""

import base64
import io
from collections.abc import Callable
from typing import Any

from PIL import Image

from pagoda.arch.read import Reader
from pagoda.config.engine import MediaConfig
from pagoda.engine.media import ImageInput
from pagoda.text.chat_template import ChatTemplate
from pagoda.text.images.qwen_vl import QwenImageProcessor, from_config
from tests.server.conftest import RunningServer
from tests.server.fakes import ByteTokenizer, FakeClient

MARKS = ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>")
IMAGE = 257
# As Qwen3-VL's, without tools.
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)


class SeeingTokenizer(ByteTokenizer):
    """Bytes, and a token for each mark."""

    vocab_size = 260

    def encode(self, text: str, **options: bool) -> list[int]:
        for number, mark in enumerate(MARKS):
            if mark in text:
                before, _, behind = text.partition(mark)
                middle = [IMAGE + number]
                return self.encode(before) + middle + self.encode(behind)
        return list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        return MARKS[token_id - IMAGE].encode() if token_id > 256 else super().token_bytes(token_id)


def processor() -> QwenImageProcessor:
    return from_config(Reader({"size": {"shortest_edge": 1024, "longest_edge": 1 << 20}}, "x"))


Serve = Callable[..., RunningServer]


def seeing(start: Serve, template: str = TEMPLATE, **media: Any) -> RunningServer:
    client = FakeClient(abilities={"media": {"image": 64}, "vocab_size": 260})
    tokenizer = SeeingTokenizer()
    chat_template = ChatTemplate(
        {"default": template}, {}, image_placeholder=processor().placeholder
    )
    images = ImageInput(processor(), tokenizer)
    server = start(client, tokenizer=tokenizer, chat_template=chat_template, images=images)
    (served,) = server.context.fleet.models()
    served.media = MediaConfig(**media)
    return server


def url(width: int = 64, height: int = 32, color: str = "red") -> str:
    return "data:image/png;base64," + base64.b64encode(png(width, height, color)).decode()


def png(width: int = 64, height: int = 32, color: str = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), color).save(buffer, "PNG")
    return buffer.getvalue()


def part(target: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": target, "detail": "high"}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}
