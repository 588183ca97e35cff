"""A GGUF's metadata, whatever they hold: a tokenizer and a model's spec, or what is wrong.

The input is JSON of the key-values, so that a change meets what they mean, not how they are stored.
Sources: src/pagoda/text/gguf_*.py, src/pagoda/arch/.
"""

import json

from fuzz.harnesses.text import round_trip
from pagoda.arch.registry import GGUF_ARCHITECTURES, spec_for
from pagoda.base.errors import CheckpointError, RequestError
from pagoda.text.gguf.tokenizer import parts_from_gguf
from pagoda.text.tokenizer import Tokenizer

WORDS = (
    *(b'"general.architecture":"%s"' % name.encode() for name in GGUF_ARCHITECTURES),
    *(b'"tokenizer.ggml.model":"%s"' % name for name in (b"gpt2", b"llama", b"bert", b"gemma4")),
    *(
        b'"tokenizer.ggml.%s":' % key
        for key in (b"tokens", b"scores", b"merges", b"token_type", b"bos_token_id",
                    b"eos_token_id", b"add_bos_token", b"pre", b"unknown_token_id")
    ),
    *(
        b'"llama.%s":' % key
        for key in (b"block_count", b"embedding_length", b"attention.head_count", b"vocab_size",
                    b"rope.dimension_count", b"attention.key_length", b"expert_count")
    ),
    b"null", b"-1", b"[]", b'""', b"1e400", b"NaN", b"9" * 30, b"true", b'"<0x0A>"', b'"a b"',
    b'"<|im_end|>"', "\u2581".encode(), b"\\ud800", b"[1,2]", b'["a","b"]',
)  # fmt: skip


def fuzz_gguf_vocab(data: bytes) -> None:
    try:
        metadata = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(metadata, dict) or not all(map(_stored, metadata.values())):
        return
    if "general.architecture" in metadata:
        try:
            assert spec_for(None, metadata, ()).layers
        except CheckpointError as error:
            assert str(error).strip()
    try:
        tokenizer = Tokenizer(parts_from_gguf(metadata))
    except CheckpointError as error:
        assert str(error).strip()
        return
    for text in ("", "a b\n", "Ab <|im_end|> \u00e9\U0001f600"):
        try:
            ids = tokenizer.encode(text)
        except RequestError:
            continue
        assert all(0 <= index < tokenizer.vocab_size for index in ids)
        round_trip(tokenizer, ids)


def _stored(value: object) -> bool:
    """Whether a GGUF can hold a value: numbers of at most 64 bits, texts, lists of one type."""
    if isinstance(value, list):
        kinds = {type(item) for item in value}
        return len(kinds) <= 1 and not kinds & {list, dict} and all(map(_stored, value))
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    if isinstance(value, str):
        return value.isprintable() or not any("\ud800" <= char <= "\udfff" for char in value)
    return isinstance(value, float)
