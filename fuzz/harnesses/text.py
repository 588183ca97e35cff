"""Texts through tokenizers: bytes come back as they were, and a stream says what the whole does.

Sources: src/pagoda/text/tokenizer.py, detokenizer.py, stop.py.
"""

import json
from collections.abc import Sequence
from functools import cache

from fuzz.registry import ROOT
from pagoda.base.errors import RequestError
from pagoda.text.detokenizer import Detokenizer
from pagoda.text.gguf.tokenizer import parts_from_gguf
from pagoda.text.stop import StopMatcher
from pagoda.text.tokenizer import Tokenizer

WORDS = (
    b"<|im_start|>", b"<|im_end|>", b"<|endoftext|>", b"<s>", b"</s>", b"<0x0A>", b" ", b"\n\n",
    b"\r\n", b"\t", b"'ll", b"1234567", "\u2581".encode(), "\u200d".encode(), "\ufeff".encode(),
    "\U0001f468\u200d\U0001f469".encode(), "e\u0301".encode(), "\u4f60\u597d".encode(), b"\x00",
    b"\xff", b"\xc3", b"\xf0\x9f", b"stop", b"a" * 300,
)  # fmt: skip


@cache
def tokenizers() -> dict[str, Tokenizer]:
    """Of each family, made of the metadata that the corpus of `gguf_vocab` holds."""
    paths = sorted((ROOT / "corpus" / "gguf_vocab").glob("*-tokenizer.json"))
    return {path.stem: Tokenizer(parts_from_gguf(json.loads(path.read_bytes()))) for path in paths}


def fuzz_text(data: bytes) -> None:
    """The first byte says where a stream is cut, the rest is the text."""
    step, text = 1 + data[0] % 7 if data else 1, data[1:].decode("utf-8", "surrogateescape")
    for name, tokenizer in tokenizers().items():
        for parse_special in (True, False):
            try:
                ids = tokenizer.encode(text, parse_special=parse_special, add_special_tokens=False)
            except RequestError:
                assert any("\udc80" <= char <= "\udcff" for char in text)
                continue
            whole = round_trip(tokenizer, ids, step)
            if name.startswith("gpt2"):
                assert whole == text, (text, whole)
        # Ids are from clients, too: any of them, in any order.
        round_trip(tokenizer, list(data), step)
    _check_stop(text, step)


def round_trip(tokenizer: Tokenizer, ids: Sequence[int], step: int = 1) -> str:
    """The text of ids, of which a stream in pieces must say the same."""
    stream = Detokenizer(tokenizer, skip_special_tokens=False)
    pieces = [stream.append(ids[i : i + step]) for i in range(0, len(ids), step)]
    whole = tokenizer.decode(ids)
    assert "".join([*pieces, stream.finish()]) == whole
    return whole


def _check_stop(text: str, step: int) -> None:
    """Whatever the pieces, the text ends where the first stop string is complete."""
    stops = ("stop", "\n\n", "<|im_end|>", "op")
    matcher, shown = StopMatcher(stops), ""
    for start in range(0, len(text), step):
        shown += matcher.feed(text[start : start + step]).text
    shown += matcher.flush()
    found = [(text.index(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    end, length = min(found, default=(len(text), 0))
    assert shown == text[: end + length]
