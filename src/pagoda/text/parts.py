"""What a tokenizer file is read into, whichever its format: encoder, pieces, special tokens."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tokenizers import Tokenizer

from pagoda.base.errors import PagodaError


@contextlib.contextmanager
def library_faults(kind: type[PagodaError], what: str) -> Iterator[None]:
    """Turn faults of `tokenizers` into `kind`, with `what` before the library's own words.

    It raises plain Exceptions, and where its Rust panics, what is a BaseException alone and has no
    public name.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise kind(f"{what} ({' '.join(str(error).split())[:200]}).") from error


def backend_ids(backend: Tokenizer, text: str) -> list[int]:
    """Ids of a text by `tokenizers`, without what a post-processor adds.

    Of the library's ways to encode this one always releases the GIL, so that a long text does not
    stop the event loop, and computes no offsets: 1 MB takes a quarter of the time.
    """
    (encoding,) = backend.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


class Encoder(Protocol):
    def encode(self, text: str, parse_special: bool) -> list[int]:
        """Token ids of a text, without the tokens that begin or end every prompt.

        With `parse_special` false, control tokens in the text are ordinary characters.
        """


@dataclass(frozen=True)
class SpecialTokens:
    bos: int | None = None
    eos: int | None = None
    eos_ids: tuple[int, ...] = ()
    """Every id that ends a turn."""
    ids: frozenset[int] = frozenset()
    """What `skip_special_tokens` leaves out."""
    prefix: tuple[int, ...] = ()
    """What `add_special_tokens` puts before a text, a BOS as a rule."""
    suffix: tuple[int, ...] = ()
    middle: tuple[int, ...] = ()
    """What stands between the texts of a pair."""
    marks_second: bool = False
    """The second text of a pair has token type 1."""
    names: Mapping[str, str] = field(default_factory=dict)
    """`bos_token`, `eos_token`, ... as chat templates see them."""


@dataclass(frozen=True)
class Pieces:
    """Text of tokens: each id stands for some bytes, whatever its neighbours."""

    tokens: Sequence[str | None]
    """Vocabulary entries by id; None for an id without a token."""
    to_bytes: Callable[[str], bytes]
    literal: frozenset[int] = frozenset()
    """Ids of added tokens, whose text is meant as written."""
    strips_leading_space: bool = False
    """The first space of a text was made by the encoder, so decoding takes it away."""

    def token_bytes(self, token_id: int) -> bytes:
        token = self.tokens[token_id] if 0 <= token_id < len(self.tokens) else None
        if token is None:
            return b""
        if token_id in self.literal:
            return token.encode("utf-8", "replace")
        return self.to_bytes(token)


@dataclass(frozen=True)
class TokenizerParts:
    encoder: Encoder
    pieces: Pieces
    special: SpecialTokens


def spm_bytes(token: str) -> bytes:
    """Bytes of a SentencePiece token: `<0x0A>` is a byte and the lower block a space."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace("\u2581", " ").encode("utf-8", "replace")
