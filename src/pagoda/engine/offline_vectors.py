"""Vectors, classes and scores of texts for scripts. Names and results are vLLM's."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from pagoda.arch.spec import PoolingSpec
from pagoda.base.errors import PagodaError, RequestError
from pagoda.core import messages
from pagoda.core.messages import AbortRequests, AddRequest
from pagoda.core.vectors import check_dimensions, cosines, embedding, score_label, scores
from pagoda.engine.core import EngineCore
from pagoda.engine.interrupt import deferred_interrupt
from pagoda.engine.requests import RequestLimits, make_pool_request
from pagoda.engine.served.text_side import TextSide
from pagoda.engine.start.progress import PromptDisplay


class PoolingParams(msgspec.Struct, kw_only=True):
    """What is wanted of texts that are pooled; names and meanings are vLLM's."""

    dimensions: int | None = None
    """Elements of a vector, where the model was trained to be cut."""
    use_activation: bool | None = None
    """False: vectors as they are, and a classifier's logits. By default as the model has it."""
    truncate_prompt_tokens: int | None = None
    """Cuts texts, but no pairs, to so many tokens; -1 is the context's length."""


@dataclass(frozen=True)
class EmbeddingOutput:
    embedding: list[float]


@dataclass(frozen=True)
class ClassificationOutput:
    probs: list[float]


@dataclass(frozen=True)
class ScoringOutput:
    score: float


OutputT = TypeVar("OutputT", EmbeddingOutput, ClassificationOutput, ScoringOutput)


@dataclass(frozen=True)
class PoolingRequestOutput(Generic[OutputT]):
    """The result of one text, or pair of texts."""

    request_id: str
    outputs: OutputT
    prompt_token_ids: list[int]
    finished: bool = True


class OfflineVectors:
    """Has the engine of this process pool texts."""

    def __init__(
        self, core: EngineCore, text: TextSide, limits: RequestLimits, pooling: PoolingSpec
    ):
        self._core = core
        self._text = text
        self._limits = limits
        self._pooling = pooling
        self._ids = itertools.count()

    def embed(
        self, texts: Sequence[list[int]], params: PoolingParams, show: bool
    ) -> list[PoolingRequestOutput[EmbeddingOutput]]:
        if self._pooling.labels:
            raise RequestError(
                "This model is a classifier and gives no vectors; use classify(), or score() where "
                "it has one label.",
                "prompts",
            )
        pairs = [(self._cut(ids, params), 0) for ids in texts]
        outputs = []
        for request, raw in self._run(pairs, "embed", show):
            size = len(raw) // 4
            check_dimensions(params.dimensions, size, self._pooling)
            vector = embedding(raw, self._pooling, params.use_activation, params.dimensions)
            outputs.append(_output(request, EmbeddingOutput(vector.tolist())))
        return outputs

    def classify(
        self, texts: Sequence[list[int]], params: PoolingParams, show: bool
    ) -> list[PoolingRequestOutput[ClassificationOutput]]:
        if not self._pooling.labels:
            raise RequestError("This model has no classifier; use embed() or score().", "prompts")
        pairs = [(self._cut(ids, params), 0) for ids in texts]
        return [
            _output(
                request,
                ClassificationOutput(scores(raw, self._pooling, params.use_activation).tolist()),
            )
            for request, raw in self._run(pairs, "classify", show)
        ]

    def score(
        self, first: Sequence[str], second: Sequence[str], params: PoolingParams, show: bool
    ) -> list[PoolingRequestOutput[ScoringOutput]]:
        """`first` has one text, or one for each of `second`."""
        label = score_label(self._pooling, "This model")
        if label is not None:
            firsts = [first[0]] * len(second) if len(first) == 1 else first
            pairs = [self._pair(*texts) for texts in zip(firsts, second, strict=True)]
            return [
                _output(
                    request,
                    ScoringOutput(float(scores(raw, self._pooling, params.use_activation)[label])),
                )
                for request, raw in self._run(pairs, "classify", show)
            ]
        encode = self._text.tokenizer.encode
        texts = [(self._cut(encode(text), params), 0) for text in (*first, *second)]
        found = self._run(texts, "embed", show)
        vectors = [embedding(raw, self._pooling, True, None) for _, raw in found]
        values = cosines(vectors[: len(first)], vectors[len(first) :])
        requests = [request for request, _ in found[len(first) :]]
        return [
            _output(request, ScoringOutput(value))
            for request, value in zip(requests, values, strict=True)
        ]

    def _pair(self, first: str, second: str) -> tuple[list[int], int]:
        """Ids of two texts as one, by the model's template for pairs where it has one, and where
        its second begins."""
        tokenizer, template = self._text.tokenizer, self._text.chat_template
        if template is not None and template.takes_pairs:
            shown = template.render_pair(first, second)
            return tokenizer.encode(shown, add_special_tokens=False), 0
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in (first, second)]
        return tokenizer.pair(*ids)

    def _cut(self, ids: list[int], params: PoolingParams) -> list[int]:
        """At its end, with the special tokens that stand there kept."""
        most = params.truncate_prompt_tokens
        if most is None:
            return ids
        if most != -1 and not 0 < most <= self._limits.max_model_len:
            raise RequestError(
                f"truncate_prompt_tokens is {most}; it may be -1, or 1 to "
                f"{self._limits.max_model_len}.",
                "truncate_prompt_tokens",
            )
        most = self._limits.max_model_len if most == -1 else most
        if len(ids) <= most:
            return ids
        with_special = self._text.tokenizer.with_special
        if with_special(ids) != ids:  # ids of the caller's own
            return ids[:most]
        excess = len(with_special(ids[:most])) - most
        return with_special(ids[: max(most - excess, 0)])

    def _run(
        self, texts: Sequence[tuple[list[int], int]], task: str, show: bool
    ) -> list[tuple[AddRequest, bytes]]:
        """Each text's request and what the engine made of it; RequestError or PagodaError for the
        first that fails."""
        requests = [
            make_pool_request(
                f"pooled-{next(self._ids)}", ids, messages.PoolingParams(task, start), self._limits
            )
            for ids, start in texts
        ]
        core, found = self._core, dict[str, bytes]()
        with PromptDisplay(len(requests), show) as display, deferred_interrupt() as asked:
            try:
                for request in requests:
                    core.handle(request)
                while len(found) < len(requests):
                    for delta in core.step():
                        if delta.finish_reason is None:
                            continue
                        if delta.embedding is None:
                            kind = RequestError if delta.bad_request else PagodaError
                            raise kind(delta.error or "The text could not be computed.")
                        found[delta.req_id] = delta.embedding
                    display.update(len(found))
                    if asked():
                        raise KeyboardInterrupt
            finally:
                left = [request.req_id for request in requests if request.req_id not in found]
                core.handle(AbortRequests(left))
        return [(request, found[request.req_id]) for request in requests]


def _output(request: AddRequest, output: OutputT) -> PoolingRequestOutput[OutputT]:
    return PoolingRequestOutput(request.req_id, output, request.prompt_token_ids)
