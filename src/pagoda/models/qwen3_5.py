"""Qwen3.5 and 3.6, dense: gated delta nets (arXiv 2412.06464) between layers of gated attention."""

from pagoda.models.base import CausalLM
from pagoda.models.hybrid import HybridLayer
from pagoda.models.mtp import MtpHead
from pagoda.models.seeing import SeeingLlama


class Qwen35ForCausalLM(CausalLM):
    layer_class = HybridLayer
    draft_head_class = MtpHead


class Qwen35(SeeingLlama):
    """With its vision tower."""

    layer_class = HybridLayer
    draft_head_class = MtpHead
