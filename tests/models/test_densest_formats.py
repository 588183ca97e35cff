"""A mixture in GGUF's densest formats: as small as planned, and saying what its weights say."""

import gguf
import numpy as np
import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.kernels import ops
from pagoda.planner.memory.weights import held_weights
from pagoda.weights.files import open_model
from tests.models import tiny, tiny_gguf
from tests.models.driver import Driver
from tests.models.tiny_gguf import Storage

pytestmark = pytest.mark.skipif(
    not ops.can_pack("cpu"), reason="the native kernels are not built here"
)
# Whole blocks of 256 columns, and panels of 16 rows but for routers.
SIZES = {
    **tiny.QWEN3_MOE, "hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 208,
    "num_experts": 3, "num_hidden_layers": 2,  # all are chosen: no rounding turns a router's choice
}  # fmt: skip
# Of weights: sums over 256 columns are then near 1.
SPREAD = 0.06
STORAGES = {
    "token_embd": "IQ3_S", "output": "IQ2_S", "attn_q": "IQ2_XS", "attn_k": "IQ1_S",
    "attn_v": "IQ3_XXS", "attn_output": "TQ2_0", "ffn_gate_exps": "IQ2_XXS",
    "ffn_up_exps": "IQ1_S", "ffn_down_exps": "IQ3_S",
}  # fmt: skip


def storage_of(name: str) -> Storage:
    return Storage[STORAGES[name.removesuffix(".weight").split(".")[-1]]]


def quantize(values: np.ndarray, storage: Storage) -> np.ndarray:
    """Random blocks: the package only reads most of these types."""
    if storage is Storage.F32:
        return gguf.quantize(values, storage)
    if storage is Storage.TQ2_0:
        return gguf.quantize(values * SPREAD / values.std(), storage)
    rng = np.random.default_rng(len(values))
    size = gguf.GGML_QUANT_SIZES[storage][1]
    blocks = rng.integers(0, 256, (*values.shape[:-1], values.shape[-1] // 256, size), np.uint8)
    blocks[..., :2] = np.array([1], np.float16).view(np.uint8)
    spread = gguf.dequantize(blocks, storage).std()
    blocks[..., :2] = np.array([SPREAD / spread], np.float16).view(np.uint8)
    return blocks.reshape(*values.shape[:-1], -1)


def test_a_mixture_in_many_formats(tmp_path):
    path = tmp_path / "model.gguf"
    reference = tiny.make("qwen3_moe", **SIZES)
    tiny_gguf.write(path, reference, storage_of, quantize=quantize)
    model = tiny.load(path, packed=True)
    ids = tiny.random_ids(30)
    whole = Driver(model).run(ids, 30)
    expected = tiny.reference_logits(reference, ids)
    assert ((whole - expected).norm() / expected.norm()).item() < 0.05
    for chunk in (1, 7):
        assert torch.equal(Driver(model).run(ids, chunk), whole)
    files = open_model(path)
    spec = spec_for(files.config, files.metadata, files.checkpoint.tensors)
    tensors = files.checkpoint.tensors
    held = held_weights(spec, tensors, "float32", ops.packed_storages())
    planned = sum(part.nbytes for part in held if part.tensor.role != "router")
    assert model.nbytes - sum(layer.mlp.router.nbytes for layer in model.layers) == planned
    assert model.nbytes < 1.1 * sum(info.nbytes for info in tensors.values())
