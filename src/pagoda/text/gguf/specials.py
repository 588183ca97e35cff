"""Finding the special tokens in a text, before anything else looks at it."""

from collections.abc import Callable, Iterator

from tokenizers import AddedToken, Tokenizer, models

from pagoda.text.gguf.vocab import CONTROL, UNKNOWN, USER_DEFINED, GgufVocab

_ORDINARY = "\U0010ffff"  # a noncharacter, so never the text of a token


class SpecialSplitter:
    """Cuts a text into special tokens and the fragments between them, leftmost longest first.

    Built on the added tokens of `tokenizers`, one automaton for any number of tokens.
    """

    def __init__(self, vocab: GgufVocab):
        user_defined = vocab.ids_of(USER_DEFINED)
        ids = vocab.ids_of(CONTROL, UNKNOWN) + user_defined
        strip_right = _strips_right(vocab)
        self._special = _automaton(vocab, ids, strip_right)
        self._text_only = _automaton(vocab, user_defined, strip_right)

    def split(self, text: str, parse_special: bool) -> Iterator[int | str]:
        """Token ids and text fragments in order; control tokens only if `parse_special`."""
        automaton, ids = self._special if parse_special else self._text_only
        # As a batch, because `encode` may hold the GIL all the while.
        (encoding,) = automaton.encode_batch([text], add_special_tokens=False)
        for found, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            yield ids[found] if found else text[start:end]


class FragmentEncoder:
    """Special tokens by the splitter, the fragments between them by `encode_fragment`."""

    def __init__(self, splitter: SpecialSplitter, encode_fragment: Callable[[str], list[int]]):
        self._splitter = splitter
        self._encode_fragment = encode_fragment

    def encode(self, text: str, parse_special: bool) -> list[int]:
        ids: list[int] = []
        for part in self._splitter.split(text, parse_special):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encode_fragment(part)
        return ids


def _automaton(
    vocab: GgufVocab, ids: list[int], strip_right: frozenset[int]
) -> tuple[Tokenizer, dict[int, int]]:
    tokenizer = Tokenizer(models.WordLevel({_ORDINARY: 0}, unk_token=_ORDINARY))
    unique = {vocab.tokens[index]: index for index in ids}
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False, rstrip=index in strip_right)
            for token, index in unique.items()
        ]
    )
    found = tokenizer.get_vocab(with_added_tokens=True)
    return tokenizer, {found[token]: index for token, index in unique.items()}


def _strips_right(vocab: GgufVocab) -> frozenset[int]:
    """Phi-3's tokens swallow the white space behind them, which GGUF has no field for."""
    name = str(vocab.metadata.get("general.name", "")).lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    kept = {"<unk>", "<s>", "<|endoftext|>"}
    ids = vocab.ids_of(CONTROL, UNKNOWN, USER_DEFINED)
    return frozenset(index for index in ids if vocab.tokens[index] not in kept)
