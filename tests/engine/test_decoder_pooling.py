"""Embedding models and rerankers on decoders, against transformers and sentence-transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from transformers import (
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForSequenceClassification,
    Qwen3Model,
)

from pagoda import PoolingParams as ScriptParams
from pagoda.base.errors import ConfigError, RequestError
from pagoda.config.engine import DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig
from pagoda.core.messages import AddRequest, EngineReady, PoolingParams
from pagoda.core.vectors import embedding, scores
from pagoda.engine.core import EngineCore
from pagoda.engine.llm import LLM
from pagoda.engine.served.text_side import load_text_side
from pagoda.engine.startup import start_engine
from tests.engine.conftest import write_byte_tokenizer
from tests.models import tiny

IDS = [[5 + (7 * i + n) % 200 for i in range(n)] for n in (3, 90, 1, 40, 41, 600, 16)]
TEXTS = ["panda", "What is a panda?", "naïve café, 汉字", "a longer text about pandas " * 9]
PAIRS = [("what is a panda?", text) for text in TEXTS]
RERANK = (
    "<|im_start|>Judge: {{ messages | selectattr('role', 'eq', 'query') "
    "| map(attribute='content') | first }}\n"
    "{{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}"
    "<|im_end|>"
)


def fast_tokenizer(folder: Path, **names: str) -> PreTrainedTokenizerFast:
    """Bytes, as transformers reads it."""
    write_byte_tokenizer(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), pad_token="</s>", eos_token="</s>", **names
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def start(
    folder: Path, scheduler: SchedulerConfig | None = None, **options: Any
) -> tuple[EngineCore, EngineReady]:
    config = EngineConfig(
        model=ModelConfig(model=str(folder), dtype="float32", max_model_len=640, **options),
        device=DeviceConfig("cpu", threads=1),
        scheduler=scheduler or SchedulerConfig(),
    )
    return start_engine(config, lambda message: None)


def run(core: EngineCore, texts: list[list[int]], task: str) -> list[bytes]:
    for i, ids in enumerate(texts):
        core.handle(
            AddRequest(
                req_id=f"t{i}", prompt_token_ids=ids, kind="pool", pooling=PoolingParams(task)
            )
        )
    found = {}
    while core.has_work():
        found.update({delta.req_id: delta.embedding for delta in core.step()})
    return [found[f"t{i}"] for i in range(len(texts))]


def small(config_class: type, **changes: Any) -> Any:
    sizes = {**tiny.SIZES, "vocab_size": 260, "max_position_embeddings": 1024}
    return config_class(**{**sizes, **changes})


def test_an_embedding_model(tmp_path: Path):
    """As Qwen3-Embedding is published: last token, length 1, tensors of a bare model."""
    torch.manual_seed(0)
    tiny.randomize(model := Qwen3Model(small(Qwen3Config, head_dim=16)))
    base = tmp_path / "base"
    model.save_pretrained(base)
    fast_tokenizer(base)
    transformer = Transformer(str(base))
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="lasttoken")
    reference = SentenceTransformer(modules=[transformer, pooling, Normalize()], device="cpu")
    folder = tmp_path / "embedder"
    reference.save(str(folder))
    core, ready = start(folder)
    assert not ready.generates
    text = load_text_side(ModelConfig(model=str(folder)))
    raw = run(core, [text.tokenizer.encode(text_) for text_ in TEXTS], "embed")
    found = [embedding(vector, ready.pooling, None, None) for vector in raw]
    expected = reference.encode(TEXTS)
    np.testing.assert_allclose(np.stack(found), expected, atol=1e-5)


@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
def test_other_poolings_of_a_decoder(mode: str, tmp_path: Path):
    """As the files say and as the flag does; texts that are longer than a step, and in company."""
    model = Qwen3Model(small(Qwen3Config, head_dim=16))
    tiny.randomize(model.eval())
    base = tmp_path / "base"
    model.save_pretrained(base)
    fast_tokenizer(base)
    transformer = Transformer(str(base))
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode=mode)
    reference = SentenceTransformer(modules=[transformer, pooling, Normalize()], device="cpu")
    folder = tmp_path / "embedder"
    reference.save(str(folder))
    scheduler = SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=4)
    core, ready = start(folder, scheduler=scheduler)
    text = load_text_side(ModelConfig(model=str(folder)))
    ids = [text.tokenizer.encode(text_) for text_ in TEXTS]
    raw = run(core, ids, "embed")
    found = [embedding(vector, ready.pooling, None, None) for vector in raw]
    np.testing.assert_allclose(np.stack(found), reference.encode(TEXTS), atol=1e-5)
    alone, _ = start(base, pooling=mode)
    assert run(alone, ids[-1:], "embed") == raw[-1:]  # bit for bit, in one step and alone


def test_vectors_of_a_decoders_tokens(tmp_path: Path):
    model = Qwen3Model(small(Qwen3Config, head_dim=16)).eval()
    tiny.randomize(model)
    model.save_pretrained(tmp_path)
    core, _ = start(tmp_path, scheduler=SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=4))
    with torch.inference_mode():
        expected = [model(torch.tensor([ids])).last_hidden_state[0].numpy() for ids in IDS[:5]]
    for raw, states in zip(run(core, IDS[:5], "token_embed"), expected, strict=True):
        found = np.frombuffer(raw, np.float32).reshape(states.shape)
        np.testing.assert_allclose(found, states, atol=1e-4)


def test_a_bare_model_writes_no_text(tmp_path: Path):
    Qwen3Model(small(Qwen3Config)).save_pretrained(tmp_path)
    write_byte_tokenizer(tmp_path)
    llm = LLM(str(tmp_path), device="cpu", threads=1, max_model_len=64)
    with pytest.raises(RequestError, match="writes no text"):
        llm.generate("hello")


@pytest.mark.parametrize(
    ("config_class", "model_class", "labels"),
    [
        (LlamaConfig, LlamaForSequenceClassification, 3),
        (Qwen3Config, Qwen3ForSequenceClassification, 1),
    ],
)
def test_classifiers(config_class, model_class, labels: int, tmp_path: Path):
    """A prompt that is longer than a step, too; and again, from the prefix cache."""
    torch.manual_seed(0)
    model = model_class(small(config_class, num_labels=labels)).eval()
    tiny.randomize(model)
    model.save_pretrained(tmp_path)
    core, ready = start(tmp_path)
    assert len(ready.pooling.labels) == labels
    with torch.inference_mode():
        expected = [model(torch.tensor([ids])).logits[0].numpy() for ids in IDS]
    for _ in range(2):
        for raw, logits in zip(run(core, IDS, "classify"), expected, strict=True):
            np.testing.assert_allclose(np.frombuffer(raw, np.float32), logits, atol=1e-4)


@pytest.mark.parametrize("no", [110, None])
def test_a_reranker_that_answers_yes_or_no(no: int | None, tmp_path: Path):
    """As Qwen3-Reranker comes with sentence-transformers' files: a template of two roles, and the
    head's logits of two tokens."""
    base = tmp_path / "base"
    tiny.make("qwen3", vocab_size=260, head_dim=16, max_position_embeddings=1024).save_pretrained(
        base
    )
    fast_tokenizer(base).chat_template = RERANK
    tokenizer = fast_tokenizer(base)
    tokenizer.chat_template = RERANK
    tokenizer.save_pretrained(base)
    transformer = Transformer(str(base), transformer_task="text-generation")
    reference = CrossEncoder(modules=[transformer, LogitScore(121, no)], device="cpu")
    folder = tmp_path / "reranker"
    reference.save_pretrained(str(folder))
    core, ready = start(folder)
    assert ready.pooling.answers == (121, no)
    text = load_text_side(ModelConfig(model=str(folder)))
    assert text.chat_template is not None and text.chat_template.takes_pairs
    rendered = [text.chat_template.render_pair(*pair) for pair in PAIRS]
    ids = [text.tokenizer.encode(prompt, add_special_tokens=False) for prompt in rendered]
    raw = run(core, ids, "classify")
    found = [scores(logits, ready.pooling, None)[0] for logits in raw]
    np.testing.assert_allclose(found, reference.predict(PAIRS), atol=1e-5)


