"""A third kind of media, and the process in which its files are read: a tone is a list of numbers,
which a model reads as the tokens of these numbers."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pagoda.base.errors import RequestError
from pagoda.config.engine import ModelConfig
from pagoda.config.modality import MODALITIES, Modality
from pagoda.engine.aside import zygote
from pagoda.engine.media import MediaInput
from pagoda.text.media.base import (
    Data,
    Grid,
    Loader,
    Medium,
    Options,
    Piece,
    Processor,
    Sizes,
    Values,
)
from pagoda.text.media.dataurl import base64_bytes, split_data_url
from pagoda.text.template.chat import ChatTemplate
from tests.server.fakes import ByteTokenizer, FakeTextSide

MARK, TOKEN = "<|tone|>", 257
MODULE = "tests.engine.tones"
TEMPLATE = (
    "{% for m in messages %}{% for part in m.content %}{% if part.type == 'tone' %}<|tone|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)


class ToneLoader(Loader):
    max_bytes = 1 << 10

    def data(self, url: str) -> Data:
        _, body = split_data_url(url, "a tone", "tone")
        return base64_bytes(body, "a tone")

    @contextlib.contextmanager
    def opened(self, data: Data, options: Options) -> Iterator[Values]:
        assert isinstance(data, bytes)
        if not data or len(data) % 4:
            raise RequestError("A tone must be 32-bit numbers.")
        yield np.frombuffer(data, np.float32) * options.get("volume", 1)

    def given(self, value: Any, options: Options) -> Values:
        return np.array(value, np.float32)


class ToneProcessor(Processor):
    token = placeholder = MARK
    encoder = "tone"

    def __init__(self, most: int = 1000):
        self.most = most

    def process(self, opened: Values) -> Medium:
        numbers = opened[: self.most]
        return Medium((Piece(numbers, len(numbers), encoder="tone"),))

    def limited(self, sizes: Sizes) -> "ToneProcessor":
        return ToneProcessor(sizes["tone"])

    def patches(self, values: Values) -> tuple[npt.NDArray[np.float32], Grid]:
        return values[:, None], (1, 1, len(values))


TONE = Modality(
    kind="tone",
    words="tones",
    parts=("tone_url",),
    most=2,
    max_tokens={"cpu": 6, "cuda": 6},
    loader=f"{MODULE}:ToneLoader",
    families={"LlamaForCausalLM": f"{MODULE}:processor"},
    options=("volume",),
    dialects={"anthropic": "tone"},
)


def processor(_: object) -> ToneProcessor:
    return ToneProcessor()


class HearingTokenizer(ByteTokenizer):
    """Bytes, and the mark of a tone."""

    vocab_size = 258

    def encode(self, text: str, **options: bool) -> list[int]:
        first, *others = text.split(MARK)
        ids = list(first.encode())
        for other in others:
            ids += [TOKEN, *other.encode()]
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        return MARK.encode() if token_id == TOKEN else super().token_bytes(token_id)


def text_side() -> dict[str, Any]:
    tokenizer = HearingTokenizer()
    return {
        "tokenizer": tokenizer,
        "chat_template": ChatTemplate({"default": TEMPLATE}, {}, placeholders={"tone": MARK}),
        "media": {"tone": MediaInput(TONE, ToneProcessor(), tokenizer)},
    }


def _load(_: ModelConfig) -> Any:
    return FakeTextSide(**text_side())


if __name__ == "__main__":
    MODALITIES["tone"] = TONE
    zygote.load_text_side = _load
    zygote.main()
