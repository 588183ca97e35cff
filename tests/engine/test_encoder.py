"""A tiny encoder through the whole engine, against transformers and plain mathematics."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pagoda.base.errors import RequestError
from pagoda.config.engine import DeviceConfig, EngineConfig, ModelConfig
from pagoda.core.messages import AddRequest, PoolingParams, RequestDelta
from pagoda.engine.core import EngineCore
from pagoda.engine.llm import LLM
from pagoda.engine.startup import start_engine
from tests.engine.conftest import write_byte_tokenizer
from tests.models import encoders

TEXTS = [[5 + (7 * i + n) % 200 for i in range(n)] for n in (3, 90, 1, 40, 41, 128, 16)]
POOLS = {
    "mean": lambda rows: rows.mean(0),
    "cls": lambda rows: rows[0],
    "max": lambda rows: rows.max(0),
    "lasttoken": lambda rows: rows[-1],
}


def start(folder: Path, **options: Any) -> EngineCore:
    config = EngineConfig(
        model=ModelConfig(model=str(folder), **options), device=DeviceConfig("cpu", threads=1)
    )
    core, ready = start_engine(config, lambda message: None)
    assert not ready.generates and ready.num_blocks == 1 and ready.hidden_size == 64
    return core


def run(core: EngineCore, requests: list[AddRequest]) -> list[RequestDelta]:
    for request in requests:
        core.handle(request)
    found = {}
    while core.has_work():
        found.update({delta.req_id: delta for delta in core.step()})
    return [found[request.req_id] for request in requests]


def texts(task: str = "embed", *, pair_starts: list[int] | None = None) -> list[AddRequest]:
    starts = pair_starts or [0] * len(TEXTS)
    return [
        AddRequest(
            req_id=f"t{i}", prompt_token_ids=ids, kind="pool", pooling=PoolingParams(task, start)
        )
        for i, (ids, start) in enumerate(zip(TEXTS, starts, strict=True))
    ]


def pooled_by(folder: Path, method: str) -> None:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": method}))
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("method", POOLS)
def test_vectors(method: str, dtype: str, tmp_path: Path):
    reference = encoders.make("bert")
    reference.save_pretrained(tmp_path)
    pooled_by(tmp_path, method)
    core = start(tmp_path, dtype=dtype)
    deltas = run(core, texts())
    # 512 tokens a step: 3 + 90 + 1 + 40 + 41 + 128 + 16 fit one.
    assert core.stats().num_steps == 1
    for ids, delta in zip(TEXTS, deltas, strict=True):
        with torch.inference_mode():
            rows = reference(torch.tensor([ids])).last_hidden_state[0].numpy()
        found = np.frombuffer(delta.embedding, np.float32)
        np.testing.assert_allclose(found, POOLS[method](rows), atol=1e-4)
        assert delta.finish_reason == "stop"


def test_neighbours_change_nothing(tmp_path: Path):
    encoders.make("bert").save_pretrained(tmp_path)
    pooled_by(tmp_path, "mean")
    core = start(tmp_path)
    together = [np.frombuffer(delta.embedding, np.float32) for delta in run(core, texts())]
    for request, vector in zip(texts(), together, strict=True):
        (alone,) = run(core, [request])
        np.testing.assert_allclose(np.frombuffer(alone.embedding, np.float32), vector, atol=1e-6)


def test_vectors_of_tokens(tmp_path: Path):
    reference = encoders.make("roberta")
    reference.save_pretrained(tmp_path)
    for ids, delta in zip(TEXTS, run(start(tmp_path), texts("token_embed")), strict=True):
        with torch.inference_mode():
            rows = reference(torch.tensor([ids])).last_hidden_state[0].numpy()
        found = np.frombuffer(delta.embedding, np.float32).reshape(len(ids), -1)
        np.testing.assert_allclose(found, rows, atol=1e-4)


@pytest.mark.parametrize(("family", "labels"), [("bert classifier", 1), ("roberta classifier", 4)])
def test_classifiers_of_pairs(family: str, labels: int, tmp_path: Path):
    typed = family.startswith("bert")
    reference = encoders.make(family, num_labels=labels, type_vocab_size=1 + typed)
    reference.save_pretrained(tmp_path)
    starts = [len(ids) // 2 for ids in TEXTS]
    # RoBERTa has one type: a second text that is marked all the same is no fault.
    deltas = run(start(tmp_path), texts("classify", pair_starts=starts))
    for ids, second, delta in zip(TEXTS, starts, deltas, strict=True):
        types = [[int(typed and 0 < second <= at) for at in range(len(ids))]]
        with torch.inference_mode():
            logits = reference(torch.tensor([ids]), token_type_ids=torch.tensor(types)).logits[0]
        found = np.frombuffer(delta.embedding, np.float32)
        np.testing.assert_allclose(found, logits.numpy(), atol=1e-4)


def test_a_task_that_the_model_cannot_do_fails_alone(tmp_path: Path):
    encoders.make("bert").save_pretrained(tmp_path)
    wrong, *others = texts()
    wrong.pooling = PoolingParams("classify")
    first, *rest = run(start(tmp_path), [wrong, *others])
    assert first.bad_request and "no classifier" in first.error
    assert all(delta.embedding is not None for delta in rest)


def test_an_encoder_generates_nothing(tmp_path: Path):
    encoders.make("bert", vocab_size=260).save_pretrained(tmp_path)
    write_byte_tokenizer(tmp_path)
    llm = LLM(str(tmp_path), device="cpu", threads=1)
    with pytest.raises(RequestError, match="writes no text"):
        llm.generate("hello")


def test_random_weights_serve_too(tmp_path: Path):
    encoders.make("bert classifier", num_labels=2).save_pretrained(tmp_path)
    core = start(tmp_path, load_format="dummy")
    assert all(len(delta.embedding) == 2 * 4 for delta in run(core, texts("classify")))
