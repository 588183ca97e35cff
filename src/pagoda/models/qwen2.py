"""Qwen2 and Qwen2.5, dense (arXiv 2407.10671, 2412.15115).

The layer is Llama's; the biases on q, k and v and the sliding windows come from the spec.
"""

from pagoda.models.base import CausalLM
from pagoda.models.llama import LlamaLayer


class Qwen2ForCausalLM(CausalLM):
    layer_class = LlamaLayer
