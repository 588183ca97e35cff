"""Vectors and scores through the official client and plain HTTP, around an engine that pools by
a rule a reader can follow."""

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import openai
import pytest

from pagoda.arch.spec import PoolingSpec
from pagoda.core.messages import AddRequest, RequestDelta
from pagoda.text.template.chat import ChatTemplate
from tests.server.conftest import RunningServer
from tests.server.fakes import EOS, FakeClient

LABELS = ("cat", "dog", "owl")


def pooled(request: AddRequest) -> np.ndarray:
    """Of an embedding: how often a, b, c and d occur. Of a classifier: its first tokens, and of
    a pair how much longer the second text is."""
    ids = request.prompt_token_ids
    assert request.pooling is not None
    if request.pooling.task == "token_embed":
        return np.array([[token == ord(c) for c in "abcd"] for token in ids], np.float32) * 2
    if request.pooling.task == "classify":
        start = request.pooling.pair_start
        if start:
            assert ids[start - 1] == EOS
            return np.array([(len(ids) - start - (start - 1)) / 10], np.float32)
        return np.array([token - 97 for token in ids[:3]], np.float32)
    return np.array([ids.count(ord(c)) for c in "abcd"], np.float32)


class PoolingClient(FakeClient):
    def deltas(self, request: AddRequest) -> list[RequestDelta]:
        assert request.kind == "pool"
        vector = pooled(request).tobytes()
        return [
            RequestDelta(
                req_id=request.req_id, embedding=vector, finish_reason="stop",
                num_cached_tokens=0, queue_seconds=0.0,
            )
        ]  # fmt: skip


def encoder(**pooling: Any) -> PoolingClient:
    spec = PoolingSpec(**{"method": "mean", **pooling})
    return PoolingClient(abilities={"generates": False, "hidden_size": 4, "pooling": spec})


@pytest.fixture
def embedder(start: Callable[..., RunningServer]) -> RunningServer:
    return start(encoder())


def unit(*values: float) -> list[float]:
    return (np.array(values) / np.linalg.norm(values)).tolist()


def test_embeddings_by_the_official_client(embedder: RunningServer) -> None:
    client = embedder.openai()
    reply = client.embeddings.create(model="fake", input=["ab", "aab"])
    assert reply.object == "list" and reply.model == "fake"
    assert [item.index for item in reply.data] == [0, 1]
    assert reply.data[0].embedding == pytest.approx(unit(1, 1, 0, 0))
    assert reply.data[1].embedding == pytest.approx(unit(2, 1, 0, 0))
    assert (reply.usage.prompt_tokens, reply.usage.total_tokens) == (5, 5)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("abb", [unit(1, 2, 0, 0)]),
        ([97, 98, 98], [unit(1, 2, 0, 0)]),
        ([[97], [98]], [unit(1, 0, 0, 0), unit(0, 1, 0, 0)]),
        # llama-server's: mixed as it likes.
        (["a", [98], [97, "b", 98]], [unit(1, 0, 0, 0), unit(0, 1, 0, 0), unit(1, 2, 0, 0)]),
        ([97, "bb"], [unit(1, 2, 0, 0)]),
        ({"prompt_string": "abb"}, [unit(1, 2, 0, 0)]),
        (
            ["a", {"content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "b"}]}],
            [unit(1, 0, 0, 0), unit(1, 2, 0, 0)],
        ),
    ],
)
def test_every_form_of_input(given: Any, expected: list, embedder: RunningServer) -> None:
    reply = embedder.openai().embeddings.create(model="fake", input=given, encoding_format="float")
    for item, vector in zip(reply.data, expected, strict=True):
        assert item.embedding == pytest.approx(vector)


def test_base64_holds_the_same_floats(embedder: RunningServer) -> None:
    both = [
        embedder.post("/v1/embeddings", input="abbc", encoding_format=kind).json()
        for kind in ("float", "base64")
    ]
    floats, coded = (reply["data"][0]["embedding"] for reply in both)
    assert np.frombuffer(base64.b64decode(coded), "<f4").tolist() == floats


def test_raw_vectors(embedder: RunningServer) -> None:
    for field in ("use_activation", "normalize"):
        reply = embedder.post("/v1/embeddings", **{"input": "abb", field: False})
        assert reply.json()["data"][0]["embedding"] == [1, 2, 0, 0]


def test_a_model_without_normalization(start: Callable[..., RunningServer]) -> None:
    server = start(encoder(normalize=False))
    assert server.post("/v1/embeddings", input="abb").json()["data"][0]["embedding"] == [1, 2, 0, 0]
    reply = server.post("/v1/embeddings", input="abb", use_activation=True)
    assert reply.json()["data"][0]["embedding"] == pytest.approx(unit(1, 2, 0, 0))