def test_a_reranker_by_flag(tmp_path: Path):
    """As Qwen3-Reranker was published at first: a model that writes text, and nothing else."""
    model = tiny.make("qwen3", vocab_size=260, head_dim=16, max_position_embeddings=1024)
    model.save_pretrained(tmp_path)
    write_byte_tokenizer(tmp_path)
    core, ready = start(tmp_path, score_tokens="n,y")
    with torch.inference_mode():
        last = [model(torch.tensor([ids])).logits[0, -1] for ids in IDS]
    tokenizer = load_text_side(ModelConfig(model=str(tmp_path))).tokenizer
    (yes,), (no,) = (tokenizer.encode(text, add_special_tokens=False) for text in "yn")
    expected = [float((logits[yes] - logits[no]).sigmoid()) for logits in last]
    found = [scores(raw, ready.pooling, None)[0] for raw in run(core, IDS, "classify")]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for wrong in ("n,yes", "n", "n,y,z"):
        with pytest.raises(ConfigError, match="--score-tokens"):
            start(tmp_path, score_tokens=wrong)


def test_a_template_for_pairs_may_come_with_a_gguf():
    """llama.cpp's converter writes one for Qwen3-Reranker, with places instead of roles."""
    from pagoda.text.template.chat import ChatTemplate

    template = ChatTemplate({"default": "{{ messages }}", "rerank": "Q {query} D {document}"}, {})
    assert template.takes_pairs
    assert template.render_pair("{document}", "d") == "Q {document} D d"
    assert not ChatTemplate(
        {"default": json.dumps("{{ messages }} query document")}, {}
    ).takes_pairs


