"""A tiny EmbeddingGemma through the whole engine, with its linear layers, against transformers and
sentence-transformers' modules."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from pagoda.arch.spec import PoolingSpec
from pagoda.base.errors import CheckpointError, RequestError, UnsupportedModelError
from pagoda.config.engine import DeviceConfig, EngineConfig, ModelConfig
from pagoda.core.messages import AddRequest, PoolingParams
from pagoda.core.vectors import check_dimensions, embedding
from pagoda.engine.core import EngineCore
from pagoda.engine.start.model_files import spec_of
from pagoda.engine.startup import start_engine
from pagoda.planner.memory.tensors import model_tensors
from pagoda.weights.files import open_model
from tests.models import encoders, encoders_gguf

TEXTS = [[5 + (7 * i + n) % 200 for i in range(n)] for n in (3, 90, 1, 40)]
_WIDE, _OUT = 96, 48
_MODULES = (
    ("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Dense", "3_Dense"),
    ("Normalize", "4_Normalize"),
)  # fmt: skip


@pytest.fixture(scope="module")
def reference():
    torch.manual_seed(1)
    identity = torch.nn.Identity()
    dense = [
        Dense(64, _WIDE, bias=False, activation_function=identity),
        Dense(_WIDE, _OUT, bias=True, activation_function=torch.nn.Tanh()),
    ]
    for layer in dense:
        for weight in layer.parameters():
            torch.nn.init.normal_(weight, std=0.2)
    return encoders.make("embeddinggemma"), dense


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory) -> Path:
    folder, (model, dense) = tmp_path_factory.mktemp("gemma"), reference
    model.save_pretrained(folder)
    for name, module in zip(
        ("1_Pooling", "2_Dense", "3_Dense"), (Pooling(64, "mean"), *dense), strict=True
    ):
        (folder / name).mkdir()
        module.save(str(folder / name))
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (kind, path) in enumerate(_MODULES)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def expected(reference, ids: list[int], count: int = 2) -> np.ndarray:
    model, dense = reference
    with torch.inference_mode():
        states = model(torch.tensor([ids])).last_hidden_state
        features = {"token_embeddings": states, "attention_mask": torch.ones(1, len(ids))}
        for module in (Pooling(64, "mean"), *dense[:count], Normalize()):
            features = module(features)
    return features["sentence_embedding"][0].numpy()


def start(path: Path) -> tuple[EngineCore, PoolingSpec, int]:
    config = EngineConfig(
        model=ModelConfig(model=str(path), dtype="float32"), device=DeviceConfig("cpu", threads=1)
    )
    core, ready = start_engine(config, lambda message: None)
    return core, ready.pooling, ready.pooling.vector_size(ready.hidden_size)


def vectors(core: EngineCore, pooling: PoolingSpec) -> list[np.ndarray]:
    for number, ids in enumerate(TEXTS):
        core.handle(
            AddRequest(
                req_id=str(number), prompt_token_ids=ids, kind="pool", pooling=PoolingParams()
            )
        )
    found = {}
    while core.has_work():
        found.update({delta.req_id: delta for delta in core.step()})
    return [embedding(found[str(n)].embedding, pooling, None, None) for n in range(len(TEXTS))]


def test_vectors_equal(reference, folder):
    core, pooling, size = start(folder)
    assert size == _OUT
    for ids, vector in zip(TEXTS, vectors(core, pooling), strict=True):
        np.testing.assert_allclose(vector, expected(reference, ids), rtol=0, atol=1e-4)


def test_vectors_of_a_gguf_equal(reference, tmp_path):
    """Whose linear layers have no bias and no activation."""
    model, dense = reference
    matrices = {"dense_2": dense[0].linear.weight.detach().numpy()}
    encoders_gguf.write(tmp_path / "model.gguf", model, gguf.PoolingType.MEAN, matrices)
    core, pooling, size = start(tmp_path / "model.gguf")
    assert size == _WIDE
    for ids, vector in zip(TEXTS, vectors(core, pooling), strict=True):
        np.testing.assert_allclose(vector, expected(reference, ids, 1), rtol=0, atol=1e-4)


def test_every_parameter_is_counted(reference, folder):
    model, dense = reference
    spec = spec_of(open_model(folder), ModelConfig(model=str(folder)))
    modules = [model, *dense]
    count = sum(weight.numel() for module in modules for weight in module.parameters())
    assert sum(tensor.elements for tensor in model_tensors(spec)) == count
    assert {t.name for t in model_tensors(spec)} == {r.param for r in spec.expanded_weights()}
    check_dimensions(128, 768, spec.pooling)
    with pytest.raises(RequestError, match="can have 128, 256, 512, 768"):
        check_dimensions(100, 768, spec.pooling)


def test_what_is_missing_or_unknown_is_named(folder, tmp_path):
    for path in ("config.json", "model.safetensors", "modules.json"):
        (tmp_path / path).symlink_to(folder / path)
    (tmp_path / "1_Pooling").symlink_to(folder / "1_Pooling")
    with pytest.raises(CheckpointError, match="2_Dense/model.safetensors is missing"):
        open_model(tmp_path).checkpoint  # noqa: B018
    for name in ("2_Dense", "3_Dense"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").symlink_to(folder / name / "model.safetensors")
        config = json.loads((folder / name / "config.json").read_text())
        config["activation_function"] = "torch.nn.modules.activation.ReLU"
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match="activation 'ReLU'; known are Identity and"):
        spec_of(open_model(tmp_path), ModelConfig(model=str(tmp_path)))