def test_a_conversation_is_rendered(embedder: RunningServer) -> None:
    messages = [{"role": "user", "content": "bcd"}]
    reply = embedder.post("/v1/embeddings", messages=messages, normalize=False)
    assert reply.json()["data"][0]["embedding"] == [0, 1, 1, 1]
    assert embedder.client.requests[-1].prompt_token_ids == list(b"user: bcd\n")


def test_dimensions(start: Callable[..., RunningServer]) -> None:
    server = start(encoder(dimensions=(2, 3)))
    client = server.openai()
    reply = client.embeddings.create(model="fake", input="abbc", dimensions=2)
    assert reply.data[0].embedding == pytest.approx(unit(1, 2))
    with pytest.raises(openai.BadRequestError, match="can have 2, 3"):
        client.embeddings.create(model="fake", input="abbc", dimensions=1)
    server = start(encoder())
    assert server.post("/v1/embeddings", input="a", dimensions=4).status_code == 200
    refused = server.post("/v1/embeddings", input="a", dimensions=2)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "dimensions"


@pytest.mark.parametrize(("side", "expected"), [({}, b"aa"), ({"truncation_side": "left"}, b"bb")])
def test_truncation(side: dict, expected: bytes, embedder: RunningServer) -> None:
    for given in ("aabb", [97, 97, 98, 98]):
        embedder.post("/v1/embeddings", input=given, truncate_prompt_tokens=2, **side)
        assert embedder.client.requests[-1].prompt_token_ids == list(expected)