def test_scripts_get_vectors_classes_and_scores(tmp_path: Path):
    """`LLM.embed`, `classify` and `score`."""
    torch.manual_seed(0)
    model = Qwen3ForSequenceClassification(small(Qwen3Config, num_labels=1)).eval()
    tiny.randomize(model)
    ranker, bare = tmp_path / "ranker", tmp_path / "bare"
    model.save_pretrained(ranker)
    model.model.save_pretrained(bare)
    options = {"device": "cpu", "threads": 1, "max_model_len": 320, "dtype": "float32"}
    for folder in (ranker, bare):
        write_byte_tokenizer(folder)
    llm = LLM(str(ranker), **options)
    ids = [[5, 6, 7], [9] * 200]
    with torch.inference_mode():
        logits = [float(model(torch.tensor([one])).logits[0, 0]) for one in ids]
        states = [model.model(torch.tensor([one])).last_hidden_state[0, -1] for one in ids]
    raw = llm.classify(ids, pooling_params=ScriptParams(use_activation=False), use_tqdm=False)
    assert [output.outputs.probs[0] for output in raw] == pytest.approx(logits, abs=1e-4)
    assert [output.prompt_token_ids for output in raw] == ids
    found = llm.score("ab", ["c", "defg"], use_tqdm=False)
    encode = llm.get_tokenizer().encode
    both = [encode("ab", add_special_tokens=False) + encode(text, add_special_tokens=False)
            for text in ("c", "defg")]  # fmt: skip
    with torch.inference_mode():
        expected = [float(model(torch.tensor([one])).logits[0, 0].sigmoid()) for one in both]
    assert [output.outputs.score for output in found] == pytest.approx(expected, abs=1e-5)
    with pytest.raises(RequestError, match="classifier"):
        llm.embed("a")
    llm = LLM(str(bare), **options)
    vectors = [output.outputs.embedding for output in llm.embed(ids, use_tqdm=False)]
    unit = [(state / state.norm()).tolist() for state in states]
    np.testing.assert_allclose(vectors, unit, atol=1e-5)
    cut = ScriptParams(truncate_prompt_tokens=3, use_activation=False)
    outputs = llm.embed([[5, 6, 7, 8, 9]], use_tqdm=False, pooling_params=cut)
    np.testing.assert_allclose(outputs[0].outputs.embedding, states[0].tolist(), atol=1e-4)
    scores_ = llm.score(["ab", "c"], ["c", "c"], use_tqdm=False)
    assert scores_[1].outputs.score == pytest.approx(1)
    assert scores_[0].outputs.score < 0.999
    for wrong in (lambda: llm.classify("a"), lambda: llm.score(["a", "b"], ["a"] * 3)):
        with pytest.raises(RequestError):
            wrong()
