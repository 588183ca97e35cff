from math import prod

import pytest

from pagoda.arch.registry import spec_for
from pagoda.planner.memory.assumed import assumed_tensors
from pagoda.planner.memory.tensors import parameter_count
from pagoda.planner.memory.weights import weight_bytes
from pagoda.weights.prequantized.select import nominal_storage

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 1024,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "vocab_size": 1000,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
LINEAR = 2 * (512 * (512 + 2 * 128) + 512 * 512 + 3 * 512 * 1024)
TABLES = 2 * 1000 * 512
INT4 = {"bits": 4, "group_size": 128}


@pytest.mark.parametrize(
    ("quantization", "storage", "bits"),
    [
        (None, None, 16),
        ({"quant_method": "awq", **INT4, "zero_point": True, "version": "gemm"}, "UINT4", 5.25),
        ({"quant_method": "gptq", **INT4, "sym": True}, "INT4", 5),
        ({"quant_method": "gptq", **INT4, "sym": True, "desc_act": True}, "DECODED", 32),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "INT8", 9),
        ({"quant_method": "fp8"}, "FP8", 9),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "FP4", 5.5),
    ],
)
def test_a_config_says_how_most_matrices_are_stored(quantization, storage, bits):
    config = LLAMA if quantization is None else {**LLAMA, "quantization_config": quantization}
    assert nominal_storage(config) == storage
    spec = spec_for(config, {}, ())
    infos = assumed_tensors(spec, storage)
    assert set(infos) == {name for rule in spec.expanded_weights() for name in rule.sources}
    assert sum(prod(info.shape) for info in infos.values()) == parameter_count(spec)
    linear = [info for name, info in infos.items() if "proj" in name]
    assert sum(info.nbytes for info in linear) == LINEAR * bits / 8
    tables = [info for name, info in infos.items() if "embed" in name or "head" in name]
    assert sum(info.nbytes for info in tables) == 2 * TABLES


def test_what_is_assumed_is_planned_as_headers_are():
    spec = spec_for(LLAMA, {}, ())
    kernels = frozenset(("Q4_0", "BF16"))
    planned = weight_bytes(spec, assumed_tensors(spec, "INT4"), "float32", kernels)
    norms = 5 * 512
    assert planned == LINEAR * 18 // 32 + 2 * TABLES + 4 * norms
