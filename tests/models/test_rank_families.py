"""Two and four ranks over gloo give transformers' logits, whatever the architecture or storage."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pagoda.base.errors import ConfigError
from pagoda.kernels import ops
from pagoda.layers.context import Parallel
from tests.models import encoders, published, test_fp8, tiny, tiny_gguf
from tests.models import test_compressed_tensors as compressed
from tests.models import vision as seeing
from tests.models.driver import Driver
from tests.models.gloo_ranks import on_ranks
from tests.models.test_transformers import GRANITE4, MULTIPLIERS
from tests.models.tiny_gguf import Storage

IDS = tiny.random_ids(30)
# What four ranks can share: heads of delta nets, experts.
FOUR_HEADS = {**tiny.QWEN3_5, "linear_num_key_heads": 4, "linear_num_value_heads": 8}
FOUR_MIXED = {
    **tiny.QWEN3_5_MOE, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "num_experts": 8,
}  # fmt: skip
FAMILIES = {
    "bamba": {**tiny.BAMBA, "mamba_n_groups": 4},
    "cohere2": tiny.COHERE2,
    "deepseek_v2": tiny.DEEPSEEK_V2,
    "deepseek_v3": tiny.DEEPSEEK_V3,
    "deepseek_v32": tiny.DEEPSEEK_V32,
    "glm_moe_dsa": tiny.GLM_MOE_DSA,
    "ernie4_5": {"head_dim": 16, "pad_token_id": 0},
    "ernie4_5_moe": tiny.ERNIE4_5_MOE,
    "gemma2": tiny.GEMMA2,
    "gemma3": tiny.GEMMA3,
    "gemma3_vision": tiny.GEMMA3,
    "gemma4": tiny.GEMMA4_MOE,
    "gemma4_e": tiny.GEMMA4_E,
    "gemma4_vision": tiny.GEMMA4,
    "glm4": {"head_dim": 16},
    "glm4_moe": tiny.GLM4_MOE,
    "glm4_moe_lite": tiny.GLM4_MOE_LITE,
    "gpt_oss": {**tiny.GPT_OSS, "num_local_experts": 8},
    "granite": MULTIPLIERS,
    "granite4": GRANITE4,
    "granite_moe": {**tiny.GRANITE_MOE, "num_local_experts": 8},
    "granite_moe_shared": {
        **tiny.GRANITE_MOE, "num_local_experts": 8, "shared_intermediate_size": 48,
    },
    "hunyuan": tiny.HUNYUAN,
    "hunyuan_moe": {**tiny.HUNYUAN_MOE, "num_experts": 8},
    "lfm2": tiny.LFM2,
    "lfm2_moe": {**tiny.LFM2_MOE, "num_experts": 8},
    "llama": {},
    "llama4": tiny.LLAMA4,
    "minimax_m2": {**tiny.MINIMAX_M2, "num_local_experts": 8},
    "ministral3": tiny.MINISTRAL3,
    "mistral": {"sliding_window": 13},
    "mistral3": {},
    "mixtral": tiny.MIXTRAL,
    "nemotron_h": {**tiny.NEMOTRON_H_MIXED, "n_groups": 4, "n_routed_experts": 8},
    "olmo2": {},
    "olmo3": tiny.OLMO3,
    "phi3": {},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "qwen3_5": FOUR_HEADS,
    "qwen3_5_moe": FOUR_MIXED,
    "qwen3_moe": tiny.QWEN3_MOE,
    "qwen3_next": FOUR_MIXED,
    "seed_oss": {"head_dim": 16},
    "smollm3": {"no_rope_layers": [1, 0, 1]},
    "youtu": tiny.LATENT,
}  # fmt: skip
SEEING = {
    "qwen2_vl": {},
    "qwen2_5_vl": {},
    "qwen3_vl": {},
    "qwen3_vl_moe": {"num_experts": 8},
    "qwen3_5": {"linear_num_key_heads": 4, "linear_num_value_heads": 8},
    "qwen3_5_moe": {
        "linear_num_key_heads": 4, "linear_num_value_heads": 8, "num_experts": 8,
    },
}  # fmt: skip


def check(expected: torch.Tensor, load: Callable[[Parallel], torch.nn.Module], ids=IDS) -> None:
    for size in (2, 4):
        ranks = on_ranks(size, lambda parallel: Driver(load(parallel)).run(ids, chunk=9))
        for logits in ranks:
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
            assert torch.equal(logits, ranks[0]), "what ranks compute of each other's must agree"


# Its mlps keep the largest of all their features.
WHOLE = {"gemma3n"}


@pytest.mark.parametrize("family", [name for name in tiny.FAMILIES if name not in WHOLE])
def test_families(family: str, tmp_path: Path):
    reference = tiny.make(family, **FAMILIES[family])
    reference.save_pretrained(tmp_path)
    expected = tiny.reference_logits(reference, IDS)
    check(expected, lambda parallel: tiny.load(tmp_path, parallel=parallel))


def test_what_cannot_be_split_says_so(tmp_path: Path):
    tiny.make("gemma3n", **tiny.GEMMA3N).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="leave --tensor-parallel-size at 1"):
        tiny.load(tmp_path, parallel=Parallel(0, 2))


@pytest.mark.parametrize("family", SEEING)
def test_models_that_see(family: str, tmp_path: Path):
    """Their text; pictures are the engine's affair (tests/engine/test_ranks.py)."""
    reference = seeing.make(SEEING[family], family=family)
    seeing.save(reference, tmp_path)
    ids = [token % 200 for token in IDS]
    expected = seeing.reference_logits(reference, ids, [])
    check(expected, lambda parallel: tiny.load(tmp_path, parallel=parallel), ids)


