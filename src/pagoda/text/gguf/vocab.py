"""The `tokenizer.*` metadata of a GGUF file, checked.

Key names and token types: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagoda.base.errors import CheckpointError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# Names that end a turn although many files say so nowhere else; a subset of llama.cpp's list.
# fmt: off
_END_OF_TURN = frozenset([
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[", "</s>",
])
# fmt: on
# Harmony's structure is text to the parsers behind, never skipped.
_ALWAYS_TEXT = frozenset(["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"])


@dataclass(frozen=True)
class GgufVocab:
    model: str
    """`gpt2`, `llama`, `bert`, `gemma4`, ..."""
    pre: str | None
    tokens: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]
    metadata: Mapping[str, Any]

    def special_id(self, *names: str) -> int | None:
        """The first of `tokenizer.ggml.NAME_token_id` that names a token."""
        for name in names:
            value = self.metadata.get(f"tokenizer.ggml.{name}_token_id")
            if isinstance(value, int) and 0 <= value < len(self.tokens):
                return value
        return None

    def flag(self, name: str, default: bool) -> bool:
        """`tokenizer.ggml.NAME`, or the default of the tokenizer's family."""
        value = self.metadata.get(f"tokenizer.ggml.{name}")
        return default if value is None else bool(value)

    def ids_of(self, *types: int) -> list[int]:
        return [index for index, kind in enumerate(self.types) if kind in types]


def read_vocab(metadata: Mapping[str, Any]) -> GgufVocab:
    """Read and check the vocabulary; CheckpointError names the key that is missing or broken."""
    tokens = _array(metadata, "tokens", str)
    if not tokens:
        raise CheckpointError(
            "The GGUF file has no vocabulary (tokenizer.ggml.tokens); convert the model again."
        )
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    types = _array(metadata, "token_type", int, len(tokens))
    scores = _array(metadata, "scores", (float, int), len(tokens))
    pre = metadata.get("tokenizer.ggml.pre")
    if pre is not None and not isinstance(pre, str):
        raise CheckpointError(
            f"The GGUF key tokenizer.ggml.pre is {pre!r}, no name; convert the model again."
        )
    vocab = GgufVocab(
        model=str(metadata.get("tokenizer.ggml.model", "")),
        pre=pre,
        tokens=tokens,
        types=types or [NORMAL] * len(tokens),
        scores=scores or [0.0] * len(tokens),
        merges=_array(metadata, "merges", str),
        metadata=metadata,
    )
    _correct_types(vocab)
    return vocab


def end_of_turn_ids(vocab: GgufVocab) -> tuple[int, ...]:
    """Ids that end a turn: eos, eot, eom, then control tokens known by name."""
    ids = {vocab.special_id("eos"), vocab.special_id("eot"), vocab.special_id("eom")}
    by_name = {
        token: index
        for index, token in enumerate(vocab.tokens)
        if token in _END_OF_TURN and vocab.types[index] == CONTROL
    }
    if {"<|return|>", "<|call|>"} <= by_name.keys() or {"<|calls|>", "<|flush|>"} <= by_name.keys():
        by_name.pop("<|end|>", None)  # harmony: ends a message, not the turn
    ids.update(by_name.values())
    return tuple(sorted(index for index in ids if index is not None))


def _correct_types(vocab: GgufVocab) -> None:
    """Converters mark some tokens wrongly; llama.cpp corrects them by name, and so do we."""
    gemma4 = "<|tool_response>" in vocab.tokens  # there, </s> is markup like any other
    for index, token in enumerate(vocab.tokens):
        if gemma4 and token == "</s>":
            continue
        if token in _ALWAYS_TEXT:
            vocab.types[index] = USER_DEFINED
        elif token in _END_OF_TURN:
            vocab.types[index] = CONTROL


def _array(
    metadata: Mapping[str, Any],
    name: str,
    kind: type | tuple[type, ...],
    length: int | None = None,
) -> list[Any]:
    """A copy of an array, cut to `length`; the elements of a GGUF's array are all of one type."""
    key = f"tokenizer.ggml.{name}"
    values = metadata.get(key)
    if values is None:
        return []
    if not isinstance(values, list) or (values and not isinstance(values[0], kind)):
        raise CheckpointError(
            f"The GGUF key {key} is not an array of the right type; convert the model again."
        )
    if length is not None and len(values) < length:
        raise CheckpointError(
            f"The GGUF key {key} has {len(values)} entries for {length} tokens; "
            "convert the model again."
        )
    return values[:length]
