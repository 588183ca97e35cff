"""What llama-bench and llama-batched-bench measure: random tokens, no sampling."""

import argparse
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from protocol import divergence, random_ids, timed

BATCH = 2048
"""Most tokens of one call, as both programs have it."""


class LlamaBench(ABC):
    """The measures, over a library of the llama.cpp family. Contexts are the library's own."""

    def __init__(self, args: argparse.Namespace, vocab_size: int):
        self._threads = args.threads
        self._vocab_size = vocab_size
        self._rng = np.random.default_rng(0)
        self._deep: dict[int, Any] = {}

    @abstractmethod
    def _new_context(self, tokens: int, requests: int) -> Any:
        """A cache for `tokens` of as many `requests`, with `self._threads` threads."""

    @abstractmethod
    def _free(self, context: Any) -> None: ...

    @abstractmethod
    def _read(self, context: Any, ids: list[int], start: int) -> None:
        """Of request 0, at positions from `start`, at most `BATCH`; logits of the last token."""

    @abstractmethod
    def _submit(self, context: Any, rows: list[tuple[int, int, int]], every: bool = False) -> None:
        """Rows of (id, position, request); logits of the last one, or of every one."""

    @abstractmethod
    def _forget(self, context: Any, start: int) -> None:
        """Request 0 from position `start` on."""

    @abstractmethod
    def _logits(self, context: Any, rows: int) -> np.ndarray:
        """fp32 [rows, vocab] of the last `_submit` of every row; a copy."""

    def decode(self, tokens: int) -> dict[str, Any]:
        context = self._context(tokens)
        seconds = timed(lambda: self._generate(context, tokens, 0))
        self._free(context)
        return {"seconds": seconds, "tokens": tokens}

    def prefill(self, tokens: int) -> dict[str, Any]:
        context, ids = self._context(tokens), self._random(tokens)
        seconds = timed(lambda: self._read_all(context, ids))
        self._free(context)
        return {"seconds": seconds, "tokens": tokens}

    def batch_decode(self, requests: int, prompt: int, tokens: int) -> dict[str, Any]:
        context = self._context(requests * (prompt + tokens), requests)
        for request in range(requests):
            self._submit(context, [(id_, i, request) for i, id_ in enumerate(self._random(prompt))])

        def run() -> None:
            for step in range(tokens):
                ids = self._random(requests)
                rows = [(id_, prompt + step, request) for request, id_ in enumerate(ids)]
                self._submit(context, rows, every=True)

        seconds = timed(run)
        self._free(context)
        return {"seconds": seconds, "tokens": requests * tokens}

    def depth(self, context: int, tokens: int) -> dict[str, Any]:
        """Tokens behind `context` cached ones, which are read once and kept."""
        if context not in self._deep:
            self._deep[context] = self._context(context + tokens)
            self._read_all(self._deep[context], self._random(context))
        deep = self._deep[context]
        seconds = timed(lambda: self._generate(deep, tokens, context))
        self._forget(deep, context)
        return {"seconds": seconds, "tokens": tokens}

    def divergence(self, ids: list[int], reference: str) -> dict[str, Any]:
        context = self._context(len(ids))
        self._submit(context, [(id_, i, 0) for i, id_ in enumerate(ids)], every=True)
        logits = self._logits(context, len(ids))
        self._free(context)
        return divergence(reference, logits)

    def _context(self, tokens: int, requests: int = 1) -> Any:
        context = self._new_context(tokens, requests)
        if not context:
            raise MemoryError(f"it cannot make a context of {tokens} tokens")
        return context

    def _random(self, count: int) -> list[int]:
        return random_ids(count, self._vocab_size, self._rng)

    def _generate(self, context: Any, tokens: int, start: int) -> None:
        for i, id_ in enumerate(self._random(tokens)):
            self._read(context, [id_], start + i)

    def _read_all(self, context: Any, ids: list[int]) -> None:
        for start in range(0, len(ids), BATCH):
            self._read(context, ids[start : start + BATCH], start)


def check(status: int) -> None:
    if status:
        raise RuntimeError(f"llama_decode returned {status}")
