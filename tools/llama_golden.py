"""What llama.cpp makes of tiny models of every architecture, kept for tests/golden.

For each one transformers makes a random checkpoint, llama.cpp's own converter writes its GGUF in
F32, and llama-cpp-python reads a prompt from it. One file keeps the GGUF, the prompt and the logits
behind each of its tokens, so that the test needs none of these programs. All names, or those given:

    python -m tools.llama_golden [NAME...]

llama.cpp and its Python package are those that `python -m bench.peers` builds.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from bench.peers.environments import LLAMA
from bench.peers.llama_server import llama_cpp_sources

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "golden" / "llama_cpp"
LENGTH = 24
VOCABULARY = 96
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 500.0, "original_max_position_embeddings": 32,
    "short_factor": [1.0 + i / 8 for i in range(16)],
    "long_factor": [1.3**i for i in range(16)],
}  # fmt: skip
VISION = {
    "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "head_dim": 16, "image_size": 28,
}  # fmt: skip
HYBRID = {
    "num_hidden_layers": 4, "head_dim": 32, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
EXPERTS = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}  # fmt: skip
LFM2 = {
    "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "pad_token_id": 0,
    "block_auto_adjust_ff_dim": False, "tie_word_embeddings": True,
}  # fmt: skip
LFM2_MOE = {
    "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "pad_token_id": 0,
    "num_dense_layers": 1, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "tie_word_embeddings": True,
}  # fmt: skip
GEMMA2 = {
    "head_dim": 32, "num_hidden_layers": 3, "sliding_window": 8, "query_pre_attn_scalar": 32,
    "pad_token_id": 0, "tie_word_embeddings": True, "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 8.0,
}  # fmt: skip
# Every sixth layer has no window, which a GGUF does not say.
GEMMA3 = {
    "head_dim": 32, "num_hidden_layers": 7, "sliding_window": 8, "query_pre_attn_scalar": 32,
    "pad_token_id": 0, "tie_word_embeddings": True,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    },
}  # fmt: skip
GEMMA4 = {
    "head_dim": 32, "global_head_dim": 64, "num_global_key_value_heads": 1,
    "attention_k_eq_v": True, "num_hidden_layers": 3, "sliding_window": 8, "pad_token_id": 0,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "hidden_size_per_layer_input": 0, "final_logit_softcapping": 8.0, "tie_word_embeddings": True,
}  # fmt: skip
# llama.cpp knows by their places which layers borrow: those behind a window and a global one.
GEMMA4_E = {
    **GEMMA4, "attention_k_eq_v": False, "num_global_key_value_heads": None,
    "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": VOCABULARY,
    "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
}  # fmt: skip
# Name: transformers' class, and what the configuration of its language model has beside SIZES.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama-3": ("LlamaForCausalLM", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "mistral": ("MistralForCausalLM", {"sliding_window": None, "head_dim": 64}),
    "mixtral": (
        "MixtralForCausalLM",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    ),
    "mistral3": (
        "Mistral3ForConditionalGeneration",
        {"model_type": "mistral", "sliding_window": None, "head_dim": 32},
    ),
    "ministral3": (
        "Mistral3ForConditionalGeneration",
        {
            "model_type": "ministral3", "sliding_window": None, "head_dim": 32,
            "rope_parameters": {
                **YARN, "factor": 16.0, "original_max_position_embeddings": 8, "mscale": 1.0,
                "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
            },
        },
    ),
    # With llama.cpp's own chunks of 8192 tokens.
    "llama4": (
        "Llama4ForCausalLM",
        {
            "num_hidden_layers": 4, "head_dim": 32, "num_local_experts": 16,
            "intermediate_size": 32, "intermediate_size_mlp": 64, "interleave_moe_layer_step": 2,
        },
    ),
    "smollm3": ("SmolLM3ForCausalLM", {"num_hidden_layers": 5}),
    "phi3": (
        "Phi3ForCausalLM",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32},
    ),
    "granite": (
        "GraniteForCausalLM",
        {
            "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
            "attention_multiplier": 0.25, "logits_scaling": 1.6,
        },
    ),
    "granitemoe": (
        "GraniteMoeForCausalLM",
        {
            "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32,
            "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
            "attention_multiplier": 0.25, "logits_scaling": 1.6,
        },
    ),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen2-yarn": ("Qwen2ForCausalLM", {"rope_parameters": YARN}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 64}),
    "qwen3moe": (
        "Qwen3MoeForCausalLM",
        {
            "head_dim": 32, "num_experts": 6, "num_experts_per_tok": 2,
            "moe_intermediate_size": 32, "norm_topk_prob": True,
        },
    ),
    "qwen35": ("Qwen3_5ForCausalLM", HYBRID),
    "qwen35moe": ("Qwen3_5MoeForCausalLM", {**HYBRID, **EXPERTS}),
    "qwen3next": ("Qwen3NextForCausalLM", {**HYBRID, **EXPERTS}),
    "lfm2": ("Lfm2ForCausalLM", LFM2),
    "lfm2moe": ("Lfm2MoeForCausalLM", LFM2_MOE),
    "gemma2": ("Gemma2ForCausalLM", GEMMA2),
    "gemma3": ("Gemma3ForCausalLM", GEMMA3),
    "gemma4": ("Gemma4ForCausalLM", GEMMA4),
    "gemma4e": ("Gemma4ForCausalLM", GEMMA4_E),
    "gemma4moe": (
        "Gemma4ForCausalLM",
        {
            **GEMMA4, "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2,
            "moe_intermediate_size": 32,
        },
    ),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "olmo3": (
        "Olmo3ForCausalLM",
        {
            "num_hidden_layers": 4, "sliding_window": 8,
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
    "minimax-m2": (
        "MiniMaxM2ForCausalLM",
        {
            "num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 32, "rotary_dim": 16,
            "scoring_func": "sigmoid",
        },
    ),
    "ernie4_5": ("Ernie4_5ForCausalLM", {"head_dim": 32, "pad_token_id": 0}),
    "ernie4_5-moe": (
        "Ernie4_5_MoeForCausalLM",
        {
            "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 32, "pad_token_id": 0,
            "moe_num_shared_experts": 2,
        },
    ),
    "glm4": ("Glm4ForCausalLM", {"head_dim": 32}),
    "glm4moe": (
        "Glm4MoeForCausalLM",
        {
            "head_dim": 32, "n_routed_experts": 6, "num_experts_per_tok": 2,
            "moe_intermediate_size": 32, "first_k_dense_replace": 1, "attention_bias": True,
            "use_qk_norm": True, "routed_scaling_factor": 1.5, "num_nextn_predict_layers": 0,
        },
    ),
    "cohere2": (
        "Cohere2ForCausalLM",
        {
            "num_hidden_layers": 4, "sliding_window": 8, "logit_scale": 0.5, "rotary_pct": 1.0,
            "tie_word_embeddings": True, "pad_token_id": 0,
        },
    ),
    "seed-oss": ("SeedOssForCausalLM", {"head_dim": 32}),
    "gpt-oss": (
        "GptOssForCausalLM",
        {
            "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2,
            "intermediate_size": 32, "sliding_window": 8,
            # Without its YaRN: llama.cpp rounds the ends of the ramp, which gpt-oss does not.
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
}  # fmt: skip

# Models whose norms add 1 to their weights.
DIFFER_FROM_1 = ("Gemma2ForCausalLM", "Gemma3ForCausalLM")
# The prompt comes as ids, so any tokenizer does: one kind for all, and a name for how it splits
# words that the converter need not guess.
CONVERT = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
import convert_hf_to_gguf
from conversion.base import TextModel
from conversion.gemma import Gemma4Model
from conversion.glm import Glm4Model
TextModel._set_vocab_sentencepiece = TextModel._set_vocab_gpt2
Gemma4Model.set_vocab = Glm4Model.set_vocab = TextModel._set_vocab_gpt2
TextModel._set_vocab_glm = TextModel._set_vocab_gpt2
TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
options = ["--outtype", "f32", *sys.argv[4:]]
sys.argv = ["convert", sys.argv[2], "--outfile", sys.argv[3], *options]
convert_hf_to_gguf.main()
"""
# The cache is F32, too: what is left of llama.cpp's rounding is that of its sums.
READ = """
import json, sys
import numpy as np
from llama_cpp import Llama
path, ids, out = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
llm = Llama(
    path, n_ctx=128, n_threads=1, logits_all=True, flash_attn=False, type_k=0, type_v=0,
    verbose=True,
)
llm.eval(ids)
np.save(out, np.array(llm.scores[: len(ids)], np.float32))
"""


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            _make(name, Path(folder))


