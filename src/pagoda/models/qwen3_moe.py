"""Qwen3 as a mixture of experts (arXiv 2505.09388).

The layer is Llama's; that q and k are normalized per head, and where experts stand for the
feed-forward part, comes from the spec.
"""

from pagoda.models.base import CausalLM
from pagoda.models.eagle3 import Eagle3Head
from pagoda.models.llama import LlamaLayer


class Qwen3MoeForCausalLM(CausalLM):
    layer_class = LlamaLayer
    draft_head_class = Eagle3Head
