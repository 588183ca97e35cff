"""GLM-4.5 and 4.6 (arXiv 2508.06471), DeepSeek V3 (arXiv 2412.19437).

The layer is Llama's; the kind of attention, experts and dense layers come from the spec.
"""

from pagoda.models.base import CausalLM
from pagoda.models.llama import LlamaLayer
from pagoda.models.mtp import MtpHead


class Glm4MoeForCausalLM(CausalLM):
    layer_class = LlamaLayer
    draft_head_class = MtpHead
