"""Values of flags that Pagoda shares with others, and that only they know."""

from pagoda.config import compat_facts as facts
from pagoda.config.compat_row import Fact

_SMALLEST_CACHE = (
    "int8",
    Fact("int8 is taken, with a scale per token and head", has=("--kv-cache-dtype",)),
)
_OWN_READER = ("auto", Fact("Pagoda has its own reader", has=("pagoda.weights.safetensors",)))
_UNREAD = (
    None,
    Fact(
        "only safetensors and GGUF are read",
        has=("pagoda.weights.safetensors", "pagoda.weights.gguf.checkpoint"),
        lacks=("pickle", "npcache", "tensorizer", "sharded_state"),
    ),
)
_SMALL_CACHE_TYPES = (
    "fp8_inc", "fp8_ds_mla", "fp8_per_token_head",
    "int4_per_token_head", "nvfp4", "nvfp4_4over6", "nvfp4_ds_mla",
    "ultraquant_4bit",
)  # fmt: skip
_OTHER_READERS = (
    "runai_streamer",
    "fastsafetensors",
    "instanttensor",
    "hf",
    "mistral",
    "bitsandbytes",
)
_OTHER_FILES = ("pt", "npcache", "tensorizer", "sharded_state")

_OWN_RANKS = (
    "mp", Fact("each rank is a process of its own", has=("pagoda.engine.ranks.main",))
)  # fmt: skip
_TEMPLATE_DECIDES = (
    "auto",
    Fact(
        "the chat template decides, and what shows no family stays text",
        has=("pagoda.text.parsers.select",),
        lacks=("xlam",),
    ),
)
_OTHER_PARSERS = (
    "apertus", "deepseek_v41", "dots", "functiongemma",
    "gigachat3", "granite-20b-fc", "granite_thinking_parser",
    "hf", "holo2", "hy_v3", "hy_v4", "inkling", "internlm", "jamba", "k2_horizon",
    "kimi_k3", "ling3", "llama4_pythonic", "longcat", "mimo", "minicpm5",
    "minicpmv", "minimax_m2_append_think", "minimax_m3", "muse_glimmer", "olmo3",
    "phi4_mini_json", "plamo3", "poolside_v1", "pythonic", "step3", "xlam",
)  # fmt: skip

FOREIGN_VALUES: dict[str, dict[str, tuple[str | None, Fact]]] = {
    "kv_cache_dtype": dict.fromkeys(_SMALL_CACHE_TYPES, _SMALLEST_CACHE),
    "load_format": dict.fromkeys(_OTHER_READERS, _OWN_READER)
    | dict.fromkeys(_OTHER_FILES, _UNREAD),
    "reasoning_parser": dict.fromkeys(_OTHER_PARSERS, _TEMPLATE_DECIDES),
    "tool_call_parser": dict.fromkeys(_OTHER_PARSERS, _TEMPLATE_DECIDES),
    "distributed_executor_backend": dict.fromkeys(("uni", "external_launcher"), _OWN_RANKS),
    "task": {
        "reward": (None, facts.VECTORS),
        "transcription": (
            None, Fact("a model of sounds writes them down anyway",
                       has=("/v1/audio/transcriptions",))
        ),
        "draft": (None, facts.DRAFT_TASK),
    },
    "pooling": {
        "none": (None, Fact("ask /pooling for `task` token_embed: a vector for each token",
                            has=("/pooling", "task"))),
    },
    "log_level": {
        "critical": ("error", Fact("no level is above error", lacks=("critical",))),
        "trace": ("debug", Fact("no level is below debug", lacks=("trace",))),
    },
}  # fmt: skip
"""Values of Pagoda's own flags that only others know: (what is taken instead, why);
None refuses."""

QUANTIZATION_IN_CHECKPOINT = frozenset((
    "awq", "awq_marlin", "auto_awq", "gptq", "gptq_marlin", "auto_gptq", "compressed-tensors",
    "gguf", "mxfp4", "modelopt", "modelopt_fp4", "quark", "torchao", "auto-round", "inc",
    "fbgemm_fp8", "bitsandbytes",
))  # fmt: skip
"""`--quantization` values that only repeat what the checkpoint says."""

QUANTIZATION_AT_LOAD = ("none", "fp8", "int8", "int4")
"""`--quantization` values of Pagoda's own."""
