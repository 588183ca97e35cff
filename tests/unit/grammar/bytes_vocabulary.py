"""A vocabulary of 256 bytes and some special tokens: what a grammar accepts, character by
character."""

import numpy as np

from pagoda.core.grammar import Grammars, TokenMatcher, Vocabulary

EOS = 256
FIRST_SPECIAL = 257


class ByteGrammars:
    def __init__(self, specials: tuple[str, ...] = ()):
        self.special_ids = {name: FIRST_SPECIAL + i for i, name in enumerate(specials)}
        tokens = [bytes([byte]) for byte in range(256)]
        tokens += [b"<eos>", *(name.encode() for name in specials)]
        vocabulary = Vocabulary(
            tokens, [EOS, *self.special_ids.values()], [EOS], lambda text: list(text.encode())
        )
        self.grammars = Grammars(lambda: vocabulary, len(tokens))

    def encode(self, text: str) -> np.ndarray:
        ids: list[int] = []
        while text:
            name = next((n for n in self.special_ids if text.startswith(n)), None)
            if name is not None:
                ids.append(self.special_ids[name])
                text = text[len(name) :]
            else:
                ids += text[0].encode()
                text = text[1:]
        return np.array(ids, np.int32)

    def matcher(self, grammar: str) -> TokenMatcher:
        return self.grammars.matcher(grammar)

    def allowed(self, matcher: TokenMatcher) -> set[int]:
        mask = np.zeros(self.grammars.mask_words, np.int32)
        self.grammars.fill(mask, matcher)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        return set(np.flatnonzero(bits).tolist())

    def accepts(self, grammar: str, text: str) -> bool:
        """Whether the text is a whole sentence of the grammar."""
        matcher = self.matcher(grammar)
        return matcher.follow(self.encode(text)) and EOS in self.allowed(matcher)
