"""Grammars that outputs follow: compiled beside the engine's loop, then moved on by tokens.

The work is llguidance's (https://github.com/guidance-ai/llguidance): an Earley parser over a lexer
of derivatives, walked along the trie of the vocabulary. It gives up the GIL.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import llguidance
import numpy as np
import numpy.typing as npt

from pagoda.base.errors import RequestError

Mask = npt.NDArray[np.int32]
"""[words]: bit i % 32 of word i // 32 says whether token i is allowed."""

# Grammars kept compiled; most take a few hundred kB, and a service uses a handful.
_MAX_KEPT = 64
# What a request's masks may take of a processor: typical ones take 0.05 ms, the first of a large
# schema 1 to 10. Waiting for a processor on a busy machine is not the request's fault.
_SECONDS, _SECONDS_PER_TOKEN = 0.5, 0.004
# A quarter to a half of llguidance's own limits: the worst step of a hostile regex takes about
# 10 ms, and all other requests wait for it.
_LIMITS = llguidance.LLParserLimits(
    step_lexer_fuel=100_000, step_max_items=20_000, max_lexer_states=50_000, verbose_errors=False
)


class Vocabulary(NamedTuple):
    """The tokens of a model, as far as grammars must know them."""

    tokens: Sequence[bytes]
    special_ids: Sequence[int]
    """Tokens that no text spells; grammars name them by id."""
    eos_ids: Sequence[int]
    encode: Callable[[str], list[int]]


class TokenMatcher:
    """How far one request's output is in its grammar."""

    def __init__(self, matcher: llguidance.LLMatcher, eos_ids: Sequence[int]):
        self._matcher = matcher
        self._seconds = 0.0
        self.ended = False
        """The output has ended: nothing but its end may follow, however often it is asked."""
        self._eos_ids = frozenset(eos_ids)
        self._seen = np.zeros(64, np.int32)
        self._count = 0

    def follow(self, output: npt.NDArray[np.int32]) -> bool:
        """Move to behind `output`, back where it differs from what was seen; False if that breaks
        the grammar, with as much of it taken as did not."""
        begun = time.thread_time()
        common = self._common(output)
        if common < self._count:
            self._matcher.rollback(self._count - common)
        added = output[common:].tolist()
        end = len(added)
        if not self._eos_ids.isdisjoint(added):
            end = next(i for i, token in enumerate(added) if token in self._eos_ids)
        taken = self._matcher.try_consume_tokens(added[:end])
        self._remember(common, output[common : common + taken])
        self.ended = taken == end < len(added)
        self._seconds += time.thread_time() - begun
        return taken == end

    def _common(self, output: npt.NDArray[np.int32]) -> int:
        """How many tokens of the output were seen already; as a rule all that were seen."""
        count = self._count
        seen = self._seen[:count]
        # As bytes: ten times as fast as numpy's comparison of a few tokens.
        if len(output) >= count and seen.tobytes() == output[:count].tobytes():
            return count
        count = min(count, len(output))
        equal = seen[:count] == output[:count]
        return count if equal.all() else int(equal.argmin())

    def fill(self, mask: Mask) -> None:
        begun = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._seconds += time.thread_time() - begun

    def error(self) -> str | None:
        """Why it cannot be followed any further: a limit was passed."""
        if self._matcher.is_error():
            return self._matcher.get_error()
        if self._seconds > _SECONDS + _SECONDS_PER_TOKEN * self._count:
            return f"it took {self._seconds:.1f} s for {self._count} tokens."
        return None

    def _remember(self, start: int, added: npt.NDArray[np.int32]) -> None:
        self._count = start + len(added)
        if self._count > len(self._seen):
            grown = np.zeros(2 * self._count, np.int32)
            grown[:start] = self._seen[:start]
            self._seen = grown
        self._seen[start : self._count] = added


class Grammars:
    """The compiled grammars of an engine. The vocabulary is loaded with the first of them."""

    def __init__(self, load: Callable[[], Vocabulary], vocab_size: int):
        """`vocab_size` counts the model's logits, which may be more than there are tokens."""
        self._load = load
        self._vocab_size = vocab_size
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._eos_ids: list[int] = []
        self._kept: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        # Two, so that one that takes long holds nobody up.
        self._pool = ThreadPoolExecutor(2, "grammar")
        self.mask_words = -(-vocab_size // 32)

    def compile(self, grammar: str) -> "Future[None]":
        """Make `matcher` quick for a grammar; the future raises RequestError for a wrong one."""
        with self._lock:
            if grammar in self._kept:
                done: Future[None] = Future()
                done.set_result(None)
                return done
        return self._pool.submit(self._compile, grammar)

    def matcher(self, grammar: str) -> TokenMatcher:
        """One at the beginning of a grammar. Raises RequestError for a wrong one."""
        with self._lock:
            known = self._kept.get(grammar)
        if known is None:  # dropped for others since it was compiled
            self._compile(grammar)
            return self.matcher(grammar)
        return TokenMatcher(known.deep_copy(), self._eos_ids)

    def fill(self, mask: Mask, matcher: TokenMatcher) -> None:
        """What may follow in a matcher, into int32 mask [mask_words]."""
        if matcher.ended:
            mask[:] = 0
            for token in self._eos_ids:
                mask[token // 32] |= np.uint32(1 << token % 32).astype(np.int32)
        else:
            matcher.fill(mask)

    def _compile(self, grammar: str) -> None:
        with self._loading:
            if self._tokenizer is None:
                vocabulary = self._load()
                self._eos_ids = [token for token in vocabulary.eos_ids if token < self._vocab_size]
                self._tokenizer = _tokenizer(vocabulary, self._vocab_size)
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise RequestError(f"The grammar cannot be used: {_first_line(matcher.get_error())}")
        with self._lock:
            self._kept[grammar] = matcher
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)


class _Wrapper:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, vocab_size: int):
        padding = vocab_size - len(vocabulary.tokens)
        self.tokens = [*vocabulary.tokens[:vocab_size], *[b""] * padding]
        self.special_token_ids = list(vocabulary.special_ids)
        self.eos_token_id = vocabulary.eos_ids[0] if vocabulary.eos_ids else 0
        self._encode = vocabulary.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))


def _tokenizer(vocabulary: Vocabulary, vocab_size: int) -> llguidance.LLTokenizer:
    wrapper = _Wrapper(vocabulary, vocab_size)
    return llguidance.LLTokenizer(wrapper, eos_token=list(vocabulary.eos_ids) or None)  # type: ignore[arg-type]  # duck-typed


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:500] if text.strip() else "it is not valid"