@pytest.mark.parametrize("family", encoders.FAMILIES)
def test_encoders(family: str, tmp_path: Path):
    changes = {"num_labels": 3} if "classifier" in family else {}
    reference = encoders.make(family, **changes)
    reference.save_pretrained(tmp_path)
    ids = [2 + token % 209 for token in IDS]

    def run(parallel: Parallel) -> torch.Tensor:
        model = tiny.load(tmp_path, parallel=parallel)
        (states,) = encoders.hidden_states(model, [ids])
        with torch.inference_mode():
            return model.classify(states[:1])[0] if changes else states

    with torch.inference_mode():
        found = reference(torch.tensor([ids]))
        expected = found.logits[0] if changes else found.last_hidden_state[0]
    for size in (2, 4):
        for result in on_ranks(size, run):
            torch.testing.assert_close(result, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "MXFP4"])
def test_gguf(kind: str, tmp_path: Path):
    """Blocks of 32 columns are dealt out whole."""
    path = tmp_path / "model.gguf"
    reference = tiny.make("qwen3", hidden_size=128, intermediate_size=256, head_dim=32)
    tiny_gguf.write(path, reference, lambda name: Storage[kind])
    expected = Driver(tiny.load(path)).run(IDS, chunk=30)
    check(expected, lambda parallel: tiny.load(path, parallel=parallel))


QUANTIZED = ["w4a16", "w4a16 of 64", "w4a16 of 16", "w4a16 asymmetric", "w8a16", "w8a8",
             "fp8 dynamic", "fp8 blocks", "fp8 ragged blocks"]  # fmt: skip


@pytest.mark.parametrize("case", QUANTIZED)
def test_compressed_tensors(case: str, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(compressed.SIZES, "intermediate_size", 256)
    twin, _ = compressed.write(tmp_path, compressed.CASES[case])
    expected = tiny.reference_logits(twin, compressed.IDS)
    check(expected, lambda parallel: published.load(tmp_path, parallel=parallel), compressed.IDS)


def test_fp8_in_blocks(tmp_path: Path, monkeypatch):
    """Of 64 rows and columns: four ranks share each."""
    monkeypatch.setitem(test_fp8.SIZES, "intermediate_size", 256)
    twin, _ = test_fp8.write(tmp_path, test_fp8.CASES["blocks"])
    expected = tiny.reference_logits(twin, test_fp8.IDS)
    check(expected, lambda parallel: published.load(tmp_path, parallel=parallel), test_fp8.IDS)


@pytest.mark.skipif(not ops.can_pack("cpu"), reason="the native kernels are not built here")
@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "Q4_0"])
def test_packed_weights(kind: str, tmp_path: Path):
    """Native kernels round activations: differently by the part of a row that they see, and no
    further from what the weights mean."""
    path = tmp_path / "model.gguf"
    reference = tiny.make("llama", hidden_size=128, intermediate_size=256)
    tiny_gguf.write(path, reference, lambda name: Storage[kind])
    exact = Driver(tiny.load(path)).run(IDS, chunk=30)

    def run(parallel: Parallel | None = None) -> torch.Tensor:
        return Driver(tiny.load(path, packed=True, parallel=parallel)).run(IDS, chunk=9)

    alone = published.relative_error(run(), exact)
    for size in (2, 4):
        for logits in on_ranks(size, run):
            assert published.relative_error(logits, exact) < 1.2 * alone + 1e-5
