"""SentencePiece's greedy merging as llama.cpp runs it, exactly.

The `tokenizers` library cannot express it: its BPE ranks each pair of tokens apart, while here all
ways of forming a token share the token's score and the leftmost wins, and characters outside the
vocabulary still take part in merges.
"""

import heapq
from operator import add

from pagoda.text.gguf.specials import FragmentEncoder, SpecialSplitter
from pagoda.text.gguf.vocab import CONTROL, UNKNOWN, USER_DEFINED, GgufVocab
from pagoda.text.parts import Pieces, spm_bytes

_SPACE = "\u2581"
# Pieces are mostly words, of which a text of any length has few; 64 k of them take some 10 MB.
_MAX_CACHED = 65536
_MAX_CACHED_CHARS = 32


class SpmEncoder:
    """Merges the neighbours whose union has the highest score, the leftmost first, to the end."""

    def __init__(self, vocab: GgufVocab, add_space_prefix: bool):
        self._ids = {token: index for index, token in enumerate(vocab.tokens)}
        self._scores = vocab.scores
        self._prefix = " " if add_space_prefix else ""
        self._unknown = vocab.special_id("unknown")
        self._inside: set[str] = set()
        for token in vocab.tokens:
            self._inside.update(map(add, token, token[1:]))
        self._cache: dict[str, list[int]] = {}

    def encode_fragment(self, text: str) -> list[int]:
        text = (self._prefix + text).replace(" ", _SPACE)
        cache = self._cache
        ids: list[int] = []
        for piece in self._pieces(text):
            known = cache.get(piece)
            if known is None:
                known = self._encode_piece(piece)
                if len(piece) <= _MAX_CACHED_CHARS:
                    if len(cache) >= _MAX_CACHED:
                        cache.clear()
                    cache[piece] = known
            ids += known
        return ids

    def _pieces(self, text: str) -> list[str]:
        """Cut where no token holds the two neighbours together: no merge can cross there."""
        inside = self._inside
        cuts = [i for i, pair in enumerate(map(add, text, text[1:]), 1) if pair not in inside]
        return [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def _encode_piece(self, piece: str) -> list[int]:
        ids: list[int] = []
        for symbol in self._merge(list(piece)):
            token = self._ids.get(symbol)
            ids += self._bytes(symbol) if token is None else [token]
        return ids

    def _merge(self, symbols: list[str]) -> list[str]:
        """Symbols merged away become empty; `before` and `after` link those that are left."""
        count = len(symbols)
        before, after = list(range(-1, count - 1)), list(range(1, count + 1))
        queue: list[tuple[float, int, int, str]] = []

        def offer(left: int, right: int) -> None:
            if left < 0 or right >= count:
                return
            union = symbols[left] + symbols[right]
            token = self._ids.get(union)
            if token is not None:
                heapq.heappush(queue, (-self._scores[token], left, right, union))

        for right in range(1, count):
            offer(right - 1, right)
        while queue:
            _, left, right, union = heapq.heappop(queue)
            if not symbols[left] or symbols[left] + symbols[right] != union:
                continue  # one of the two has merged since
            symbols[left], symbols[right] = union, ""
            after[left] = after[right]
            if after[right] < count:
                before[after[right]] = left
            offer(before[left], left)
            offer(left, after[left])
        return [symbol for symbol in symbols if symbol]

    def _bytes(self, symbol: str) -> list[int]:
        found = (self._ids.get(f"<0x{byte:02X}>", self._unknown) for byte in symbol.encode())
        return [token for token in found if token is not None]


def spm_parts(vocab: GgufVocab) -> tuple[FragmentEncoder, Pieces]:
    """Encoder and pieces of a SentencePiece vocabulary with scores."""
    add_space_prefix = vocab.flag("add_space_prefix", True)
    encoder = SpmEncoder(vocab, add_space_prefix)
    pieces = Pieces(
        tokens=vocab.tokens,
        to_bytes=spm_bytes,
        literal=frozenset(vocab.ids_of(CONTROL, UNKNOWN, USER_DEFINED)),
        strips_leading_space=add_space_prefix,
    )
    return FragmentEncoder(SpecialSplitter(vocab), encoder.encode_fragment), pieces
