"""Models from GGUF files equal transformers on the weights that the gguf package decodes."""

import pytest
import torch

from tests.models import tiny, tiny_gguf
from tests.models.driver import Driver
from tests.models.test_transformers import LLAMA3, LONGROPE, MULTIPLIERS, YARN
from tests.models.tiny_gguf import Storage

# Of the values of all heads together.
WHOLE_BLOCKS = {"v_head_dim": 16}
MODELS = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama head_dim": ("llama", {"head_dim": 32}),
    "llama 3": ("llama", {"rope_parameters": LLAMA3}),
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "llama linear": (
        "llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}},
    ),
    "mixtral": ("mixtral", tiny.MIXTRAL),
    "ministral 3": ("ministral3", tiny.MINISTRAL3),
    # llama.cpp has the published models' chunks and scaling alone.
    "llama 4": (
        "llama4",
        {
            **tiny.LLAMA4, "attention_chunk_size": 8192, "floor_scale": 8192,
            "interleave_moe_layer_step": 2,
        },
    ),
    "smollm3": ("smollm3", {"num_hidden_layers": 5}),
    "phi3": (
        "phi3",
        {
            "sliding_window": 40,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
            },
        },
    ),
    "phi3 longrope": (
        "phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
    ),
    "granite": ("granite", MULTIPLIERS),
    "granite moe": ("granite_moe", tiny.GRANITE_MOE),
    "granite moe with a shared expert": (
        "granite_moe_shared", {**tiny.GRANITE_MOE, "shared_intermediate_size": 64},
    ),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3 moe": ("qwen3_moe", tiny.QWEN3_MOE),
    "gemma 2": ("gemma2", tiny.GEMMA2),
    # llama.cpp's converter does not say which layers have a window: every sixth has none.
    "gemma 3": (
        "gemma3",
        {**tiny.GEMMA3, "num_hidden_layers": 7, "layer_types": None, "query_pre_attn_scalar": 16},
    ),
    "gemma 3n": ("gemma3n", tiny.GEMMA3N),
    "gemma 4": ("gemma4", tiny.GEMMA4),
    "gemma 4 moe": ("gemma4", tiny.GEMMA4_MOE),
    "gemma 4 e": ("gemma4_e", tiny.GEMMA4_E),
    "olmo 2": ("olmo2", {}),
    "olmo 3": ("olmo3", tiny.OLMO3),
    "minimax m2": ("minimax_m2", tiny.MINIMAX_M2),
    "hunyuan": ("hunyuan", {**tiny.HUNYUAN, "tie_word_embeddings": True}),
    "hunyuan moe": ("hunyuan_moe", tiny.HUNYUAN_MOE),
    "ernie 4.5": ("ernie4_5", {"head_dim": 32, "pad_token_id": 0}),
    # The converter takes the shared experts' size from others.
    "ernie 4.5 moe": (
        "ernie4_5_moe", {**tiny.ERNIE4_5_MOE, "moe_intermediate_size": 32, "intermediate_size": 128}
    ),
    "glm-4": ("glm4", {"head_dim": 32}),
    "glm-4.5": ("glm4_moe", {**tiny.GLM4_MOE, "use_qk_norm": True}),
    "deepseek v2": ("deepseek_v2", {**tiny.DEEPSEEK_V2, **WHOLE_BLOCKS}),
    "deepseek v2 lite": ("deepseek_v2", {**tiny.V2_LITE, **WHOLE_BLOCKS}),
    "deepseek v3": ("deepseek_v3", {**tiny.DEEPSEEK_V3, **WHOLE_BLOCKS}),
    "glm-4.7-flash": ("glm4_moe_lite", {**tiny.GLM4_MOE_LITE, **WHOLE_BLOCKS}),
    "deepseek v3.2": ("deepseek_v32", {**tiny.DEEPSEEK_V32, **WHOLE_BLOCKS}),
    "glm-5.2": ("glm_moe_dsa", {**tiny.GLM_MOE_DSA, **WHOLE_BLOCKS}),
    "youtu": ("youtu", {**tiny.LATENT, **WHOLE_BLOCKS, "tie_word_embeddings": True}),
    "command r7b": ("cohere2", {**tiny.COHERE2, "tie_word_embeddings": True}),
    "seed-oss": ("seed_oss", {"head_dim": 32}),
    # llama.cpp has the clamp of the published models alone.
    "gpt-oss": ("gpt_oss", {**tiny.GPT_OSS, "swiglu_limit": 7.0}),
}  # fmt: skip


def _check(reference, path) -> None:
    ids = tiny.random_ids(90)
    logits = Driver(tiny.load(path)).run(ids, chunk=32)
    torch.testing.assert_close(logits, tiny.reference_logits(reference, ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize(
    "storage", ["F32", pytest.param("Q8_0", marks=pytest.mark.exhaustive), "Q4_1"]
)
def test_logits_equal(case: str, storage: str, tmp_path):
    family, changes = MODELS[case]
    reference = tiny.make(family, **changes)
    path = tmp_path / "model.gguf"
    tiny_gguf.write(path, reference, lambda name: Storage[storage])
    _check(reference, path)


def test_shards_of_a_merged_layer_may_differ_in_storage(tmp_path):
    kinds = {"attn_q": "Q4_0", "attn_k": "F16", "attn_v": "Q5_1", "ffn_up": "Q8_0"}
    reference = tiny.make("llama")
    path = tmp_path / "model.gguf"
    tiny_gguf.write(path, reference, lambda name: Storage[kinds.get(name.split(".")[-2], "BF16")])
    _check(reference, path)


def test_older_files_have_a_tensor_for_each_expert(tmp_path):
    reference = tiny.make("mixtral", **tiny.MIXTRAL)
    path = tmp_path / "model.gguf"
    tiny_gguf.write(path, reference, lambda name: Storage.Q8_0, stacked=False)
    _check(reference, path)


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3"])
@pytest.mark.parametrize("storage", ["F32", "BF16", "Q8_0"])
def test_older_files_have_one_matrix_for_latent_keys_and_values(family, storage, tmp_path):
    sizes = tiny.V2_LITE if family == "deepseek_v2" else tiny.DEEPSEEK_V3
    reference = tiny.make(family, **{**sizes, **WHOLE_BLOCKS})
    path = tmp_path / "model.gguf"
    tiny_gguf.write(path, reference, lambda name: Storage[storage], joined=True)
    _check(reference, path)
