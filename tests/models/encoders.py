"""Tiny random encoders made by transformers, and a pass over a ragged batch of texts."""

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    ModernBertModel,
    NomicBertConfig,
    NomicBertModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

from pagoda.layers.batch import ForwardBatch
from pagoda.models.base import Model

FAMILIES = {
    "bert": (BertConfig, BertModel),
    "bert classifier": (BertConfig, BertForSequenceClassification),
    "roberta": (RobertaConfig, RobertaModel),
    "roberta classifier": (RobertaConfig, RobertaForSequenceClassification),
    "xlm-roberta": (XLMRobertaConfig, XLMRobertaModel),
    "xlm-roberta classifier": (XLMRobertaConfig, XLMRobertaForSequenceClassification),
    "modernbert": (ModernBertConfig, ModernBertModel),
    "modernbert classifier": (ModernBertConfig, ModernBertForSequenceClassification),
    "nomic": (NomicBertConfig, NomicBertModel),
    "embeddinggemma": (Gemma3TextConfig, Gemma3TextModel),
}
SIZES = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 130,
}


# Ids of special tokens within the small vocabulary; windows that texts are longer than.
_NEAR = {
    "local_attention": 16, "pad_token_id": 0, "bos_token_id": 1, "cls_token_id": 1,
    "eos_token_id": 2, "sep_token_id": 2,
}  # fmt: skip
# The sixth layer sees all, the others 12 tokens either way.
_GEMMA = {
    "use_bidirectional_attention": True, "num_hidden_layers": 7, "num_key_value_heads": 2,
    "head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 16, "pad_token_id": 0,
}  # fmt: skip


def make(family: str, seed: int = 0, **changes) -> PreTrainedModel:
    """A model with weights large enough that attention is far from uniform, in fp32."""
    config_class, model_class = FAMILIES[family]
    torch.manual_seed(seed)
    sizes = {**SIZES, "num_hidden_layers": 4} | _NEAR if "modern" in family else SIZES
    sizes = SIZES | _GEMMA if family == "embeddinggemma" else sizes
    model = model_class(config_class(**{**sizes, **changes})).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Norms and biases too: fresh ones are constants and would hide a mix-up.
            one = name.lower().endswith("norm.weight") and family != "embeddinggemma"
            base = 1.0 if one else 0.0
            weight.copy_(base + 0.15 * torch.randn(weight.shape))
    return model


@torch.inference_mode()
def hidden_states(
    model: Model,
    texts: list[list[int]],
    types: list[list[int]] | None = None,
    carried: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Each text's hidden states [tokens, hidden], all texts in one batch; `carried` is what the
    stage before gave for them."""
    flat = [id for ids in types or [] for id in ids]
    with torch.device(model.context.device):
        lens = torch.tensor([len(ids) for ids in texts], dtype=torch.int32)
        token_ids = torch.tensor([id for ids in texts for id in ids])
        batch = ForwardBatch(
            token_ids=token_ids,
            positions=torch.cat([torch.arange(len(ids)) for ids in texts]),
            query_start=torch.cat([torch.zeros(1, dtype=torch.int32), lens.cumsum(0).int()]),
            kv_lens=lens,
            max_query_len=int(lens.max()),
            max_kv_len=int(lens.max()),
            groups=[],
            layer_group=[],
            kv_caches=[],
            token_types=torch.tensor(flat) if flat else torch.zeros_like(token_ids),
            carried=carried,
        )
    return list(model(batch).cpu().split(lens.tolist()))
