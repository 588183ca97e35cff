"""Token ids to text, piece by piece."""

from codecs import utf_8_decode
from collections.abc import Iterable, Sequence, Set

from pagoda.text.tokenizer import Tokenizer


class Detokenizer:
    """The text that tokens add, as they come: its pieces together are the text of all of them.

    Every token stands for bytes of its own (`Tokenizer.token_bytes`), so this is an incremental
    UTF-8 decoder, a constant amount of work per token: a character is held back until its bytes
    are complete, and bytes that are no UTF-8 become U+FFFD as soon as that is sure.

    `prompt_ids` precede the text and are not part of it. Where a tokenizer invents a space before
    its first word (SentencePiece), that space is taken away only if nothing visible precedes:
    `decode(prompt)` and the pieces together are `decode(prompt + output)`. A prompt that ends
    inside a character gives the whole character to the output; to echo such a prompt, append its
    ids instead of passing them here.

    `shown_ids` are special tokens that are never skipped: the markup that a parser reads.

    `spaces_between_special_tokens` is accepted for vLLM's sake: none are ever put there, as with
    any tokenizer of the `tokenizers` library.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        prompt_ids: Sequence[int] = (),
        shown_ids: Set[int] = frozenset(),
    ):
        self._token_bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids - shown_ids if skip_special_tokens else frozenset()
        self._partial = b""
        """The bytes of a character that is not complete."""
        self._strips = tokenizer.strips_leading_space
        self._prime(prompt_ids)

    def append(self, ids: Iterable[int]) -> str:
        """The text that became certain with these ids."""
        data = b"".join([self._token_bytes(index) for index in ids if index not in self._skipped])
        if self._strips and data:
            self._strips = False
            data = data.removeprefix(b" ")
        return self._decode(data)

    def finish(self) -> str:
        """What an unfinished character leaves: U+FFFD, or nothing. The stream has ended."""
        return self._decode(b"", last=True)

    def _decode(self, data: bytes, last: bool = False) -> str:
        data = self._partial + data
        text, used = utf_8_decode(data, "replace", last)
        self._partial = data[used:]
        return text

    def _prime(self, prompt_ids: Sequence[int]) -> None:
        """Take over the prompt's unfinished character; at most its last three bytes matter."""
        tail = b""
        for index in reversed(prompt_ids):
            if index not in self._skipped:
                tail = self._token_bytes(index) + tail
            if len(tail) >= 4:
                break
        self._strips = self._strips and not tail
        self._decode(tail)
