"""A server whose model sees, around a fake engine; and pictures for it."""

import base64
import io
import re
from collections.abc import Callable
from typing import Any

from PIL import Image

from pagoda.arch.read import Reader
from pagoda.config.engine import MediaConfig
from pagoda.config.modality import MODALITIES
from pagoda.engine.media import MediaInput
from pagoda.text.images import qwen_video
from pagoda.text.images.qwen_video import QwenVideoProcessor
from pagoda.text.images.qwen_vl import QwenImageProcessor, from_config
from pagoda.text.template.chat import ChatTemplate
from tests.server.conftest import RunningServer
from tests.server.fakes import ByteTokenizer, FakeClient

MARKS = ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>")
IMAGE, VIDEO = 257, 260
# As Qwen3-VL's, without tools.
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif part.type == 'video' %}"
    "<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)


class SeeingTokenizer(ByteTokenizer):
    """Bytes, and a token for each mark."""

    vocab_size = 261

    def encode(self, text: str, **options: bool) -> list[int]:
        ids: list[int] = []
        for piece in re.split("|".join(f"({re.escape(mark)})" for mark in MARKS), text):
            ids += [IMAGE + MARKS.index(piece)] if piece in MARKS else (piece or "").encode()
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        return MARKS[token_id - IMAGE].encode() if token_id > 256 else super().token_bytes(token_id)


def processor() -> QwenImageProcessor:
    return from_config(Reader({"size": {"shortest_edge": 1024, "longest_edge": 1 << 20}}, "x"))


def video_processor() -> QwenVideoProcessor:
    return qwen_video.from_config(Reader({}, "x"))


Serve = Callable[..., RunningServer]


ABILITIES = {"media": {"image": 64, "video": 128}, "vocab_size": 261}
"""Of the fake engine."""


def text_side(template: str = TEMPLATE) -> dict[str, Any]:
    """What the model's other side has beside that of one which only reads."""
    tokenizer = SeeingTokenizer()
    processors = {"image": processor(), "video": video_processor()}
    return {
        "tokenizer": tokenizer,
        "chat_template": ChatTemplate(
            {"default": template},
            {},
            placeholders={kind: one.placeholder for kind, one in processors.items()},
        ),
        "media": {
            kind: MediaInput(MODALITIES[kind], one, tokenizer) for kind, one in processors.items()
        },
    }


def seeing(start: Serve, template: str = TEMPLATE, **media: Any) -> RunningServer:
    server = start(FakeClient(abilities=ABILITIES), **text_side(template))
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
