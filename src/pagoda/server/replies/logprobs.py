"""Log-probabilities in the forms that the dialects of OpenAI, vLLM and llama-server give them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from pagoda.core.messages import TokenLogprobs
from pagoda.server.protocol.generate import TokenIdLogprob, TokenIdLogprobs
from pagoda.server.protocol.native import TokenProb, TokenProbs
from pagoda.server.protocol.replies import (
    ChatLogprobs,
    CompletionLogprobs,
    ContentLogprob,
    PromptLogprob,
    TopLogprob,
)
from pagoda.text.tokenizer import Tokenizer

# JSON has no infinity; vLLM's floor.
_FLOOR = -9999.0


class LogprobFormatter:
    """Names tokens as text, or as `token_id:N` where the request asks for it."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool):
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def token(self, token_id: int) -> str:
        if self._as_ids:
            return f"token_id:{token_id}"
        return self._tokenizer.token_bytes(token_id).decode("utf-8", errors="replace")

    def chat(self, entries: Sequence[TokenLogprobs], top: int) -> ChatLogprobs:
        return ChatLogprobs([self._content(entry, top) for entry in entries])

    def _content(self, entry: TokenLogprobs, top: int) -> ContentLogprob:
        pairs = list(zip(entry.top_ids, entry.top_logprobs, strict=True))
        return ContentLogprob(
            self.token(entry.token_id),
            max(entry.logprob, _FLOOR),
            self._bytes(entry.token_id),
            [
                TopLogprob(self.token(token), max(logprob, _FLOOR), self._bytes(token))
                for token, logprob in (pairs if top < 0 else pairs[:top])
            ],
        )

    def _bytes(self, token_id: int) -> list[int]:
        return list(self._tokenizer.token_bytes(token_id))

    def native(self, entries: Sequence[TokenLogprobs]) -> list[TokenProbs]:
        return [
            TokenProbs(
                **self._named(entry.token_id, entry.logprob),
                top_logprobs=[
                    TokenProb(**self._named(token, logprob))
                    for token, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True)
                ],
            )
            for entry in entries
        ]

    def drawn(self, entries: Sequence[TokenLogprobs]) -> list[TokenProbs]:
        """With what each token was drawn."""
        return [
            TokenProbs(
                **self._token(entry.token_id),
                prob=math.exp(entry.logprob),
                top_probs=[
                    TokenProb(**self._token(token), prob=math.exp(logprob))
                    for token, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True)
                ],
            )
            for entry in entries
        ]

    def _named(self, token_id: int, logprob: float) -> dict[str, Any]:
        return {**self._token(token_id), "logprob": max(logprob, _FLOOR)}

    def _token(self, token_id: int) -> dict[str, Any]:
        return {
            "id": token_id, "token": self.token(token_id), "bytes": self._bytes(token_id),
        }  # fmt: skip

    def completion(
        self, entries: Iterable[TokenLogprobs | int], offset: int
    ) -> tuple[CompletionLogprobs, int]:
        """Entries in order, and the text offset after them. A bare id has no logprob (echo)."""
        result = CompletionLogprobs()
        for entry in entries:
            known = entry if isinstance(entry, TokenLogprobs) else None
            text = self.token(entry.token_id if isinstance(entry, TokenLogprobs) else entry)
            result.text_offset.append(offset)
            result.tokens.append(text)
            result.token_logprobs.append(None if known is None else max(known.logprob, _FLOOR))
            result.top_logprobs.append(None if known is None else self._top(known))
            offset += len(text)
        return result, offset

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        """The most probable tokens and, as in vLLM, the chosen one."""
        pairs = [
            *zip(entry.top_ids, entry.top_logprobs, strict=True),
            (entry.token_id, entry.logprob),
        ]
        return {self.token(token): max(logprob, _FLOOR) for token, logprob in pairs}

    def prompt(
        self, entries: Sequence[TokenLogprobs | None]
    ) -> list[dict[int, PromptLogprob] | None]:
        return [None if entry is None else self._prompt_entry(entry) for entry in entries]

    def _prompt_entry(self, entry: TokenLogprobs) -> dict[int, PromptLogprob]:
        result = {
            token: PromptLogprob(max(logprob, _FLOOR), rank, self.token(token))
            for rank, (token, logprob) in enumerate(
                zip(entry.top_ids, entry.top_logprobs, strict=True), start=1
            )
        }
        result[entry.token_id] = PromptLogprob(
            max(entry.logprob, _FLOOR), entry.rank, self.token(entry.token_id)
        )
        return result


def id_logprobs(entries: Sequence[TokenLogprobs]) -> list[TokenIdLogprobs]:
    """Tokens by their ids alone; the chosen one first."""
    return [
        TokenIdLogprobs(
            token_id=entry.token_id,
            logprob=max(entry.logprob, _FLOOR),
            rank=entry.rank,
            top_logprobs=[
                TokenIdLogprob(token_id=token, logprob=max(logprob, _FLOOR), rank=rank)
                for rank, (token, logprob) in enumerate(
                    zip(entry.top_ids, entry.top_logprobs, strict=True), start=1
                )
            ],
        )
        for entry in entries
    ]
