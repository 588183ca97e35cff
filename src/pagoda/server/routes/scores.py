"""POST /classify, /score and /rerank, with their aliases."""

from typing import Any

from fastapi import APIRouter
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from pagoda.base.errors import RequestError
from pagoda.core.vectors import scores
from pagoda.server.bodies.body import read_body
from pagoda.server.bodies.pooling_texts import MAX_TEXTS, bare_ids, body_texts
from pagoda.server.context import context_of, reply_head
from pagoda.server.openapi import describe
from pagoda.server.pooling import PoolingJob, Scorer, check_classifies
from pagoda.server.protocol.pooling import ClassifyRequest, RerankRequest, ScoreRequest
from pagoda.server.protocol.vectors import (
    Classification,
    Classifications,
    RankedDocument,
    RankedText,
    Ranking,
    Score,
    Scores,
)
from pagoda.server.replies.respond import answer

router = APIRouter()

# vLLM's names of the two sides, old and new.
_SIDES = (
    ("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"),
)  # fmt: skip


@router.post("/classify", openapi_extra=describe(ClassifyRequest, Classifications))
async def classify(request: Request) -> Response:
    body = await read_body(request, ClassifyRequest)
    context = context_of(request)
    served = await context.served(request, body.model)
    check_classifies(served)
    head = reply_head(request, "classify", body.request_id, body.model or served.names[0])
    texts = await body_texts(served, body)
    job = PoolingJob(context, served, body, head, texts, "classify")
    pooling = served.pooling

    async def reply() -> Classifications:
        found = [scores(raw, pooling, body.use_activation) for raw in await job.run()]
        data = [
            Classification(
                index=index,
                label=pooling.labels[int(values.argmax())],
                probs=values.tolist(),
                num_classes=len(values),
            )
            for index, values in enumerate(found)
        ]
        return Classifications(
            id=head.id, created=head.created, model=head.model, data=data, usage=job.usage
        )

    return await answer(request, context, reply)


_SCORE = describe(ScoreRequest, Scores)


@router.post("/score", openapi_extra=_SCORE)
@router.post("/v1/score", openapi_extra=_SCORE)
async def score(request: Request) -> Response:
    body = await read_body(request, ScoreRequest)
    context = context_of(request)
    served = await context.served(request, body.model)
    scorer = Scorer(served, body)
    head = reply_head(request, "score", body.request_id, body.model or served.names[0])
    names, first, second = _sides(body)
    first_ids = await bare_ids(served, first, names[0])
    second_ids = await bare_ids(served, second, names[1])

    async def reply() -> Scores:
        found, usage = await scorer.score(context, head, first_ids, second_ids)
        return Scores(
            id=head.id,
            created=head.created,
            model=head.model,
            data=[Score(index=index, score=value) for index, value in enumerate(found)],
            usage=usage,
        )

    return await answer(request, context, reply)


def _described() -> dict[str, Any]:
    extra = describe(RerankRequest, Ranking)
    texts = describe(None, RankedText, many=True)
    told, listed = (
        one["responses"]["200"]["content"]["application/json"] for one in (extra, texts)
    )
    told["schema"] = {"anyOf": [told["schema"], listed["schema"]]}
    return extra


_RERANK = _described()


@router.post("/rerank", openapi_extra=_RERANK)
@router.post("/v1/rerank", openapi_extra=_RERANK)
@router.post("/v2/rerank", openapi_extra=_RERANK)
@router.post("/reranking", openapi_extra=_RERANK)
@router.post("/v1/reranking", openapi_extra=_RERANK)
async def rerank(request: Request) -> Response:
    """Jina's, Cohere's and llama-server's: documents by relevance, the best first. With `texts`
    Text Embeddings Inference's."""
    body = await read_body(request, RerankRequest)
    if (body.documents is None) == (body.texts is None):
        raise RequestError("Send one of documents and texts.", "documents")
    given, name = (body.documents, "documents") if body.texts is None else (body.texts, "texts")
    if body.texts is not None:
        body.use_activation = False if body.raw_scores else body.use_activation
        if body.truncate and body.truncate_prompt_tokens is None:
            body.truncate_prompt_tokens = -1
    context = context_of(request)
    served = await context.served(request, body.model)
    scorer = Scorer(served, body)
    head = reply_head(request, "rerank", body.request_id, body.model or served.names[0])
    texts = [_text(item) for item in given or ()]
    _check_count(len(texts), name)
    query = await bare_ids(served, [body.query], "query")
    ids = [ids[: body.max_tokens_per_doc] for ids in await bare_ids(served, texts, name)]

    async def reply() -> Ranking | list[RankedText]:
        found, usage = await scorer.score(context, head, query, ids)
        # sorted keeps the order of equals.
        best = sorted(enumerate(found), key=lambda pair: -pair[1])[: body.top_n or None]
        if body.texts is not None:
            ranked = [RankedText(index=index, score=value) for index, value in best]
            for one in ranked:
                one.text = texts[one.index] if body.return_text else UNSET
            return ranked
        results = [RankedDocument(index=index, relevance_score=value) for index, value in best]
        if body.return_documents:
            for result in results:
                result.document = {"text": texts[result.index]}
        return Ranking(
            id=head.id, created=head.created, model=head.model, results=results, usage=usage
        )

    return await answer(request, context, reply)


def _text(document: str | dict[str, Any]) -> str:
    text = document if isinstance(document, str) else document.get("text")
    if not isinstance(text, str):
        raise RequestError("A document is a text or an object with `text`.", "documents")
    return text


def _sides(body: ScoreRequest) -> tuple[tuple[str, str], list[str], list[str]]:
    """The names of the two sides, and their texts, paired."""
    given = [names for names in _SIDES if all(getattr(body, name) is not None for name in names)]
    if len(given) != 1:
        choices = ", or ".join(f"{first} with {second}" for first, second in _SIDES)
        raise RequestError(f"Send {choices}.", "text_1")
    (names,) = given
    first, second = (_texts(getattr(body, name), name) for name in names)
    if len(first) != 1 and len(first) != len(second):
        raise RequestError(
            f"{names[0]} has {len(first)} texts and {names[1]} {len(second)}; send as many, or one "
            f"as {names[0]}.",
            names[0],
        )
    return names, first, second


def _texts(value: Any, param: str) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise RequestError(f"{param} must be a text or a list of texts.", param)
    _check_count(len(texts), param)
    return texts


def _check_count(count: int, param: str) -> None:
    if count > MAX_TEXTS:
        raise RequestError(f"{param} has {count} texts; at most {MAX_TEXTS} fit in one request.",
                           param)  # fmt: skip
