"""Which class wires which architecture."""

from pagoda.base.registry import Registry

MODELS = Registry(
    "architecture",
    {
        "LlamaForCausalLM": "pagoda.models.llama:LlamaForCausalLM",
        "MistralForCausalLM": "pagoda.models.llama:LlamaForCausalLM",
        "MixtralForCausalLM": "pagoda.models.llama:LlamaForCausalLM",
        "Mistral3ForConditionalGeneration": "pagoda.models.llama:LlamaForCausalLM",
        "Ministral3ForCausalLM": "pagoda.models.llama:LlamaForCausalLM",
        "Llama4ForCausalLM": "pagoda.models.llama:LlamaForCausalLM",
        "Llama4ForConditionalGeneration": "pagoda.models.llama:LlamaForCausalLM",
        "SmolLM3ForCausalLM": "pagoda.models.llama:LlamaForCausalLM",
        "Phi3ForCausalLM": "pagoda.models.llama:LlamaForCausalLM",
        "GraniteForCausalLM": "pagoda.models.llama:LlamaForCausalLM",
        "GraniteMoeHybridForCausalLM": "pagoda.models.llama:LlamaForCausalLM",
        "Qwen2ForCausalLM": "pagoda.models.qwen2:Qwen2ForCausalLM",
        "Qwen3ForCausalLM": "pagoda.models.qwen3:Qwen3ForCausalLM",
        "Qwen3VLForConditionalGeneration": "pagoda.models.qwen3_vl:Qwen3VL",
        "Qwen3VLMoeForConditionalGeneration": "pagoda.models.qwen3_vl:Qwen3VL",
        "Qwen3_5ForCausalLM": "pagoda.models.qwen3_5:Qwen35ForCausalLM",
        "Qwen3_5ForConditionalGeneration": "pagoda.models.qwen3_5:Qwen35",
        "Qwen3_5MoeForCausalLM": "pagoda.models.qwen3_5:Qwen35ForCausalLM",
        "Qwen3_5MoeForConditionalGeneration": "pagoda.models.qwen3_5:Qwen35",
        "Qwen3NextForCausalLM": "pagoda.models.qwen3_5:Qwen35ForCausalLM",
        "Qwen3MoeForCausalLM": "pagoda.models.qwen3_moe:Qwen3MoeForCausalLM",
        "GptOssForCausalLM": "pagoda.models.gpt_oss:GptOssForCausalLM",
        "Gemma4ForCausalLM": "pagoda.models.gemma4:Gemma4",
        "Gemma4ForConditionalGeneration": "pagoda.models.gemma4:Gemma4",
        "Olmo2ForCausalLM": "pagoda.models.olmo2:Olmo2ForCausalLM",
        "Olmo3ForCausalLM": "pagoda.models.olmo2:Olmo2ForCausalLM",
        "BertModel": "pagoda.models.bert:Bert",
        "BertForSequenceClassification": "pagoda.models.bert:Bert",
        "RobertaModel": "pagoda.models.bert:Bert",
        "RobertaForSequenceClassification": "pagoda.models.bert:Bert",
    },
)
