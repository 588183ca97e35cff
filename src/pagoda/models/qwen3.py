"""Qwen3, dense (arXiv 2505.09388).

The layer is Llama's; that q and k are normalized per head comes from the spec.
"""

from pagoda.models.base import CausalLM
from pagoda.models.eagle3 import Eagle3Head
from pagoda.models.llama import LlamaLayer


class Qwen3ForCausalLM(CausalLM):
    layer_class = LlamaLayer
    draft_head_class = Eagle3Head
