"""The default model as transformers computes it, on weights that the gguf package expands.

Nothing of Pagoda takes part, so that its answers can be held against these.
"""

from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def load_reference(path: Path) -> LlamaForCausalLM:
    """A Llama GGUF as a transformers model in fp32."""
    reader = gguf.GGUFReader(path)

    def value(key: str):
        return reader.fields[f"llama.{key}"].contents()

    heads, kv_heads = value("attention.head_count"), value("attention.head_count_kv")
    state = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type)))
        name = _name(tensor.name)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = _halves(weight, heads if "q_proj" in name else kv_heads)
        state[name] = weight
    config = LlamaConfig(
        vocab_size=state["model.embed_tokens.weight"].shape[0],
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=value("context_length"),
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base")},
        tie_word_embeddings="lm_head.weight" not in state,
    )
    model = LlamaForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    return model


def _name(gguf_name: str) -> str:
    parts = gguf_name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}"
    return f"{_TOP[parts[0]]}.{parts[1]}"


def _halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp interleaves rotary pairs of its llama models; transformers keeps two halves."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


@torch.inference_mode()
def logits_after(model: LlamaForCausalLM, prompt: list[int], output: list[int]) -> torch.Tensor:
    """fp32 [len(output), vocab]: what the model says before each output token."""
    ids = torch.tensor([prompt + output[:-1]])
    return model(ids).logits[0, len(prompt) - 1 :]
