"""Text to token ids and back, the same for every model file."""

from collections.abc import Iterable, Mapping
from typing import Any

from pagoda.base.errors import CheckpointError, RequestError
from pagoda.text.gguf.tokenizer import parts_from_gguf
from pagoda.text.json_tokenizer import parts_from_folder
from pagoda.text.parts import TokenizerParts, library_faults
from pagoda.weights.files import ModelFiles


class Tokenizer:
    """A model's tokenizer. Thread-safe; ids are those of the model's own vocabulary."""

    def __init__(self, parts: TokenizerParts):
        self._encoder = parts.encoder
        self._pieces = parts.pieces
        self._special = parts.special
        self._bytes: dict[int, bytes] = {}
        self.vocab_size = len(parts.pieces.tokens)
        self.bos_token_id = parts.special.bos
        self.eos_token_id = parts.special.eos
        self.eos_token_ids = parts.special.eos_ids
        """All ids that end a turn."""
        self.special_ids = parts.special.ids
        self.special_token_names: Mapping[str, str] = parts.special.names
        """`bos_token`, `eos_token`, ... to their texts, for chat templates."""
        self.strips_leading_space = parts.pieces.strips_leading_space
        self.num_special_tokens = len(parts.special.prefix) + len(parts.special.suffix)
        """Of those that `add_special_tokens` adds; a pair has `num_pair_tokens`."""
        self.num_pair_tokens = self.num_special_tokens + len(parts.special.middle)

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids of a text.

        `add_special_tokens` puts the model's BOS (and whatever else it wants) around them, unless
        the text already has it there: a rendered chat template gets no second BOS. With
        `parse_special` false, control tokens in the text are ordinary characters.
        Raises RequestError for text that is not Unicode (lone surrogates), and for one that a
        broken tokenizer fails on.
        """
        _check_unicode(text)
        with library_faults(RequestError, "The model's tokenizer fails on this text"):
            ids = self._encoder.encode(text, parse_special)
        return self.with_special(ids) if add_special_tokens else ids

    def with_special(self, ids: list[int]) -> list[int]:
        """Ids of a text between what the model wants around a prompt, unless it is there."""
        prefix, suffix = list(self._special.prefix), list(self._special.suffix)
        if prefix and ids[: len(prefix)] != prefix:
            ids = prefix + ids
        if suffix and ids[-len(suffix) :] != suffix:
            ids = ids + suffix
        return ids

    def pair(self, first: list[int], second: list[int]) -> tuple[list[int], int]:
        """Ids of two texts as one prompt, and where its second text begins if the model's token
        types mark that (else 0)."""
        special = self._special
        head = [*special.prefix, *first, *special.middle]
        return [*head, *second, *special.suffix], len(head) if special.marks_second else 0

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD, unknown ids nothing."""
        skipped = self.special_ids if skip_special_tokens else frozenset()
        data = b"".join(self.token_bytes(index) for index in ids if index not in skipped)
        if self.strips_leading_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes this token adds to a text; empty for an id without a token."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._pieces.token_bytes(token_id)
            if known:  # ids that don't exist come from clients, any number of them
                self._bytes[token_id] = known
        return known

    def token_text(self, token_id: int) -> str:
        """What the token adds to a text, U+FFFD where it is part of a character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def vocab_entry(self, token_id: int) -> str | None:
        """The token as the vocabulary writes it (`Ġthe`), None for an id without a token."""
        tokens = self._pieces.tokens
        return tokens[token_id] if 0 <= token_id < len(tokens) else None


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer of a GGUF file or of a model folder.

    Raises CheckpointError for broken files, UnsupportedModelError for a family not known here.
    """
    broken = f"The tokenizer of {files.path} cannot be used; fetch the model again"
    with library_faults(CheckpointError, broken):
        if files.kind == "gguf":
            return Tokenizer(parts_from_gguf(files.metadata))
        configured = [files.generation_config.get("eos_token_id")]
        configured.append((files.config or {}).get("eos_token_id"))
        ids = [index for value in configured for index in _as_ids(value)]
        return Tokenizer(parts_from_folder(files.folder, end_ids=ids))


def _as_ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [index for index in values if isinstance(index, int)]


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"The text is not valid Unicode: character {error.start} is the lone surrogate "
            f"U+{ord(text[error.start]):04X}. Send whole characters."
        ) from error
