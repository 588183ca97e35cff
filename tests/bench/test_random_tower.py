"""Vision towers of random weights, as Pagoda and transformers read them."""

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from bench.peers.random_models import write_random_model
from bench.peers.random_tower import TOWER_FORMATS, Tower, write_random_tower
from bench.peers.shapes.llama import Qwen3Vl
from pagoda.arch.registry import spec_for
from pagoda.kernels import ops
from pagoda.models.loader import build_model
from pagoda.runtime.media import finish
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model

TEXT = Qwen3Vl(
    layers=2, hidden=64, heads=2, kv_heads=1, mlp=64, head_dim=32, tied=True, deepstack=1
)
TOWER = Tower(layers=3, hidden=64, heads=2, mlp=96, positions=5, out=64, deepstack=(1,))
NAMES = {
    "v.patch_embd": "patch_embed.proj", "v.position_embd": "pos_embed",
    "v.blk": "blocks", "ln1": "norm1", "ln2": "norm2", "attn_qkv": "attn.qkv",
    "attn_out": "attn.proj", "ffn_up": "mlp.linear_fc1", "ffn_down": "mlp.linear_fc2",
    "v.post_ln": "merger.norm", "mm.0": "merger.linear_fc1", "mm.2": "merger.linear_fc2",
    "v.deepstack.1": "deepstack_merger_list.0", "fc1": "linear_fc1", "fc2": "linear_fc2",
}  # fmt: skip


@pytest.fixture(params=TOWER_FORMATS)
def files(request, tokenizer, tmp_path):
    write_random_model(tmp_path / "text.gguf", TEXT, "q8_0", tokenizer)
    write_random_tower(tmp_path / "tower.gguf", TOWER, request.param)
    return open_model(tmp_path / "text.gguf", str(tmp_path / "tower.gguf"))


def transformers_tower(path) -> Qwen3VLVisionModel:
    """On the file's weights, expanded to fp32."""
    tower = Qwen3VLVisionModel(
        Qwen3VLVisionConfig(
            depth=TOWER.layers, hidden_size=TOWER.hidden, num_heads=TOWER.heads,
            intermediate_size=TOWER.mlp, out_hidden_size=TOWER.out,
            num_position_embeddings=TOWER.positions**2,
            deepstack_visual_indexes=list(TOWER.deepstack),
        )
    )  # fmt: skip
    weights = {
        tensor.name: torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type)))
        for tensor in gguf.GGUFReader(path).tensors
    }
    second = weights.pop("v.patch_embd.weight.1")
    weights["v.patch_embd.weight"] = torch.stack((weights["v.patch_embd.weight"], second), 2)
    tower.load_state_dict({renamed(name): weight for name, weight in weights.items()})
    return tower.eval()


def renamed(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = f".{name}.".replace(f".{ours}.", f".{theirs}.").strip(".")
    return name


@torch.inference_mode()
@pytest.mark.parametrize("packed", [False, True])
def test_pagoda_and_transformers_read_the_same_tower(packed, files):
    if packed and not ops.can_pack("cpu"):
        pytest.skip("no native kernels")
    spec = spec_for(files.config, files.metadata, files.checkpoint.tensors)
    model = build_model(spec, files.checkpoint, dtype=torch.float32, device="cpu", packed=packed)
    pixels = np.random.default_rng(0).integers(0, 256, (1, 288, 256, 3), np.uint8)
    processor = processor_for(files, "image")
    (piece,) = processor.process(pixels).pieces
    assert piece.num_tokens == 9 * 8
    patches, grid = processor.patches(piece.values)
    found = finish(model.encoders["image"](torch.from_numpy(patches), grid))
    theirs = transformers_tower(files.projector)(
        torch.from_numpy(patches), grid_thw=torch.tensor([grid])
    )
    expected = torch.stack([theirs.pooler_output, *theirs.deepstack_features])
    bound = 1e-2 if packed else 1e-5  # packed, activations may be rounded
    assert (found - expected).abs().max() < bound * expected.std()
