"""Small tokenizers, as GGUF metadata, made where they are needed."""

import functools
import json
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 12345 o'clock, isn't it?",
    "def merge(left, right):\n    return [x for x in left + right if x > 0]\n",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Ça va, garçon?",
    "你好，世界。今天天气很好。 こんにちは世界。 안녕하세요 세계. Привет, мир! नमस्ते दुनिया",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪 🦙🦙🦙   e\u0301 a\u0308  \t\n\n",
] * 3

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


@functools.cache
def train_byte_level(vocab_size: int = 500) -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer with GPT-2's words."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_level_metadata(**extra: Any) -> dict[str, Any]:
    """GGUF metadata of that tokenizer; the first three tokens are control tokens."""
    state = json.loads(train_byte_level().to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].get)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in state["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **{f"tokenizer.ggml.{name}": value for name, value in extra.items()},
    }


def spm_metadata(pieces: dict[str, float], **extra: Any) -> dict[str, Any]:
    """GGUF metadata of a SentencePiece vocabulary: unk, BOS, EOS, 256 bytes, then the pieces."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *bytes_, *pieces],
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL]
        + [BYTE] * 256
        + [NORMAL] * len(pieces),
        "tokenizer.ggml.scores": [0.0] * 259 + list(pieces.values()),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{name}": value for name, value in extra.items()},
    }
