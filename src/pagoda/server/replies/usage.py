"""Token counts of a reply, and the fingerprint of what produced it."""

import hashlib

from pagoda.engine.directory import ServedModel
from pagoda.server.protocol.common import GenerationBody
from pagoda.server.protocol.replies import (
    CompletionTokensDetails,
    PrefixReport,
    PromptTokensDetails,
    Usage,
)
from pagoda.server.replies.generation import Generation
from pagoda.version import __version__


class UsageCounter:
    """Counts over all choices of one HTTP request."""

    def __init__(self, num_prompt_tokens: int):
        self._prompt = num_prompt_tokens
        self._cached: dict[int, int] = {}
        self._misses: dict[int, str | None] = {}
        self._completion = 0
        self.reasoning: int | None = None
        """Set where a parser tells reasoning from text."""

    def add(
        self,
        index: int,
        num_tokens: int,
        num_cached_tokens: int | None,
        prefix_miss: str | None = None,
    ) -> None:
        self._completion += num_tokens
        if num_cached_tokens is not None:
            self._cached.setdefault(index, num_cached_tokens)
            self._misses.setdefault(index, prefix_miss)

    def final(self, body: GenerationBody, served: ServedModel, generation: Generation) -> Usage:
        """At a reply's end, with what the request wants to know."""
        usage = self.usage(body.n)
        if body.return_prefix_report:
            report = self._prefix_report(served, generation.prompt_ids(0))
            usage.prompt_tokens_details.prefix_report = report
        return usage

    def _prefix_report(self, served: ServedModel, prompt_ids: list[int]) -> PrefixReport:
        """Of the first choice."""
        reason = self._misses.get(0, "off")
        if reason is None or reason == "off":
            return PrefixReport(reason=reason or "all")
        at, ready = self._cached.get(0, 0), served.client.ready
        block = prompt_ids[at : at + (ready.block_size if ready is not None else 0)]
        return PrefixReport(reason=reason, at_token=at, text=served.tokenizer.decode(block))

    def usage(self, n: int) -> Usage:
        # The n choices of a prompt share it, so the first one's hits are the prompt's.
        cached = sum(count for index, count in self._cached.items() if index % n == 0)
        usage = Usage(
            prompt_tokens=self._prompt,
            total_tokens=self._prompt + self._completion,
            completion_tokens=self._completion,
            prompt_tokens_details=PromptTokensDetails(cached),
        )
        if self.reasoning is not None:
            usage.completion_tokens_details = CompletionTokensDetails(self.reasoning)
        return usage


def fingerprint(served: ServedModel) -> str:
    """Changes when the program, the model or its shape does: seeds repeat only within one."""
    ready = served.client.ready
    shape = (served.root, ready and (ready.max_model_len, ready.vocab_size, ready.block_size))
    return f"pagoda-{__version__}-{hashlib.sha256(repr(shape).encode()).hexdigest()[:8]}"
