"""Loading is strict, reads the file once from end to end, and needs no file for dummy weights."""

import json
from dataclasses import replace

import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.models.loader import build_model
from pagoda.planner.memory.assumed import Dummy
from pagoda.weights.gguf.checkpoint import GgufCheckpoint
from pagoda.weights.safetensors import SafetensorsCheckpoint
from tests.models import tiny, tiny_gguf
from tests.models.driver import Driver
from tests.models.recording import RecordingCheckpoint

FP32 = {"dtype": torch.float32, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama").save_pretrained(folder)
    return folder


@pytest.fixture
def spec(folder):
    return spec_for(json.loads((folder / "config.json").read_text()), {}, ())


@pytest.fixture
def checkpoint(folder):
    return RecordingCheckpoint(SafetensorsCheckpoint(folder))


def test_missing_tensor_is_named(spec, checkpoint):
    del checkpoint.tensors["model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(CheckpointError, match=r"lacks model\.layers\.1\.self_attn\.k_proj\.weight"):
        build_model(spec, checkpoint, **FP32)


def test_leftover_tensor_is_named(spec, checkpoint):
    bias = checkpoint.tensors["model.norm.weight"]
    checkpoint.tensors["model.layers.0.self_attn.q_proj.bias"] = bias
    with pytest.raises(CheckpointError, match=r"holds model\.layers\.0\.self_attn\.q_proj\.bias"):
        build_model(spec, checkpoint, **FP32)


def test_names_of_a_hostile_file_stay_on_their_line(spec, checkpoint):
    checkpoint.tensors["a\nERROR b\x1b[31m"] = checkpoint.tensors["model.norm.weight"]
    with pytest.raises(CheckpointError, match=r"holds a\\nERROR b\\x1b\[31m, which") as caught:
        build_model(spec, checkpoint, **FP32)
    assert str(caught.value).isprintable()


def test_many_missing_tensors_are_counted(spec, checkpoint):
    checkpoint.tensors.clear()
    with pytest.raises(CheckpointError, match=r"lm_head\.weight.* and 25 more of LlamaForCausalLM"):
        build_model(spec, checkpoint, **FP32)


def test_known_leftovers_are_ignored(spec, checkpoint):
    """Old checkpoints store rotary frequencies; tied ones may repeat the head."""
    frequencies = replace(checkpoint.tensors["model.norm.weight"], name="x")
    checkpoint.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = frequencies
    tied = replace(
        spec,
        tie_word_embeddings=True,
        weights=tuple(rule for rule in spec.weights if rule.param != "head.weight"),
        ignored_weights=(*spec.ignored_weights, "lm_head.weight"),
    )
    build_model(tied, checkpoint, **FP32)
    assert ("read", "lm_head.weight") not in checkpoint.events


@pytest.mark.parametrize(
    ("name", "shape"),
    [("model.layers.2.mlp.down_proj.weight", (64, 97)), ("model.norm.weight", (2, 32))],
)
def test_wrong_shape_names_both(name, shape, spec, checkpoint):
    right = list(checkpoint.tensors[name].shape)
    checkpoint.tensors[name] = replace(checkpoint.tensors[name], shape=shape)
    with pytest.raises(CheckpointError) as caught:
        build_model(spec, checkpoint, **FP32)
    assert all(text in str(caught.value) for text in (name, str(list(shape)), str(right)))
    assert checkpoint.events == []  # nothing was read for a checkpoint that cannot fit


def test_unknown_storage_is_named(spec, checkpoint):
    name = "model.layers.0.self_attn.o_proj.weight"
    checkpoint.tensors[name] = replace(checkpoint.tensors[name], type="F8_E4M3")
    with pytest.raises(UnsupportedModelError, match="F8_E4M3"):
        build_model(spec, checkpoint, **FP32)


@pytest.mark.parametrize(
    "name", ["layers.0.self_attn.q_proj.bias", "layers.1.mlp.up_proj.weight", "embed_tokens.weight"]
)
def test_weights_that_fp16_cannot_hold_are_refused(name, tmp_path):
    reference = tiny.make("llama", attention_bias=True).bfloat16()
    reference.get_parameter(f"model.{name}").data.view(-1)[7] = 70_000
    reference.save_pretrained(tmp_path)
    assert tiny.load(tmp_path, torch.bfloat16)
    with pytest.raises(CheckpointError, match="beyond 65504, which float16 cannot hold"):
        tiny.load(tmp_path, torch.float16)


def test_no_weights_at_all(spec):
    with pytest.raises(CheckpointError, match="dummy"):
        build_model(spec, None, **FP32)


def test_unknown_architecture_names_the_nearest(spec, checkpoint):
    with pytest.raises(UnsupportedModelError, match="nearest known is 'Qwen3ForCausalLM'"):
        build_model(replace(spec, architecture="Qwen33ForCausalLM"), checkpoint, **FP32)


def test_one_pass_in_file_order(spec, checkpoint):
    """Each tensor is read once and released before the next, so memory holds one at a time."""
    seen: list[tuple[int, int]] = []
    build_model(spec, checkpoint, progress=lambda *bytes_: seen.append(bytes_), **FP32)
    expected = [(what, name) for name in checkpoint.tensors for what in ("read", "release")]
    assert checkpoint.events == expected
    total = sum(info.nbytes for info in checkpoint.tensors.values())
    assert sum(checkpoint.bytes_read.values()) == total
    sizes = [info.nbytes for info in checkpoint.tensors.values()]
    assert seen == [(sum(sizes[: i + 1]), total) for i in range(len(sizes))]


def test_bytes_held(spec, checkpoint):
    matrices = sum(t.nbytes for t in checkpoint.tensors.values() if len(t.shape) == 2)
    vectors = sum(t.nbytes for t in checkpoint.tensors.values() if len(t.shape) == 1)
    model = build_model(spec, checkpoint, dtype=torch.bfloat16, device="cpu")
    assert model.nbytes == matrices // 2 + vectors  # norms stay in fp32


def test_gguf_tensor_that_its_metadata_does_not_mention(tmp_path):
    """A GGUF with a bias on q alone is not silently served without it."""
    path = tmp_path / "model.gguf"
    reference = tiny.make("qwen3", head_dim=16, attention_bias=True)
    tiny_gguf.write(path, reference, lambda name: tiny_gguf.Storage.F32)
    checkpoint = GgufCheckpoint(path)
    spec = spec_for(None, checkpoint.metadata, checkpoint.tensors)
    with pytest.raises(CheckpointError, match=r"holds blk\.0\.attn_q\.bias"):
        build_model(spec, checkpoint, **FP32)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_dummy_weights_are_finite_and_repeat(family, tmp_path):
    tiny.make(family).config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = [type(tiny.make(family)).__name__]
    spec = spec_for(config, {}, ())
    ids = tiny.random_ids(20)
    runs = []
    for dtype in (torch.float32, torch.float32, torch.float16):
        model = build_model(spec, Dummy(), dtype=dtype, device="cpu")
        runs.append(Driver(model).run(ids, 20))
    assert torch.equal(runs[0], runs[1])
    assert runs[2].isfinite().all()
    assert len(runs[0].argmax(-1).unique()) > 5
