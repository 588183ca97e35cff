"""Models that are a config.json alone, and machines to plan them for."""

import json
from pathlib import Path
from typing import Any

from pagoda.base.facts import DeviceFacts
from pagoda.config.engine import EngineConfig, ModelConfig
from pagoda.doctor.machine.hardware import Hardware
from pagoda.doctor.subject import Subject, find_subject

GIB = 1 << 30
PACKED = frozenset(("BF16", "F16", "F32", "Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0", "MXFP4"))

_COMMON = {"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16"}
LLAMA: dict[str, Any] = {
    **_COMMON, "architectures": ["LlamaForCausalLM"], "hidden_size": 2048,
    "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
    "num_key_value_heads": 4, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_MOE: dict[str, Any] = {
    **_COMMON, "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "head_dim": 128,
    "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768, "norm_topk_prob": True, "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    **_COMMON, "architectures": ["GptOssForCausalLM"], "hidden_size": 2880, "head_dim": 64,
    "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 201088, "num_local_experts": 32,
    "num_experts_per_tok": 4, "sliding_window": 128, "attention_bias": True,
    "tie_word_embeddings": False, "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
QWEN3_5: dict[str, Any] = {
    **_COMMON, "architectures": ["Qwen3_5ForCausalLM"], "hidden_size": 5120, "head_dim": 256,
    "intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 24,
    "num_key_value_heads": 4, "vocab_size": 248320, "linear_num_key_heads": 16,
    "linear_num_value_heads": 48, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "mtp_num_hidden_layers": 1, "tie_word_embeddings": False,
}  # fmt: skip


def subject_of(folder: Path, config: dict[str, Any], **model: Any) -> Subject:
    (folder / "config.json").write_text(json.dumps(config))
    return find_subject(ModelConfig(str(folder), **model))


def box(total: float = 24, free: float | None = None, packed: bool = True) -> Hardware:
    """A CPU with so many GiB."""
    facts = DeviceFacts(
        "cpu", int(total * GIB), int((total if free is None else free) * GIB), 8,
        name="Toaster 3000", packed_storages=PACKED if packed else frozenset(),
    )  # fmt: skip
    return Hardware(facts, 1, here=True)


def asked(subject: Subject, **model: Any) -> EngineConfig:
    return EngineConfig(model=ModelConfig(subject.ref, **model))
