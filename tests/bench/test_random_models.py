"""Files of random weights, which stand for models that are too large to be had."""

from collections import Counter
from dataclasses import replace

import gguf
import pytest
from gguf.quants import dequantize

from bench.peers.models import streamed_bytes
from bench.peers.random_models import write_random_model
from bench.peers.shapes.formats import FORMATS
from bench.peers.shapes.llama import Llama, Qwen3Moe

TINY = Llama(layers=1, hidden=256, heads=4, kv_heads=2, head_dim=64, mlp=512, vocabulary=1000)


@pytest.mark.parametrize("storage", FORMATS)
def test_weights_of_each_format_are_centred_and_of_one_size(storage, tokenizer, tmp_path):
    path = tmp_path / "random.gguf"
    write_random_model(path, TINY, storage, tokenizer)
    reader = gguf.GGUFReader(path)
    for tensor in reader.tensors:
        if tensor.tensor_type != gguf.GGMLQuantizationType.F32:
            weights = dequantize(tensor.data, tensor.tensor_type)
            assert weights.shape == tuple(reversed(tensor.shape.tolist()))
            assert 0.017 < weights.std() < 0.024
            assert abs(weights.mean()) < 0.003
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert tokens[:3] == ["a", "b", "ab"]
    assert len(tokens) == len(set(tokens)) == TINY.vocabulary


def test_the_mixture_has_more_bits_where_the_quantizer_gives_more(tokenizer, tmp_path):
    shape = replace(TINY, layers=16)
    write_random_model(tmp_path / "a.gguf", shape, "q4_k_m", tokenizer)
    tensors = gguf.GGUFReader(tmp_path / "a.gguf").tensors
    types = {tensor.name.removesuffix(".weight"): tensor.tensor_type.name for tensor in tensors}
    assert (types["output"], types["token_embd"]) == ("Q6_K", "Q4_K")
    better = {int(n.split(".")[1]) for n, t in types.items() if "ffn_down" in n and t == "Q6_K"}
    assert better == {0, 1, 4, 7, 10, 13, 14, 15}
    assert Counter(t for n, t in types.items() if "ffn_up" in n) == {"Q4_K": 16}


def test_a_mixture_has_its_experts_side_by_side(tokenizer, tmp_path):
    shape = Qwen3Moe(
        layers=1, hidden=256, heads=4, kv_heads=2, head_dim=32, vocabulary=1000, experts=6, used=2,
        expert_mlp=256,
    )  # fmt: skip
    path = tmp_path / "a.gguf"
    write_random_model(path, shape, "q4_k_m", tokenizer)
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.architecture"].contents() == "qwen3moe"
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    gate, router = tensors["blk.0.ffn_gate_exps.weight"], tensors["blk.0.ffn_gate_inp.weight"]
    assert (gate.shape.tolist(), gate.tensor_type.name) == ([256, 256, 6], "Q4_K")
    assert (router.shape.tolist(), router.tensor_type.name) == ([256, 6], "F32")
    assert tensors["blk.0.attn_q.weight"].shape.tolist() == [256, 128]
    assert 0.017 < router.data.std() < 0.024
    # What a step reads: two of six experts, and no table of embeddings.
    experts = sum(int(one.n_bytes) for name, one in tensors.items() if "_exps" in name)
    rest = sum(int(one.n_bytes) for one in tensors.values()) - experts
    table = int(tensors["token_embd.weight"].n_bytes)
    assert streamed_bytes(path) == experts // 3 + rest - table
