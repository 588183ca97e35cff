"""Multi-head latent attention: fp8 checkpoints as DeepSeek publishes them, one vector per token in
the cache, and what is refused."""

import re

import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.core.kvcache.spec import KVLayout, attention_groups, kv_groups
from pagoda.kernels import cpu
from pagoda.weights.files import open_model
from tests.models import published, tiny, tiny_gguf
from tests.models.driver import Driver

IDS = tiny.random_ids(50, vocab_size=208)
NATIVE = pytest.mark.skipif(cpu.native() is None, reason="the native kernels are not built here")
# Blocks of 128 rows and columns, the last ones of which are not whole; rows by 16, as the panels of
# packed matrices are.
SIZES = {
    **tiny.DEEPSEEK_V3, "hidden_size": 192, "intermediate_size": 160, "vocab_size": 208,
    "kv_lora_rank": 128, "v_head_dim": 32, "n_routed_experts": 16, "num_hidden_layers": 2,
}  # fmt: skip
_EXPERTS = re.compile(r"(.*\.experts\.)(gate_up|down)_proj")
_LAYERS = re.compile(r".*\.(?:self_attn|mlp|shared_experts)\.\w+_proj(?:_with_mqa)?")


def fp8_blocks(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """(a matrix as DeepSeek V3's files have it, what they say)."""
    rows, columns = weight.shape
    scales = torch.empty(-(-rows // 128), -(-columns // 128))
    codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    said = torch.empty_like(weight)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128)
            scales[i, j] = weight[block].abs().max() / 448
            codes[block] = (weight[block] / scales[i, j]).to(torch.float8_e4m3fn)
            said[block] = codes[block].float() * scales[i, j]
    return {"weight": codes, "weight_scale_inv": scales}, said


@torch.no_grad()
def write_fp8(folder):
    """transformers' model with the weights that the checkpoint says."""
    twin = tiny.make("deepseek_v3", **SIZES)
    layers, left = {}, {}
    for name, held in twin.state_dict().items():
        found = _EXPERTS.fullmatch(name)
        if found is not None:
            kinds = ("gate", "up") if found[2] == "gate_up" else ("down",)
            for expert, matrices in enumerate(held):
                for kind, matrix in zip(kinds, matrices.chunk(len(kinds)), strict=True):
                    parts, said = fp8_blocks(matrix)
                    layers[f"{found[1]}{expert}.{kind}_proj"] = parts
                    matrix.copy_(said)
        elif _LAYERS.fullmatch(name.removesuffix(".weight")):
            layers[name.removesuffix(".weight")], said = fp8_blocks(held)
            held.copy_(said)
        else:
            left[name] = held
    quantization = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
                    "activation_scheme": "dynamic"}  # fmt: skip
    published.save(folder, twin, layers, quantization, of=left)
    return twin


def test_fp8_blocks_equal_what_they_say(tmp_path):
    twin = write_fp8(tmp_path)
    tensors = open_model(tmp_path).checkpoint.tensors
    kinds = {name.split(".")[-2]: info.type for name, info in tensors.items() if "_proj" in name}
    assert set(kinds.values()) == {"FP8"} and {"kv_b_proj", "kv_a_proj_with_mqa"} <= kinds.keys()
    logits = Driver(published.load(tmp_path)).run(IDS, chunk=50)
    expected = tiny.reference_logits(twin, IDS)
    assert expected.std() > 0.3
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


@NATIVE
def test_packed_fp8_stays_close_and_takes_what_is_planned(tmp_path):
    twin = write_fp8(tmp_path)
    model = published.load(tmp_path, packed=True)
    expected = tiny.reference_logits(twin, IDS)
    # What these wild weights make of 8-bit activations.
    assert published.relative_error(Driver(model).run(IDS, chunk=50), expected) < 0.1
    assert model.nbytes == published.planned_bytes(tmp_path)


@NATIVE
@pytest.mark.parametrize("storage", ["BF16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("joined", [False, True])
def test_packed_ggufs_stay_close(storage, joined, tmp_path):
    reference = tiny.make("deepseek_v2", **{**tiny.V2_LITE, "v_head_dim": 16})
    path = tmp_path / "model.gguf"
    kind = tiny_gguf.Storage[storage]
    tiny_gguf.write(path, reference, lambda name: kind, joined=joined)
    expected = tiny.reference_logits(reference, IDS)
    found = Driver(tiny.load(path, packed=True)).run(IDS, chunk=50)
    assert published.relative_error(found, expected) < 0.1


@NATIVE
@pytest.mark.parametrize(
    ("family", "kv_dtype"),
    [
        ("deepseek_v3", torch.float32),
        ("deepseek_v3", torch.bfloat16),
        ("deepseek_v3", torch.int8),
        ("deepseek_v3", torch.uint8),
        ("glm_moe_dsa", torch.float32),
        ("deepseek_v32", torch.bfloat16),
    ],
)
def test_the_same_bits_however_a_text_is_cut_and_batched(family, kv_dtype, tmp_path):
    tiny.make(family, **getattr(tiny, family.upper())).save_pretrained(tmp_path)
    model = tiny.load(tmp_path, packed=True)

    def run(chunk: int) -> torch.Tensor:
        return Driver(model, kv_dtype=kv_dtype, block_size=16).run(IDS, chunk)

    whole = run(50)
    for chunk in (1, 7, 32):
        assert torch.equal(run(chunk), whole)
    driver = Driver(model, kv_dtype=kv_dtype, block_size=16)
    driver.step({"other": IDS[:9]})
    both = driver.step({"other": IDS[9:10], "r": IDS[:20]})
    assert torch.equal(both["r"], whole[:20])


@NATIVE
@pytest.mark.parametrize(("kv_dtype", "apart"), [(torch.int8, 0.05), (torch.uint8, 0.5)])
def test_a_small_cache_stays_close(kv_dtype, apart, tmp_path):
    reference = tiny.make("deepseek_v3", **tiny.DEEPSEEK_V3)
    reference.save_pretrained(tmp_path)
    model, expected = tiny.load(tmp_path), tiny.reference_logits(reference, IDS)
    found = Driver(model, kv_dtype=kv_dtype).run(IDS, chunk=13)
    assert 0 < published.relative_error(found, expected) < apart


def test_one_vector_per_token_is_cached():
    config = tiny.make("deepseek_v3", **tiny.DEEPSEEK_V3).config.to_dict()
    spec = spec_for({**config, "architectures": ["DeepseekV3ForCausalLM"]}, {}, ())
    (group,) = attention_groups(kv_groups(spec, KVLayout(block_size=16), "bfloat16"))
    assert group.part_bytes == (16 * (64 + 16) * 2, 0)
    assert group.block_bytes == len(spec.layers) * 16 * (64 + 16) * 2


@pytest.mark.parametrize(
    ("fields", "own"),
    [
        ({}, range(78)),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, [0, 1, 2, *range(6, 78, 4)]),
        ({"index_topk_pattern": "FFSSFS" + "S" * 72}, [0, 1, 4]),
    ],
)
def test_which_layers_have_an_indexer(fields, own):
    config = tiny.SIZES | tiny.GLM_MOE_DSA | {"num_hidden_layers": 78, "indexer_types": None}
    config |= {"architectures": ["GlmMoeDsaForCausalLM"], "num_nextn_predict_layers": 1} | fields
    spec = spec_for(config, {}, ())
    indexers = [mixer.latent.indexer for mixer in spec.attentions]
    assert [i for i, indexer in enumerate(indexers) if indexer.own] == list(own)
    # All layers keep blocks alike, so that what one chose lies in the same place in the next.
    assert len(kv_groups(spec, KVLayout(block_size=16), "bfloat16")) == 1
    assert (spec.draft_head is None) == (77 not in own)
    with pytest.raises(CheckpointError, match="indexer_types is .*the first one 'full'"):
        spec_for({**config, "indexer_types": ["shared"] + ["full"] * 77}, {}, ())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index_topk": 2048}, "index_topk.*DeepSeek V3.2 is a DeepseekV32ForCausalLM"),
        (
            {"architectures": ["DeepseekV32ForCausalLM"], **tiny.INDEXED, "q_lora_rank": None},
            "Queries have no rank",
        ),
        ({"rope_interleave": False}, "rope_interleave is False; known is True"),
        ({"attention_bias": True}, "attention_bias is True; known is False"),
        ({"topk_method": "greedy"}, "topk_method is 'greedy'; known is 'noaux_tc'"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax'; known is 'sigmoid'"),
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2; known is 1"),
        (
            {"architectures": ["DeepseekV2ForCausalLM"], "norm_topk_prob": True},
            "norm_topk_prob is True; known is False",
        ),
    ],
)
def test_other_kinds_are_refused(changes, message):
    config = tiny.DEEPSEEK_V3 | tiny.SIZES | {"architectures": ["DeepseekV3ForCausalLM"]}
    with pytest.raises(UnsupportedModelError, match=message):
        spec_for({**config, **changes}, {}, ())
