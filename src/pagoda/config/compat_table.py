"""Flags of vLLM and llama-server that mean nothing here, or nothing yet, and what is said of each.

Columns: spellings; what the flag takes (`-` nothing, `v` a value, `?` perhaps a value, `*` several,
`j` JSON); effect; the reason; values that need no word, because they ask for what happens anyway.
Effects: `none`, it would change nothing; `later`, Pagoda serves without it and says so;
`refused`, serving without it would not be what was asked for.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Compat:
    flags: str
    takes: Literal["-", "v", "?", "*", "j"]
    effect: Literal["none", "later", "refused"]
    why: str
    quiet: tuple[str, ...] = ()


_ONE_DEVICE = "only --tensor-parallel-size spreads a model over devices"
_ONE_PROCESS = "one server process answers all requests"
_NO_COMPILER = "nothing is compiled at start"
_PARSER = "which parser a model needs is read from its chat template"
_HEAD = "a request line and its headers may have 16 KiB"
_MEDIA = "of media, images and videos are served, by data URL or from public hosts"
_SPECULATION = "tokens are decoded one by one"
_LORA = "adapters are not served"
_SAMPLING = "send it in the request, or give --override-generation-config JSON"
_KERNELS = "kernels are chosen by device and format"
_OFFLOAD = "give --cpu-offload-gb, --n-cpu-moe or --n-gpu-layers"
_STATE = "no model with recurrent state is served"
_DISAGGREGATION = "a request is served by one engine"
_PRELOADED = "weights are mapped from the file and copied once"

_SERVER = (
    Compat("--ssl-ciphers", "v", "refused", "the system's own choice of ciphers is used"),
    Compat("--enable-ssl-refresh", "-", "later", "a new certificate is read at the next start"),
    Compat("--middleware", "*", "refused", "no code from outside is loaded"),
    Compat("--disable-fastapi-docs", "-", "later", "/docs and /openapi.json are served"),
    Compat("--enable-offline-docs", "-", "none", "/docs needs no switch"),
    Compat("--enable-request-id-headers", "-", "none", "replies always carry X-Request-Id"),
    Compat("--api-server-count -asc", "v", "none", _ONE_PROCESS, ("1",)),
    Compat("--headless", "-", "refused", _DISAGGREGATION),
    Compat("--grpc", "-", "refused", "the API is HTTP"),
    Compat("--disable-frontend-multiprocessing", "-", "none", "the engine has its own process"),
    Compat("--enable-server-load-tracking", "-", "none", "/load always counts"),
    Compat("--enable-tokenizer-info-endpoint", "-", "later", "/tokenizer_info is not served"),
    Compat("--h11-max-incomplete-event-size", "v", "none", _HEAD),
    Compat("--h11-max-header-count", "v", "none", _HEAD),
    Compat("--threads-http", "v", "none", _ONE_PROCESS),
    Compat("--timeout -to", "v", "none", "a slow reply is never cut off"),
    Compat("--webui --ui", "-", "later", "no web page is served"),
    Compat("--path", "v", "later", "no web page is served"),
    Compat("--api-key-file", "v", "refused", "give --api-key or the variable PAGODA_API_KEY"),
    Compat("--metrics", "-", "none", "/metrics is always served"),
    Compat("--props", "-", "none", "settings are not changed over HTTP"),
    Compat("--slots", "-", "none", "requests share one batch"),
    Compat("--slot-save-path", "v", "later", "--kv-disk FOLDER keeps all cached prefixes"),
    Compat("--enable-scale-out", "-", "refused", _DISAGGREGATION),
)

_CHAT = (
    Compat("--enable-auto-tool-choice", "-", "none", "models may always call their tools"),
    Compat("--tool-parser-plugin", "v", "refused", "no code from outside is loaded"),
    Compat("--tool-strict-level", "v", "later", "arguments are not constrained", ("auto",)),
    Compat("--tool-server", "v", "later", "no tools are called by the server"),
    Compat("--reasoning-parser-plugin", "v", "refused", "no code from outside is loaded"),
    Compat("--enable-reasoning", "-", "none", _PARSER),
    Compat("--reasoning-config", "j", "later", _PARSER),
    Compat("--reasoning-format", "v", "later", _PARSER, ("auto",)),
    Compat("--reasoning-budget", "v", "later", "thought is not limited", ("-1",)),
    Compat("--structured-outputs-config", "j", "none", "llguidance enforces it, with no settings"),
    Compat("--guided-decoding-backend", "v", "none", "llguidance enforces structured output"),
    Compat(
        "--default-chat-template-kwargs --chat-template-kwargs", "j", "refused",
        "send chat_template_kwargs with each request",
    ),
    Compat("--trust-request-chat-template", "-", "later", "requests cannot bring a template"),
    Compat("--trust-request-mm-kwargs", "-", "later", _MEDIA),
    Compat("--response-role", "v", "later", "replies come from the assistant", ("assistant",)),
    Compat("--enable-prompt-tokens-details", "-", "none", "usage always has cached_tokens"),
    Compat("--enable-force-include-usage", "-", "later", "ask with stream_options.include_usage"),
    Compat("--enable-per-request-metrics", "-", "later", "/metrics has the totals"),
    Compat("--fingerprint-mode", "v", "none", "replies name version and model"),
    Compat("--return-tokens-as-token-ids", "-", "later", "ask with return_token_ids"),
    Compat("--jinja", "-", "none", "templates are always Jinja"),
    Compat("--mode", "v", "none", "Pagoda drafts no tokens yet", ("auto",)),
    Compat("--exclude-tools-when-tool-choice-none", "-", "later", "tools stay in the prompt"),
)  # fmt: skip

_MODEL = (
    Compat("--trust-remote-code", "-", "none", "no code from a checkpoint ever runs"),
    Compat("--tokenizer-mode", "v", "none", "the tokenizer is read from its files", ("auto",)),
    Compat("--tokenizer-revision", "v", "refused", "give --tokenizer a local folder"),
    Compat("--code-revision", "v", "none", "no code from a checkpoint ever runs"),
    Compat("--skip-tokenizer-init", "-", "refused", "the API needs the tokenizer"),
    Compat("--hf-token", "?", "refused", "set the variable HF_TOKEN"),
    Compat("--hf-overrides", "j", "refused", "edit config.json in a copy of the folder"),
    Compat("--hf-config-path", "v", "refused", "put config.json beside the weights"),
    Compat("--config-format", "v", "none", "the files say what they are"),
    Compat("--quantization-config", "j", "refused", "weights are used as the checkpoint has them"),
    Compat("--allow-deprecated-quantization", "-", "none", "formats are read from the checkpoint"),
    Compat("--logprobs-mode", "v", "refused", "logprobs are raw", ("raw_logprobs",)),
    Compat("--runner", "v", "refused", "models generate text", ("auto", "generate")),
    Compat("--task", "v", "refused", "models generate text", ("auto", "generate")),
    Compat("--convert", "v", "refused", "models generate text", ("auto", "none")),
    Compat("--embedding --embeddings", "-", "refused", "models generate text"),
    Compat("--reranking --rerank", "-", "refused", "models generate text"),
    Compat("--pooler-config", "j", "refused", "models generate text"),
    Compat("--pooling", "v", "refused", "models generate text"),
    Compat("--enable-sleep-mode", "-", "none", "/sleep is always there"),
    Compat("--model-impl", "v", "none", "Pagoda has its own models"),
    Compat("--logits-processors", "*", "refused", "no code from outside is loaded"),
    Compat("--logits-processor-pattern", "v", "refused", "no code from outside is loaded"),
    Compat("--enable-prompt-embeds", "-", "later", "prompts are text or token ids"),
    Compat("--rope-scaling", "v", "refused", "rope is read from the checkpoint"),
    Compat("--rope-theta", "v", "refused", "rope is read from the checkpoint"),
    Compat("--rope-freq-base", "v", "refused", "rope is read from the checkpoint"),
    Compat("--disable-sliding-window", "-", "refused", "windows are read from the checkpoint"),
    Compat("--disable-cascade-attn", "-", "none", _KERNELS),
    Compat("--safetensors-load-strategy", "v", "none", _PRELOADED),
    Compat("--model-loader-extra-config", "j", "none", _PRELOADED),
    Compat("--ignore-patterns", "*", "none", "only files of one format are fetched"),
    Compat("--use-tqdm-on-load", "-", "none", "progress is shown on a terminal"),
    Compat("--pt-load-map-location", "v", "none", "pickled weights are never read"),
    Compat("--mlock", "-", "later", "weights may be paged out"),
    Compat("--mmap", "-", "none", _PRELOADED),
    Compat("--hf-file -hff", "v", "refused", "write --model hf:org/name:file"),
    Compat("--model-url -mu", "v", "refused", "pull the file and give its path"),
    Compat("--offline", "-", "refused", "set the variable HF_HUB_OFFLINE=1"),
)

_PARALLEL = (
    Compat("--data-parallel-size -dp", "v", "refused", _ONE_DEVICE, ("1",)),
    Compat("--data-parallel-size-local -dpl", "v", "none", _ONE_DEVICE),
    Compat("--data-parallel-rank -dpn", "v", "none", _ONE_DEVICE),
    Compat("--data-parallel-start-rank -dpr", "v", "none", _ONE_DEVICE),
    Compat("--data-parallel-address -dpa", "v", "none", _ONE_DEVICE),
    Compat("--data-parallel-rpc-port -dpp", "v", "none", _ONE_DEVICE),
    Compat("--data-parallel-backend -dpb", "v", "none", _ONE_DEVICE),
    Compat("--data-parallel-hybrid-lb -dph", "-", "none", _ONE_DEVICE),
    Compat("--data-parallel-external-lb -dpe", "-", "none", _ONE_DEVICE),
    Compat("--decode-context-parallel-size -dcp", "v", "refused", _ONE_DEVICE, ("1",)),
    Compat("--prefill-context-parallel-size -pcp", "v", "refused", _ONE_DEVICE, ("1",)),
    Compat("--enable-expert-parallel -ep", "-", "none", "ranks always hold whole experts"),
    Compat("--all2all-backend", "v", "none", _ONE_DEVICE),
    Compat("--enable-eplb", "-", "none", _ONE_DEVICE),
    Compat("--eplb-config", "j", "none", _ONE_DEVICE),
    Compat("--enable-dbo", "-", "none", _ONE_DEVICE),
    Compat("--distributed-executor-backend", "v", "none", "each rank is a process of its own"),
    Compat(
        "--disable-custom-all-reduce", "-", "none", "ranks sum with NCCL or gloo; there is no other"
    ),
    Compat("--max-parallel-loading-workers", "v", "none", _ONE_DEVICE),
    Compat("--ray-workers-use-nsight", "-", "none", _ONE_DEVICE),
    Compat("--worker-use-ray", "-", "none", _ONE_DEVICE),
    Compat("--nnodes -n", "v", "refused", _ONE_DEVICE, ("1",)),
    Compat("--node-rank -r", "v", "refused", _ONE_DEVICE, ("0",)),
    Compat("--master-addr", "v", "none", _ONE_DEVICE),
    Compat("--master-port", "v", "none", _ONE_DEVICE),
    Compat("--numa-bind", "-", "none", "threads stay inside the process's affinity"),
    Compat("--numa", "v", "none", "threads stay inside the process's affinity"),
    Compat("--device-ids", "*", "refused", "set the variable CUDA_VISIBLE_DEVICES"),
    Compat("--worker-cls", "v", "refused", "no code from outside is loaded"),
    Compat("--worker-extension-cls", "v", "refused", "no code from outside is loaded"),
    Compat("--split-mode -sm", "v", "none", _ONE_DEVICE),
    Compat("--tensor-split -ts", "v", "none", _ONE_DEVICE),
    Compat("--main-gpu -mg", "v", "none", _ONE_DEVICE),
    Compat("--rpc", "v", "refused", _ONE_DEVICE),
)

_CACHE = (
    Compat("--kv-cache-dtype-skip-layers", "*", "none", "all layers cache one type"),
    Compat("--calculate-kv-scales", "-", "none", "the cache is not scaled"),
    Compat(
        "--prefix-caching-hash-algo", "v", "none", "blocks are hashed one way", ("sha256",)
    ),
    Compat("--prefix-match-unit", "v", "later", "prefixes match by whole blocks"),
    Compat("--mamba-cache-mode", "v", "none", _STATE),
    Compat("--mamba-cache-dtype", "v", "none", _STATE),
    Compat("--mamba-ssm-cache-dtype", "v", "none", _STATE),
    Compat("--mamba-block-size", "v", "none", _STATE),
    Compat("--mamba-backend", "v", "none", _STATE),
    Compat("--kv-offloading-size", "v", "later", "KV blocks stay on the device"),
    Compat("--kv-offloading-backend", "v", "later", "KV blocks stay on the device"),
    Compat("--kv-sharing-fast-prefill", "-", "none", _KERNELS),
    Compat("--kv-cache-metrics", "-", "later", "/metrics has the totals"),
    Compat("--swap-space", "v", "none", "preempted requests are computed again"),
    Compat("--cpu-offload-params", "*", "later", _OFFLOAD),
    Compat("--offload-group-size", "v", "later", _OFFLOAD),
    Compat("--offload-num-in-group", "v", "later", _OFFLOAD),
    Compat("--offload-prefetch-step", "v", "later", _OFFLOAD),
    Compat("--offload-backend", "v", "later", _OFFLOAD),
    Compat("--override-tensor -ot", "v", "later", _OFFLOAD),
    Compat("--kv-offload", "-", "none", "the KV cache is on --device"),
    Compat("--cache-type-k -ctk", "v", "later", "give --kv-cache-dtype", ("f16", "bf16")),
    Compat("--cache-type-v -ctv", "v", "later", "give --kv-cache-dtype", ("f16", "bf16")),
    Compat("--cache-prompt", "-", "none", "--enable-prefix-caching decides"),
    Compat("--cache-reuse", "v", "later", "prefixes match from the start only", ("0",)),
    Compat("--cache-ram -cram", "v", "later", "KV blocks stay on the device"),
    Compat("--kv-unified -kvu", "-", "none", "all requests share one KV pool"),
    Compat("--context-shift", "-", "later", "a request ends when the context is full"),
    Compat("--swa-full", "-", "none", "the KV pool is sized by the planner"),
    Compat("--fit -fit", "?", "none", "the planner always fits"),
)  # fmt: skip

_SCHEDULER = (
    Compat("--max-num-partial-prefills", "v", "none", "every request may be split"),
    Compat("--max-long-partial-prefills", "v", "none", "every request may be split"),
    Compat("--long-prefill-token-threshold-adaptive", "-", "later", "the threshold is fixed"),
    Compat("--max-num-scheduled-tokens", "v", "none", "--max-num-batched-tokens limits a step"),
    Compat("--async-scheduling", "-", "none", "the engine decides"),
    Compat("--stream-interval", "v", "none", "tokens are sent as they come", ("1",)),
    Compat("--max-num-active-seqs", "v", "none", "--max-num-seqs limits what runs"),
    Compat("--watermark", "v", "none", "admission keeps its own reserve", ("0", "0.0")),
    Compat("--disable-hybrid-kv-cache-manager", "-", "none", "layers are grouped by kind"),
    Compat("--disable-chunked-mm-input", "-", "none", _MEDIA),
    Compat("--scheduler-cls", "v", "refused", "no code from outside is loaded"),
    Compat("--scheduler-reserve-full-isl", "-", "none", "admission keeps its own reserve"),
    Compat("--num-scheduler-steps", "v", "none", "every step is scheduled", ("1",)),
    Compat("--use-v2-block-manager", "-", "none", "there is one block manager"),
    Compat("--preemption-mode", "v", "none", "preempted requests are computed again"),
    Compat("--scheduler-delay-factor", "v", "none", "requests start at once"),
    Compat("--ubatch-size -ub", "v", "none", "--max-num-batched-tokens limits a step"),
    Compat("--cont-batching -cb", "-", "none", "batching is always continuous"),
    Compat("--threads-batch -tb", "v", "none", "--threads serves both"),
    Compat("--prio", "v", "none", "use nice"),
    Compat("--poll", "v", "none", "spinning is bounded"),
)

_MEDIA_FLAGS = (
    Compat("--language-model-only", "-", "none", _MEDIA),
    Compat("--media-io-kwargs", "j", "later", _MEDIA),
    Compat("--mm-processor-kwargs", "j", "later", _MEDIA),
    Compat("--mm-processor-cache-gb", "v", "later", _MEDIA),
    Compat("--mm-processor-cache-type", "v", "later", _MEDIA),
    Compat("--disable-mm-preprocessor-cache", "-", "none", _MEDIA),
    Compat("--mm-encoder-tp-mode", "v", "none", _ONE_DEVICE),
    Compat("--mm-encoder-attn-backend", "v", "none", _KERNELS),
    Compat("--interleave-mm-strings", "-", "later", _MEDIA),
    Compat("--skip-mm-profiling", "-", "none", _MEDIA),
    Compat("--video-pruning-rate", "v", "later", _MEDIA),
    Compat("--enable-mm-embeds", "-", "later", _MEDIA),
    Compat("--allowed-local-media-path", "v", "later", _MEDIA),
    Compat("--mmproj-url -mmu", "v", "later", _MEDIA),
    Compat("--mmproj-auto", "-", "later", _MEDIA),
    Compat("--mmproj-offload", "-", "later", _MEDIA),
    Compat("--image-min-tokens", "v", "later", _MEDIA),
    Compat("--media-path", "v", "later", _MEDIA),
)

_ADAPTERS = (
    Compat("--enable-lora", "-", "refused", _LORA),
    Compat("--lora-modules", "*", "refused", _LORA),
    Compat("--max-loras", "v", "later", _LORA),
    Compat("--max-lora-rank", "v", "later", _LORA),
    Compat("--max-cpu-loras", "v", "later", _LORA),
    Compat("--fully-sharded-loras", "-", "later", _LORA),
    Compat("--lora-target-modules", "*", "later", _LORA),
    Compat("--lora-extra-vocab-size", "v", "later", _LORA),
    Compat("--lora-dtype", "v", "later", _LORA),
    Compat("--default-mm-loras", "j", "refused", _LORA),
    Compat("--lora", "v", "refused", _LORA),
    Compat("--lora-scaled", "*", "refused", _LORA),
    Compat("--control-vector", "v", "refused", "control vectors are not applied"),
)

_KERNEL = (
    Compat("--compilation-config -cc", "j", "none", _NO_COMPILER),
    Compat("--cudagraph-capture-sizes", "*", "none", _NO_COMPILER),
    Compat("--max-cudagraph-capture-size", "v", "none", _NO_COMPILER),
    Compat("--max-seq-len-to-capture", "v", "none", _NO_COMPILER),
    Compat("--cuda-graph-sizes", "*", "none", _NO_COMPILER),
    Compat("--optimization-level", "v", "none", _NO_COMPILER),
    Compat("--performance-mode", "v", "none", "the scheduler has one mode", ("balanced",)),
    Compat("--attention-config", "j", "none", _KERNELS),
    Compat("--moe-backend", "v", "none", _KERNELS, ("auto",)),
    Compat("--linear-backend", "v", "none", _KERNELS, ("auto",)),
    Compat("--kernel-config", "j", "none", _KERNELS),
    Compat("--enable-flashinfer-autotune", "-", "none", _KERNELS),
    Compat("--flash-attn -fa", "?", "none", _KERNELS),
    Compat("--op-offload", "-", "none", _KERNELS),
    Compat("--repack", "-", "none", _KERNELS),
    Compat("--warmup", "-", "none", "the engine warms up before it is ready"),
)

_OTHER = (
    Compat("--speculative-config -sc", "j", "later", _SPECULATION),
    Compat("--speculative-model", "v", "later", _SPECULATION),
    Compat("--num-speculative-tokens", "v", "later", _SPECULATION),
    Compat("--spec-method", "v", "later", _SPECULATION),
    Compat("--spec-model", "v", "later", _SPECULATION),
    Compat("--spec-tokens", "v", "later", _SPECULATION),
    Compat("--spec-type", "v", "later", _SPECULATION),
    Compat("--model-draft -md", "v", "later", _SPECULATION),
    Compat("--draft-max --draft --draft-n", "v", "later", _SPECULATION),
    Compat("--draft-min", "v", "later", _SPECULATION),
    Compat("--kv-transfer-config", "j", "refused", _DISAGGREGATION),
    Compat("--ec-transfer-config", "j", "refused", _DISAGGREGATION),
    Compat("--kv-events-config", "j", "later", "no KV events are published"),
    Compat("--additional-config", "j", "none", "it is for platform plugins"),
    Compat("--profiler-config", "j", "later", "profile routes are not served"),
    Compat("--plugins", "*", "refused", "no code from outside is loaded"),
    Compat("--enable-log-deltas", "-", "later", "the text of replies is never logged"),
    Compat("--disable-log-requests", "-", "none", "requests are not logged by default"),
    Compat("--log-config-file", "v", "later", "give --log-level and --log-format"),
    Compat("--logging-config", "v", "later", "give --log-level and --log-format"),
    Compat("--log-file", "v", "later", "the log goes to stderr"),
    Compat("--log-disable", "-", "later", "give --log-level error"),
    Compat("--log-colors", "?", "none", "the log has no colours"),
    Compat("--log-prefix", "-", "none", "lines always have level and time"),
    Compat("--log-timestamps", "-", "none", "lines always have level and time"),
    Compat("--verbose -v -lv --verbosity --log-verbosity", "?", "later", "give --log-level debug"),
    Compat("--otlp-traces-endpoint", "v", "later", "no traces are sent"),
    Compat("--collect-detailed-traces", "v", "later", "no traces are sent"),
    Compat("--show-hidden-metrics-for-version", "v", "none", "no metrics are hidden"),
    Compat("--custom-histogram-buckets", "j", "later", "buckets are fixed"),
    Compat("--enable-mfu-metrics", "-", "later", "/metrics has no such counter"),
    Compat("--temp --temperature", "v", "refused", _SAMPLING),
    Compat("--top-k", "v", "refused", _SAMPLING),
    Compat("--top-p", "v", "refused", _SAMPLING),
    Compat("--min-p", "v", "refused", _SAMPLING),
    Compat("--repeat-penalty", "v", "refused", _SAMPLING),
    Compat("--presence-penalty", "v", "refused", _SAMPLING),
    Compat("--frequency-penalty", "v", "refused", _SAMPLING),
    Compat("--samplers", "v", "refused", _SAMPLING),
    Compat("--predict --n-predict", "v", "refused", _SAMPLING, ("-1",)),
    Compat("--grammar", "v", "refused", "structured output is not served"),
    Compat("--grammar-file", "v", "refused", "structured output is not served"),
    Compat("--json-schema -j", "v", "refused", "structured output is not served"),
    Compat("--models-preset", "v", "refused", "name the models themselves, as NAME=MODEL"),
    Compat("--models-max", "v", "none", "models are unloaded by bytes: --models-memory"),
)

TABLE = (
    *_SERVER, *_CHAT, *_MODEL, *_PARALLEL, *_CACHE, *_SCHEDULER, *_MEDIA_FLAGS, *_ADAPTERS,
    *_KERNEL, *_OTHER,
)  # fmt: skip

_SCALED_CACHE = ("auto", "keys and values are cached unscaled")
_OWN_READER = ("auto", "Pagoda has its own reader")
_UNREAD = (None, "only safetensors and GGUF are read")
_SCALED_CACHE_TYPES = (
    "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "fp8_per_token_head",
    "int4_per_token_head", "nvfp4", "nvfp4_4over6", "nvfp4_ds_mla",
    "ultraquant_4bit",
)  # fmt: skip
_OTHER_READERS = ("runai_streamer", "fastsafetensors", "instanttensor", "hf", "mistral")
_OTHER_FILES = ("pt", "npcache", "tensorizer", "sharded_state", "bitsandbytes")

_TEMPLATE_DECIDES = ("auto", "the chat template decides, and what it does not show stays text")
_OTHER_PARSERS = (
    "apertus", "cohere_command3", "cohere_command4", "deepseek_v32", "deepseek_v4", "deepseek_v41",
    "dots", "ernie45", "functiongemma", "gigachat3", "granite-20b-fc", "granite_thinking_parser",
    "hf", "holo2", "hunyuan_a13b", "hy_v3", "hy_v4", "inkling", "internlm", "jamba", "k2_horizon",
    "kimi_k2", "kimi_k3", "lfm2", "ling3", "llama4_pythonic", "longcat", "mimo", "minicpm5",
    "minicpmv", "minimax_m2_append_think", "minimax_m3", "muse_glimmer", "olmo3",
    "phi4_mini_json", "plamo3", "poolside_v1", "pythonic", "step3", "xlam",
)  # fmt: skip

FOREIGN_VALUES: dict[str, dict[str, tuple[str | None, str]]] = {
    "kv_cache_dtype": dict.fromkeys(_SCALED_CACHE_TYPES, _SCALED_CACHE),
    "load_format": dict.fromkeys(_OTHER_READERS, _OWN_READER)
    | dict.fromkeys(_OTHER_FILES, _UNREAD),
    "reasoning_parser": dict.fromkeys(_OTHER_PARSERS, _TEMPLATE_DECIDES),
    "tool_call_parser": dict.fromkeys(_OTHER_PARSERS, _TEMPLATE_DECIDES),
    "log_level": {
        "critical": ("error", "no level is above error"),
        "trace": ("debug", "no level is below debug"),
    },
}
"""Values of Pagoda's own flags that only others know: (what is taken instead, why);
None refuses."""

QUANTIZATION_IN_CHECKPOINT = frozenset((
    "awq", "awq_marlin", "auto_awq", "gptq", "gptq_marlin", "auto_gptq", "compressed-tensors",
    "gguf", "mxfp4", "modelopt", "modelopt_fp4", "quark", "torchao", "auto-round", "inc",
    "fbgemm_fp8",
))  # fmt: skip
"""`--quantization` values that only repeat what the checkpoint says."""

QUANTIZATION_AT_LOAD = ("none", "fp8", "int8", "int4")
"""`--quantization` values of Pagoda's own."""