def test_a_text_that_is_too_long(embedder: RunningServer) -> None:
    refused = embedder.post("/v1/embeddings", input="a" * 2049)
    assert refused.status_code == 400
    assert "maximum context length is 2048" in refused.json()["error"]["message"]
    assert "truncate_prompt_tokens=-1" in refused.json()["error"]["message"]
    kept = embedder.post("/v1/embeddings", input="a" * 2049, truncate_prompt_tokens=-1)
    assert kept.json()["usage"]["prompt_tokens"] == 2048


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [1, 1.5]}, "input"),
        ({"input": [{"content": "a"}]}, "input"),
        ({"input": {"content": [{"type": "input_audio"}]}}, "input"),
        ({"input": [257]}, "prompt"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "input"),
        ({"input": "a", "truncate_prompt_tokens": 2049}, "truncate_prompt_tokens"),
        ({"input": "a", "encoding_format": "int4"}, "encoding_format"),
        ({"input": ["a"] * 2049}, "input"),
    ],
)
def test_wrong_bodies_are_named(body: dict, param: str, embedder: RunningServer) -> None:
    refused = embedder.post("/v1/embeddings", **body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
    assert not embedder.client.requests


def test_priority_and_salt_reach_the_engine(embedder: RunningServer) -> None:
    embedder.post("/v1/embeddings", input="a", priority=-3, cache_salt="s")
    request = embedder.client.requests[-1]
    assert (request.priority, request.cache_salt) == (-3, "s")


def test_an_encoder_writes_no_text(embedder: RunningServer) -> None:
    for refused in (embedder.chat(), embedder.post("/v1/completions", prompt="a")):
        assert refused.status_code == 400
        assert "Use /v1/embeddings" in refused.json()["error"]["message"]


def test_pooling_tasks(embedder: RunningServer) -> None:
    reply = embedder.post("/pooling", input="ab").json()
    assert reply["data"][0]["object"] == "pooling"
    assert reply["data"][0]["data"] == pytest.approx(unit(1, 1, 0, 0))
    tokens = embedder.post("/pooling", input="ab", task="token_embed").json()
    assert tokens["data"][0]["data"] == [[1, 0, 0, 0], [0, 1, 0, 0]]
    refused = embedder.post("/pooling", input="ab", task="classify")
    assert refused.status_code == 400 and "has no classifier" in refused.json()["error"]["message"]


def test_classify(start: Callable[..., RunningServer]) -> None:
    server = start(encoder(labels=LABELS, activation="softmax"))
    reply = server.post("/classify", input=["abd", "cab"]).json()
    powers = np.exp([0.0, 1.0, 3.0])
    first, second = reply["data"]
    assert first["probs"] == pytest.approx((powers / powers.sum()).tolist())
    assert (first["label"], first["num_classes"], second["label"]) == ("owl", 3, "cat")
    assert reply["usage"]["prompt_tokens"] == 6
    raw = server.post("/classify", input="abd", use_activation=False).json()
    assert raw["data"][0]["probs"] == [0, 1, 3]
    assert server.post("/pooling", input="abd").json()["data"][0]["data"] == first["probs"]
    for path, body in (("/v1/embeddings", {"input": "a"}), ("/embedding", {"content": "a"})):
        refused = server.post(path, **body)
        assert refused.status_code == 400 and "use /classify" in refused.json()["error"]["message"]
    refused = server.post("/score", text_1="a", text_2="b")
    assert refused.status_code == 400 and "3 labels" in refused.json()["error"]["message"]


NAMES = (
    ("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"),
)  # fmt: skip


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(("first", "second"), NAMES)
def test_scores_of_embeddings(path: str, first: str, second: str, embedder: RunningServer) -> None:
    reply = embedder.post(path, **{first: "ab", second: ["ab", "a", "cd"]}).json()
    assert [item["index"] for item in reply["data"]] == [0, 1, 2]
    found = [item["score"] for item in reply["data"]]
    assert found == pytest.approx([1, 0.5**0.5, 0], abs=1e-6)
    assert reply["usage"]["prompt_tokens"] == 7
    each = embedder.post(path, **{first: ["a", "b"], second: ["b", "b"]}).json()
    assert [item["score"] for item in each["data"]] == [0, 1]


def test_sides_that_do_not_match(embedder: RunningServer) -> None:
    for body in ({"text_1": ["a", "b"], "text_2": ["a"]}, {"text_1": "a"}, {"queries": "a"}):
        assert embedder.post("/score", **body).status_code == 400


def test_scores_of_a_cross_encoder(start: Callable[..., RunningServer]) -> None:
    server = start(encoder(labels=("score",), activation="sigmoid"))
    reply = server.post("/score", text_1="ab", text_2=["abcdef", "ab"]).json()
    assert [item["score"] for item in reply["data"]] == pytest.approx([1 / (1 + np.exp(-0.4)), 0.5])
    assert reply["usage"]["prompt_tokens"] == 9 + 5
    raw = server.post("/score", text_1="ab", text_2="abcdef", use_activation=False).json()
    assert raw["data"][0]["score"] == pytest.approx(0.4)


def test_a_pair_loses_of_its_longer_text_first(start: Callable[..., RunningServer]) -> None:
    server = start(encoder(labels=("score",)))
    for first, second, kept in (
        ("aaa", "bbbbbbbb", (3, 4)),
        ("aaaaaaaa", "bb", (5, 2)),
        ("aaaaaaaa", "bbbbbbbb", (3, 4)),
    ):
        server.post("/score", text_1=first, text_2=second, truncate_prompt_tokens=8)
        ids = server.client.requests[-1].prompt_token_ids
        assert (ids.count(97), ids.count(98)) == kept


RERANK = ["/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking"]


@pytest.mark.parametrize("path", RERANK)
def test_rerank(path: str, embedder: RunningServer) -> None:
    documents = ["cd", {"text": "ab"}, "a"]
    reply = embedder.post(path, model="fake", query="ab", documents=documents).json()
    results = reply["results"]
    assert [result["index"] for result in results] == [1, 2, 0]
    assert results[0]["document"] == {"text": "ab"}
    assert results[1]["relevance_score"] == pytest.approx(0.5**0.5)
    best = embedder.post(
        path, query="ab", documents=documents, top_n=1, return_documents=False
    ).json()
    assert [list(result) for result in best["results"]] == [["index", "relevance_score"]]


@pytest.mark.parametrize("path", RERANK)
def test_rerank_in_the_form_of_text_embeddings_inference(
    path: str, embedder: RunningServer
) -> None:
    texts = ["cd", "ab", "a"]
    reply = embedder.post(path, query="ab", texts=texts).json()
    assert [list(result) for result in reply] == [["index", "score"]] * 3
    assert [result["index"] for result in reply] == [1, 2, 0]
    assert reply[1]["score"] == pytest.approx(0.5**0.5)
    (best,) = embedder.post(path, query="ab", texts=texts, return_text=True, top_n=1).json()
    assert (best["index"], best["text"]) == (1, "ab")


def test_scores_of_texts_as_the_model_gave_them(start: Callable[..., RunningServer]) -> None:
    server = start(encoder(labels=("relevance",), activation="sigmoid"))
    raw, scaled = (
        server.post("/rerank", query="a", texts=["bbbb"], raw_scores=raw).json()[0]["score"]
        for raw in (True, False)
    )
    assert raw == pytest.approx(0.3) and scaled == pytest.approx(1 / (1 + np.exp(-0.3)))
    long = ["b" * 3000]
    assert server.post("/rerank", query="a", texts=long).status_code == 400
    assert server.post("/rerank", query="a", texts=long, truncate=True).status_code == 200


@pytest.mark.parametrize(
    "fields", [{}, {"texts": ["a"], "documents": ["a"]}, {"texts": []}, {"texts": [1]}], ids=str
)
def test_one_list_of_what_is_ranked(fields: dict, embedder: RunningServer) -> None:
    assert embedder.post("/rerank", query="a", **fields).status_code == 400


def test_documents_are_cut_to_their_own_length(embedder: RunningServer) -> None:
    embedder.post("/rerank", query="aaaa", documents=["bbbb"], max_tokens_per_doc=2)
    lengths = sorted(len(request.prompt_token_ids) for request in embedder.client.requests)
    assert lengths == [2, 4]


RERANKER = ChatTemplate(
    {
        "default": "<{{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') "
        "| first }}|{{ messages | selectattr('role', 'eq', 'document') "
        "| map(attribute='content') | first }}>"
    },
    {},
)


@pytest.mark.parametrize(
    ("fields", "prompts"),
    [
        ({}, ["<ab|cdef>", "<ab|c>"]),
        # Of a pair the longer text is cut, and what the template writes stays.
        ({"truncate_prompt_tokens": 6}, ["<a|cd>", "<ab|c>"]),
        ({"truncate_prompt_tokens": 5, "truncation_side": "left"}, ["<b|f>", "<b|c>"]),
        ({"truncate_prompt_tokens": 1}, ["<|>", "<|>"]),
    ],
)
def test_a_reranker_with_a_template(
    fields: dict, prompts: list, start: Callable[..., RunningServer]
) -> None:
    client = encoder(labels=("yes", "no"), activation="softmax")
    server = start(client, chat_template=RERANKER)
    reply = server.post("/rerank", query="ab", documents=["cdef", "c"], **fields)
    sent = [bytes(request.prompt_token_ids).decode() for request in client.requests]
    assert sent == prompts
    scores = {item["index"]: item["relevance_score"] for item in reply.json()["results"]}
    for index, prompt in enumerate(prompts):
        logits = np.array([ord(letter) - 97.0 for letter in prompt[:3]])
        yes = np.exp(logits[0]) / np.exp(logits).sum()
        assert scores[index] == pytest.approx(yes)


def test_documents_of_a_wrong_kind(embedder: RunningServer) -> None:
    for documents in ([], [{"title": "a"}], [1]):
        refused = embedder.post("/rerank", query="a", documents=documents)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"].startswith("documents")


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
def test_the_native_route_of_llama_server(path: str, embedder: RunningServer) -> None:
    (reply,) = embedder.post(path, content="abb").json()
    assert reply["index"] == 0
    assert reply["embedding"] == [pytest.approx(unit(1, 2, 0, 0))]
    for norm, expected in (
        (-1, [1, 2, 0, 0]),
        (0, [16380, 32760, 0, 0]),
        (1, [1 / 3, 2 / 3, 0, 0]),
        (3, [9 ** (-1 / 3), 2 * 9 ** (-1 / 3), 0, 0]),
        (10**6, [0.5, 1, 0, 0]),
    ):
        both = embedder.post(path, input=["abb", "b"], embd_normalize=norm).json()
        assert both[0]["embedding"] == [pytest.approx(expected)]
        assert both[1]["index"] == 1
    assert embedder.post(path, content="xyz").json()[0]["embedding"] == [[0, 0, 0, 0]]
    assert embedder.post(path).status_code == 400


def test_a_fault_of_one_text_is_the_requests(start: Callable[..., RunningServer]) -> None:
    class Failing(PoolingClient):
        def deltas(self, request: AddRequest) -> list[RequestDelta]:
            if 98 not in request.prompt_token_ids:
                return super().deltas(request)
            return [RequestDelta(req_id=request.req_id, error="broken", finish_reason="error")]

    server = start(Failing(abilities=encoder().abilities))
    refused = server.post("/v1/embeddings", input=["a", "b", "a"])
    assert refused.status_code == 500 and "broken" in refused.json()["error"]["message"]
    assert server.post("/v1/embeddings", input="a").status_code == 200


def test_a_generating_model_gives_embeddings_too(start: Callable[..., RunningServer]) -> None:
    server = start(PoolingClient(abilities={"hidden_size": 4}))
    reply = server.openai().embeddings.create(model="fake", input="ab")
    assert reply.data[0].embedding == pytest.approx(unit(1, 1, 0, 0))


def test_the_document_names_the_routes(embedder: RunningServer) -> None:
    document = embedder.http.get("/openapi.json").json()
    for path in ("/v1/embeddings", "/pooling", "/classify", "/embedding", "/score", *RERANK):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        name = body["schema"]["$ref"].rpartition("/")[2]
        assert name in document["components"]["schemas"]
