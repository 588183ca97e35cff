"""Quantized weights in the host's memory, decoded there or on their way through the device."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from pagoda.planner.memory.placement import placed
from pagoda.planner.memory.weights import held_weights
from pagoda.quant.host import HostWeights
from pagoda.runtime.device import CpuDevice
from tests.models import tiny, tiny_gguf
from tests.models.tiny_gguf import Storage

# A device that is not `cpu` keeps weights as a GPU does.
PLAYED = "cpu:0"
SIZES = {
    "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
    "head_dim": 64, "num_experts": 3, "moe_intermediate_size": 64,
}  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU is played by the CPU")
def test_int4_layers_in_the_hosts_memory(tmp_path):
    path = tmp_path / "model.gguf"
    reference = tiny.make("qwen3_moe", **{**tiny.QWEN3_MOE, **SIZES})
    tiny_gguf.write(path, reference, lambda name: Storage.Q4_0)
    whole = tiny.load(path, device=PLAYED, packed=True)
    held = held_weights(whole.spec, {}, "float32", frozenset())
    placement = placed(whole.spec, held, 1, 1)
    host = HostWeights(placement.params, PLAYED, CpuDevice().host_memory)
    model = tiny.load(path, device=host, packed=True)
    matrices = sum(part.elements for part in held if part.tensor.name in placement.params)
    assert host.nbytes == matrices * 18 // 32  # Q4_0 has 18 bytes for 32 weights
    for found, expected in zip(model.layers, whole.layers, strict=True):
        x = torch.randn(3, 64)
        assert torch.equal(found.attention.output(x[:1]), expected.attention.output(x[:1]))
        # Three tokens with three experts each are many; one's are read in the host's memory.
        for rows in (x, x[:1]):
            assert torch.equal(found.mlp(rows), expected.mlp(rows))
