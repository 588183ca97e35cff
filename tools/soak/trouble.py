"""When which engine was harmed, and what went wrong that may not."""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

SERVER = "*"
"""In the place of a model: all of them, and the server itself."""


@dataclass
class _Span:
    model: str
    end: float = float("inf")


class Trouble:
    """Requests may only fail while one of these spans of their model lasts."""

    def __init__(self) -> None:
        self._spans: list[_Span] = []

    @contextmanager
    def of(self, model: str) -> Iterator[None]:
        span = _Span(model)
        self._spans.append(span)
        try:
            yield
        finally:
            span.end = time.monotonic()

    def since(self, model: str, begun: float) -> bool:
        """Whether the model, or the server, was harmed between `begun` and now."""
        return any(span.model in (model, SERVER) and span.end >= begun for span in self._spans)


@dataclass
class Faults:
    """Counted by kind and words, each said when it first happens."""

    counts: Counter[str] = field(default_factory=Counter)
    words: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, kind: str, words: str) -> None:
        self.counts[kind] += 1
        said = self.words.setdefault(kind, Counter())
        if words not in said:
            print(f"FAULT, {kind}: {words}", file=sys.stderr, flush=True)
        said[words] += 1
