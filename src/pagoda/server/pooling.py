"""Runs the texts of one HTTP request that ask for vectors or scores, each an engine request."""

import itertools

from pagoda.base.errors import RequestError
from pagoda.core.messages import PoolingParams, RequestDelta
from pagoda.core.vectors import cosines, embedding, score_label, scores
from pagoda.engine.media import payloads
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.pooling_texts import PooledText, pair_ids, single_ids
from pagoda.server.context import Context, ReplyHead
from pagoda.server.errors import ApiError
from pagoda.server.keys.account import meter_of
from pagoda.server.metrics import RequestTimer, Siblings
from pagoda.server.protocol.common import QueuedBody
from pagoda.server.protocol.pooling import PoolingBody
from pagoda.server.protocol.vectors import PoolingUsage
from pagoda.server.replies.generation import check_ready

_serial = itertools.count()


class PoolingJob:
    """All texts of one request and what is wanted of them."""

    def __init__(
        self,
        context: Context,
        served: ServedModel,
        body: QueuedBody,
        head: ReplyHead,
        texts: list[PooledText],
        task: str = "embed",
    ):
        """Raises RequestError (too long, bad ids) before anything reaches the engine."""
        check_ready(served)
        self._served = served
        self._requests = [
            served.make_pool_request(
                f"{head.id}-{next(_serial)}",
                text.ids,
                PoolingParams(task, text.pair_start, text.alignment),
                media=text.media,
                priority=body.priority,
                cache_salt=body.cache_salt,
            )
            for text in texts
        ]
        for request in self._requests:
            served.client.adapters.apply(request, body.model, None)
        self._media = payloads(placed for text in texts for placed in text.media)
        metrics = context.metrics.of(served)
        self._meter = meter_of(served.names[0])
        self._timers = [
            RequestTimer(metrics, request, Siblings(1, self._meter)) for request in self._requests
        ]

    @property
    def usage(self) -> PoolingUsage:
        total = sum(len(request.prompt_token_ids) for request in self._requests)
        return PoolingUsage(prompt_tokens=total, total_tokens=total)

    async def run(self) -> list[bytes]:
        """Each text's result, as in RequestResult. Raises RequestError or ApiError when one of
        them fails, ApiError 429 where the key has no tokens left, QueueFullError where too many
        wait, and EngineDeadError when the engine fails;
        leaving early aborts the rest."""
        client, ids = self._served.client, [request.req_id for request in self._requests]
        timers = dict(zip(ids, self._timers, strict=True))
        results: dict[str, bytes] = {}
        if self._meter is not None:
            self._meter.check()
        inbox = client.submit(self._requests, self._media)
        if self._meter is not None:
            self._meter.count(prompt=self.usage.prompt_tokens)
        try:
            while len(results) < len(ids):
                await inbox.arrival()
                for delta in inbox.take():
                    timers[delta.req_id].observe(delta, 0, delta.finish_reason)
                    if delta.finish_reason is not None:
                        results[delta.req_id] = _result(delta)
        finally:
            client.drop(ids)
            for timer in self._timers:
                timer.close()
        return [results[req_id] for req_id in ids]


def _result(delta: RequestDelta) -> bytes:
    if delta.bad_request:
        raise RequestError(delta.error or "The request cannot be served.")
    if delta.embedding is None:
        raise ApiError(500, f"The request failed: {delta.error or 'unknown cause'}")
    return delta.embedding


def check_embeds(served: ServedModel) -> None:
    """RequestError for a model that classifies and gives no vectors."""
    if served.pooling.labels:
        raise RequestError(
            f"{served.names[0]} is a classifier and gives no embeddings; use /classify, or /score "
            "and /rerank where it has one label.",
            "model",
        )


def check_classifies(served: ServedModel) -> None:
    if not served.pooling.labels:
        raise RequestError(
            f"{served.names[0]} has no classifier; use /v1/embeddings, /score or /rerank.", "model"
        )


class Scorer:
    """How alike the texts of pairs are: the score of a classifier with one label (cross-encoder),
    else the cosine of two embeddings."""

    def __init__(self, served: ServedModel, body: PoolingBody):
        self._label = score_label(served.pooling, served.names[0])
        self._served = served
        self._body = body

    async def score(
        self, context: Context, head: ReplyHead, first: list[list[int]], second: list[list[int]]
    ) -> tuple[list[float], PoolingUsage]:
        """Scores of pairs of texts (ids without special tokens); a single first text goes with
        every second one."""
        served, body = self._served, self._body
        if self._label is not None:
            firsts = first * len(second) if len(first) == 1 else first
            pairs = [
                await pair_ids(served, body, *pair) for pair in zip(firsts, second, strict=True)
            ]
            job = PoolingJob(context, served, body, head, pairs, "classify")
            results = await job.run()
            found = [scores(raw, served.pooling, body.use_activation) for raw in results]
            return [float(values[self._label]) for values in found], job.usage
        texts = [single_ids(served, body, ids) for ids in [*first, *second]]
        job = PoolingJob(context, served, body, head, texts)
        results = await job.run()
        vectors = [embedding(raw, served.pooling, True, None) for raw in results]
        return cosines(vectors[: len(first)], vectors[len(first) :]), job.usage
