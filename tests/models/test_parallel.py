"""Two and four ranks, each reading only its slice, compute together what one rank computes."""

import json
from collections.abc import Callable

import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.base.errors import ConfigError
from pagoda.layers.context import Parallel
from pagoda.layers.moe import MixtureOfExperts
from pagoda.models.loader import build_model
from pagoda.planner.memory.weights import weight_bytes
from pagoda.weights.gguf.checkpoint import GgufCheckpoint
from pagoda.weights.safetensors import SafetensorsCheckpoint
from pagoda.weights.upright import UprightCheckpoint
from tests.models import tiny, tiny_gguf, tiny_gguf_qwen35
from tests.models.driver import Driver
from tests.models.gloo_ranks import on_ranks
from tests.models.recording import RecordingCheckpoint
from tests.models.tiny_gguf import Storage

BIASES = {"attention_bias": True, "mlp_bias": True}


def _write(folder, kind: str, family: str = "llama", **changes) -> Callable[[], tuple]:
    """A tiny model; returns what opens it: (spec, recording checkpoint)."""
    reference = tiny.make(family, **{"hidden_size": 128, "intermediate_size": 192, **changes})
    if kind == "safetensors":
        reference.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        return lambda: (
            spec_for(config, {}, ()),
            RecordingCheckpoint(UprightCheckpoint(SafetensorsCheckpoint(folder))),
        )
    path = folder / "model.gguf"
    tiny_gguf.write(path, reference, lambda name: Storage[kind])

    def open_gguf():
        checkpoint = RecordingCheckpoint(GgufCheckpoint(path))
        return spec_for(None, checkpoint.metadata, checkpoint.tensors), checkpoint

    return open_gguf


@pytest.mark.parametrize(
    ("kind", "world_size", "kv_heads"),
    [
        ("safetensors", 2, 2),
        ("safetensors", 2, 4),
        ("safetensors", 2, 1),
        ("safetensors", 4, 2),
        ("Q8_0", 2, 2),
        ("Q4_1", 2, 1),
    ],
)
def test_ranks_together_equal_one(kind, world_size, kv_heads, tmp_path):
    """KV heads are split, or repeated where ranks outnumber them."""
    open_model = _write(tmp_path, kind, num_key_value_heads=kv_heads, **BIASES)
    options = {"dtype": torch.float32, "device": "cpu"}
    whole = build_model(*open_model(), **options)
    ids = tiny.random_ids(30)
    expected = Driver(whole).run(ids, chunk=30)

    def run(parallel: Parallel) -> torch.Tensor:
        spec, checkpoint = open_model()
        rank = build_model(spec, checkpoint, parallel=parallel, **options)
        _check_reads(checkpoint, world_size, kv_heads)
        return Driver(rank).run(ids, chunk=9)

    for logits in on_ranks(world_size, run):
        torch.testing.assert_close(logits, expected, rtol=0, atol=2e-5)


def _check_reads(checkpoint: RecordingCheckpoint, world_size: int, kv_heads: int) -> None:
    """Matrices are read by slices; vectors are too small to slice."""
    for name, info in checkpoint.tensors.items():
        if len(info.shape) == 1:
            continue
        is_kv = any(key in name for key in ("k_proj", "v_proj", "attn_k.", "attn_v."))
        share = min(world_size, kv_heads) if is_kv else world_size
        # The vocabulary's 211 rows do not divide; the last rank has fewer.
        row_bytes = info.nbytes // info.shape[0]
        assert checkpoint.bytes_read[name] <= info.nbytes // share + row_bytes, name
        assert checkpoint.bytes_read[name] > 0


@pytest.mark.parametrize(
    ("family", "changes", "kind"),
    [
        ("qwen3_moe", tiny.QWEN3_MOE, "safetensors"),
        ("gpt_oss", tiny.GPT_OSS, "safetensors"),
        ("gemma4", tiny.GEMMA4_MOE, "safetensors"),
        ("qwen3_moe", tiny.QWEN3_MOE, "Q8_0"),
        ("gpt_oss", {**tiny.GPT_OSS, "swiglu_limit": 7.0}, "MXFP4"),
    ],
)
def test_ranks_share_experts(family, changes, kind, tmp_path):
    """Each rank reads its own experts and no others."""
    open_model = _write(tmp_path, kind, family, **changes)
    options = {"dtype": torch.float32, "device": "cpu"}
    ids = tiny.random_ids(30)
    # In the same steps: with others torch itself rounds otherwise, by as much as the bound.
    expected = Driver(build_model(*open_model(), **options)).run(ids, chunk=9)

    def run(parallel: Parallel) -> tuple[torch.Tensor, int]:
        spec, checkpoint = open_model()
        rank = build_model(spec, checkpoint, parallel=parallel, **options)
        experts = [name for name in checkpoint.tensors if "experts" in name or "_exps" in name]
        read = sum(checkpoint.bytes_read.get(name, 0) for name in experts)
        # Gate and up whose rows lie in turn are read one after the other.
        in_turn = family == "gpt_oss" and kind == "safetensors"
        all_bytes = sum(checkpoint.tensors[name].nbytes for name in experts)
        assert read <= all_bytes * (1 if in_turn else 1 / 2)
        return Driver(rank).run(ids, chunk=9), read

    ranks = on_ranks(2, run)
    assert ranks[0][1] == ranks[1][1] > 0
    for logits, _ in ranks:
        torch.testing.assert_close(logits, expected, rtol=0, atol=2e-5)