def _make(name: str, folder: Path) -> None:
    architecture, changes = MODELS[name]
    checkpoint, gguf, logits = folder / "hf", folder / "model.gguf", folder / "logits.npy"
    _write_checkpoint(checkpoint, architecture, changes)
    options = ["--no-mtp"] if architecture.startswith(("Qwen3_5", "Qwen3Next")) else []
    _run([sys.executable, "-c", CONVERT, llama_cpp_sources(), checkpoint, gguf, *options])
    ids = np.random.RandomState(1).randint(VOCABULARY, size=LENGTH)
    _run([LLAMA.ready(), "-c", READ, gguf, json.dumps(ids.tolist()), logits])
    target = FOLDER / f"{name}.npz"
    np.savez_compressed(target, gguf=np.fromfile(gguf, np.uint8), ids=ids, logits=np.load(logits))
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size:,} bytes")


def _write_checkpoint(folder: Path, architecture: str, changes: dict[str, Any]) -> None:
    """Weights are eighths, so that the file compresses."""
    model_class = getattr(transformers, architecture)
    config = {**SIZES, **changes}
    if architecture.endswith("ForConditionalGeneration"):
        config = {"text_config": config, "vision_config": VISION, "tie_word_embeddings": False}
    model = model_class(model_class.config_class(**config))
    chance = np.random.RandomState(0)
    base = 0.0 if architecture in DIFFER_FROM_1 else 1.0
    with torch.no_grad():
        for name, weight in model.named_parameters():
            values = np.round(chance.standard_normal(weight.shape) * 1.2) / 8
            weight.copy_(torch.from_numpy(values) + (base if "norm" in name else 0.0))
        for name, number in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                number.copy_(torch.from_numpy(chance.randint(-2, 3, number.shape) / 8))
            if name.endswith("layer_scalar"):
                number.copy_(torch.tensor(chance.randint(4, 12) / 8))
    model.save_pretrained(folder)
    _write_tokenizer(folder)


def _write_tokenizer(folder: Path) -> None:
    """Single characters and, since llama.cpp wants some merge, one pair."""
    specials = ["<unk>", "<s>", "</s>"]
    alphabet = sorted({*pre_tokenizers.ByteLevel.alphabet()} - {"Ċ"})
    letters = ["Ċ", "ab", *alphabet[: VOCABULARY - len(specials) - 2]]
    vocabulary = {piece: i for i, piece in enumerate([*specials, *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(specials)
    tokenizer.save(str(folder / "tokenizer.json"))
    # Phi-3's converter goes by this name.
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    config = {"tokenizer_class": "GPT2Tokenizer", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _run(command: list[Any]) -> None:
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


if __name__ == "__main__":
    main()
