"""gpt-oss (arXiv 2508.10925): 20b and 120b.

The layer is Llama's; sinks, windows, biases and clamped experts come from the spec.
"""

from pagoda.models.base import CausalLM
from pagoda.models.llama import LlamaLayer


class GptOssForCausalLM(CausalLM):
    layer_class = LlamaLayer