def test_experts_that_ranks_cannot_share_are_an_error(tmp_path):
    sizes = {**tiny.QWEN3_MOE, "num_experts": 5}
    spec, checkpoint = _write(tmp_path, "F32", "qwen3_moe", **sizes)()
    with pytest.raises(ConfigError, match="5 experts cannot be split over 2"):
        build_model(spec, checkpoint, dtype=torch.float32, device="cpu", parallel=Parallel(0, 2))


def test_blocks_that_ranks_cannot_share_are_an_error(tmp_path):
    spec, checkpoint = _write(tmp_path, "Q8_0", num_key_value_heads=4)()
    with pytest.raises(ConfigError, match=r"ffn_down.*blocks of 32.*tensor-parallel-size"):
        build_model(spec, checkpoint, dtype=torch.float32, device="cpu", parallel=Parallel(1, 4))


@pytest.mark.parametrize(
    ("world_size", "heads", "kv_heads", "what"),
    [(3, 4, 2, "4 attention heads"), (2, 6, 3, "3 KV heads"), (4, 12, 3, "3 KV heads")],
)
def test_heads_that_ranks_cannot_share_are_an_error(world_size, heads, kv_heads, what, tmp_path):
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 32}
    spec, checkpoint = _write(tmp_path, "F32", hidden_size=96, **sizes)()
    with pytest.raises(ConfigError, match=what):
        build_model(
            spec, checkpoint, dtype=torch.float32, device="cpu", parallel=Parallel(0, world_size)
        )


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("qwen3_5", {**tiny.QWEN3_5, "attention_bias": True}),
        ("llama4", {**tiny.LLAMA4, "attention_bias": True}),
    ],
)
def test_parts_of_matrices_and_shared_experts_are_split(family, sizes, tmp_path):
    """q, k and v, and q and its gate, are parts of one matrix; each rank has some of each."""
    tiny.make(family, **sizes).save_pretrained(tmp_path)
    ids = tiny.random_ids(30)
    expected = Driver(tiny.load(tmp_path)).run(ids, chunk=30)

    def run(parallel: Parallel) -> torch.Tensor:
        return Driver(tiny.load(tmp_path, parallel=parallel)).run(ids, chunk=9)

    for logits in on_ranks(2, run):
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "sizes"), [("qwen3_5_moe", tiny.QWEN3_5_MOE), ("llama4", tiny.LLAMA4)]
)
def test_a_mixture_exchanges_once(family, sizes, tmp_path):
    """With its shared expert, whose gate every rank computes: the tokens of one rank."""
    tiny.make(family, **sizes).save_pretrained(tmp_path)
    ids = tiny.random_ids(20)
    expected = Driver(tiny.load(tmp_path)).run(ids, chunk=9)

    def run(parallel: Parallel) -> tuple[torch.Tensor, set[int]]:
        model, exchanges, reduce = tiny.load(tmp_path, parallel=parallel), [], parallel.reduce
        parallel.reduce = lambda x: exchanges.append(x.shape) or reduce(x)
        counts = set()
        for layer in (part for part in model.modules() if isinstance(part, MixtureOfExperts)):
            exchanges.clear()
            layer(torch.randn(5, model.spec.hidden_size))
            counts.add(len(exchanges))
        return Driver(model).run(ids, chunk=9), counts

    for logits, counts in on_ranks(2, run):
        assert counts == {1}
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
        assert torch.equal(logits.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(
    ("family", "sizes", "value_heads", "storage"),
    [
        ("qwen3_5", tiny.QWEN3_5, 8, "F32"),
        ("qwen3_5", tiny.QWEN3_5, 12, "Q8_0"),
        ("qwen3_5", tiny.QWEN3_5, 4, "Q8_0"),
        ("qwen3_5_moe", {**tiny.QWEN3_5_MOE, "num_experts": 8}, 12, "F32"),
    ],
)
def test_delta_nets_whose_heads_lie_in_tiles(
    world_size, family, sizes, value_heads, storage, tmp_path
):
    """As llama.cpp stores them: the value heads of a rank's key heads lie in several places."""
    path = tmp_path / "model.gguf"
    heads = {"linear_num_key_heads": 4, "linear_num_value_heads": value_heads}
    made = tiny.make(family, **{**sizes, "intermediate_size": 128, **heads})
    reference = tiny_gguf_qwen35.write(path, made, Storage[storage])
    ids = tiny.random_ids(30)
    expected = tiny.reference_logits(reference, ids)

    def run(parallel: Parallel) -> tuple[torch.Tensor, dict[str, int], int]:
        checkpoint = RecordingCheckpoint(GgufCheckpoint(path))
        spec = spec_for(None, checkpoint.metadata, checkpoint.tensors)
        model = build_model(spec, checkpoint, dtype=torch.float32, device="cpu", parallel=parallel)
        return Driver(model).run(ids, chunk=9), checkpoint.bytes_read, model.nbytes

    ranks = on_ranks(world_size, run)
    checkpoint = GgufCheckpoint(path)
    tensors, spec = checkpoint.tensors, spec_for(None, checkpoint.metadata, checkpoint.tensors)
    planned = weight_bytes(spec, tensors, "float32", frozenset(), world_size)
    assert max(nbytes for *_, nbytes in ranks) == planned
    for logits, read, _ in ranks:
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
        for name in ("attn_qkv", "attn_gate", "ssm_beta", "ssm_alpha", "ssm_conv1d", "ssm_out"):
            whole = tensors[f"blk.0.{name}.weight"].nbytes
            assert read[f"blk.0.{name}.weight"] == whole // world_size, name
