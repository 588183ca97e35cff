"""Everything the engine can be told. Frozen: "auto" becomes a value in `planner.resolve` only."""

import json
import math
from dataclasses import dataclass, field

from pagoda.base.errors import ConfigError
from pagoda.base.units import parse_size
from pagoda.config.adapters import AdapterConfig
from pagoda.config.kv_events import KVEventsConfig, kv_events
from pagoda.config.kv_transfer import KVTransferConfig, kv_transfer
from pagoda.config.modality import MODALITIES
from pagoda.config.nodes import NodesConfig
from pagoda.config.option import Options, option
from pagoda.config.parallel import ParallelConfig
from pagoda.config.speculation import SpeculationConfig

_AT_LEAST_1 = (1, math.inf)
_AT_LEAST_0 = (0, math.inf)


def _length(text: str) -> int | str:
    return "auto" if text in ("auto", "-1") else parse_size(text)


def _context(text: str) -> int | str | None:
    return None if text == "0" else _length(text)


_TASKS = {"embedding": "embed", "rerank": "score"}
"""Other names of tasks, as vLLM had them."""


def _task(text: str) -> str:
    return _TASKS.get(text, text)


def _count(text: str) -> int | str | None:
    if text in ("auto", "-1"):
        return None
    return text if text == "all" else int(text)


_BACKENDS = {
    "flash-attention": "flash-attn",
    "sdpa": "torch",
    "torch-sdpa": "torch",
    "triton-attn": "triton",
}
"""Other names of attention backends, as other engines spell them."""


def _numa(text: str) -> str:
    """llama.cpp's `distribute` is the default here, and so is `numactl`: affinity is kept."""
    if text == "isolate":
        raise ValueError("for one node alone start it with `numactl -N 0 -m 0`")
    return "auto" if text in ("distribute", "numactl") else text


def _device(text: str) -> str:
    """llama.cpp's `none` offloads nothing."""
    return "cpu" if text == "none" else text


def _backend(text: str) -> str:
    name = text.lower().replace("_", "-")
    return _BACKENDS.get(name, name)


def _step_bound(text: str) -> float | str:
    if text == "auto":
        return text
    value = float(text.removesuffix("x"))
    if not math.isfinite(value):
        raise ValueError("write a number of milliseconds, a multiple such as 2.5x, or 0")
    if not text.endswith("x"):
        return value
    if value <= 1:
        raise ValueError("a multiple must be above 1x; 0 is no limit")
    return f"{value:g}x"


def _json_object(text: str) -> dict[str, object]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("write a JSON object")
    return value


@dataclass(frozen=True)
class ModelConfig(Options):
    """Which model, and how it is read."""

    model: str = option(
        "smollm2",
        "Model to serve: a local file or folder, `hf:org/name[:file or quant]`, `org/name`, "
        "`modelscope:org/name`, or an alias.",
        aliases=("-m",),
    )
    tokenizer: str | None = option(None, "Tokenizer to use instead of the model's own.")
    served_model_name: tuple[str, ...] = option(
        (), "Names the API answers to; the first is the one reported.", aliases=("-a", "--alias")
    )
    dtype: str = option(
        "auto",
        "Type of activations and plain weights.",
        choices=("auto", "half", "float16", "bfloat16", "float", "float32"),
    )
    quantization: str = option(
        "none",
        "Round bf16, fp16 and fp32 weights while they load, for the kernels of a CPU or a GPU: "
        "`int8` (a scale per 32 weights, 8.5 bits each), `int4` (scale and minimum per 32, 5 bits; "
        "token table and output head in `int8`) or `fp8` (there as `int8`, which is closer). "
        "Weights that the checkpoint has quantized need no flag.",
        choices=("none", "fp8", "int8", "int4"),
    )
    max_model_len: int | str | None = option(
        None,
        "Context length: a number, `256K` (262,144), or `auto`, the largest that fits. "
        "By default, and with 0, the model's own, as far as a few GiB of cache hold it.",
        aliases=("-c", "--ctx-size"),
        parse=_context,
        bounds=_AT_LEAST_1,
    )
    load_format: str = option(
        "auto", "Where weights come from.", choices=("auto", "safetensors", "gguf", "dummy")
    )
    mmproj: str | None = option(
        None,
        "File with the vision tower of a GGUF model; by default one beside the model that fits it "
        "(F16 first).",
        aliases=("-mm",),
    )
    task: str = option(
        "auto",
        "What the model must be able to do, or it is not served: `generate`, `embed`, `classify` "
        "or `score`. Whatever this says, all that it can do is served.",
        choices=("auto", "generate", "embed", "classify", "score"),
        parse=_task,
    )
    pooling: str = option(
        "auto",
        "How a text's states become its vector: by default as the model's files say; `rank` is a "
        "classifier's score. Where they say nothing an encoder has its first token's, a decoder "
        "its last.",
        choices=("auto", "cls", "last", "max", "mean", "rank"),
        parse=str.lower,
    )
    score_tokens: str | None = option(
        None,
        "`no,yes`: the model becomes a reranker: its score is the output head's logit of the second"
        " word less that of the first. For Qwen3-Reranker without sentence-transformers' files.",
    )
    revision: str | None = option(None, "Branch, tag or commit on the hub.")
    download_dir: str | None = option(None, "Folder for downloaded models.")
    chat_template: str | None = option(
        None,
        "File, text or format's name (`chatml`, `llama3`, ...) that replaces the chat template.",
        aliases=("--chat-template-file",),
    )
    default_chat_template_kwargs: dict[str, object] = option(
        None,
        'JSON of variables for the chat template, such as {"enable_thinking": false}, where a '
        "request says nothing else.",
        aliases=("--chat-template-kwargs",),
        parse=_json_object,
        factory=dict,
    )
    chat_template_content_format: str = option(
        "auto", "How message content reaches the template.", choices=("auto", "string", "openai")
    )
    reasoning_parser: str = option(
        "auto",
        "What splits thought from answer: `auto` reads it from the chat template, `none` leaves "
        "the text as it is, other names are families of models (`qwen3`, `deepseek_r1`, "
        "`gemma4`, `openai`, `mistral`, ...).",
    )
    tool_call_parser: str = option(
        "auto",
        "What finds tool calls: `auto` reads it from the chat template, `none` leaves them in the "
        "text, other names are families of models (`hermes`, `qwen3_coder`, `llama3_json`, "
        "`mistral`, `deepseek_v3`, `gemma4`, `openai`, `generic`, ...).",
    )
    generation_config: str = option(
        "auto",
        "Source of sampling defaults: `auto` takes the model's generation_config.json, "
        "`vllm` the API's own defaults, a folder another file.",
    )
    override_generation_config: dict[str, object] = option(
        None,
        "JSON of sampling defaults that win over the model's.",
        parse=_json_object,
        factory=dict,
    )
    grammar: str | None = option(
        None,
        "Grammar (GBNF, EBNF or Lark) that replies follow where a request names no structure.",
    )
    json_schema: str | None = option(
        None, "JSON schema that replies follow where a request names no structure.", aliases=("-j",)
    )
    seed: int = option(0, "Seed for requests that bring none.", aliases=("-s",))
    max_logprobs: int = option(
        20, "Most alternatives a request may ask for; -1 is no limit.", bounds=(-1, math.inf)
    )


@dataclass(frozen=True)
class CacheConfig(Options):
    """The paged KV cache."""

    block_size: int | None = option(
        None,
        "Tokens per KV block. By default what attention's kernels want: 16 on a CPU, 64 on a GPU.",
        bounds=(1, 1024),
    )
    kv_cache_dtype: str = option(
        "auto",
        "Type of cached keys and values. `int8`, which vLLM calls `int8_per_token_head`, keeps a "
        "scale per token and head: about half the bytes of `bfloat16`. `q4_0`, llama.cpp's, keeps "
        "one per 32 numbers, 4.5 bits each, on a CPU only. `fp8` is E4M3 on a "
        "GPU, with the checkpoint's scales of each KV head or 1, and `fp8_e5m2` has no scales; a "
        "CPU takes `int8` for both, which is closer.",
        choices=(
            "auto",
            "float16",
            "bfloat16",
            "float32",
            "int8",
            "int8_per_token_head",
            "q4_0",
            "fp8",
            "fp8_e4m3",
            "fp8_e5m2",
        ),  # fmt: skip
    )
    kv_cache_memory_bytes: int | None = option(
        None,
        "Size of the KV pool, such as 2G; overrides every other rule.",
        parse=parse_size,
        bounds=_AT_LEAST_1,
    )
    gpu_memory_utilization: float = option(
        0.9, "Share of the device's memory (on a CPU, of RAM) that weights and KV cache may take.",
        aliases=("--device-memory-utilization",), bounds=(0.01, 1.0),
    )  # fmt: skip
    num_gpu_blocks_override: int | None = option(
        None, "Number of KV blocks, for tests.", bounds=_AT_LEAST_1
    )
    enable_prefix_caching: bool = option(True, "Reuse the KV blocks of equal prefixes.")
    kv_offloading_size: float = option(
        0.0,
        "GiB of the host's memory, of all GPUs together, for cached blocks that make room in the "
        "KV pool.",
        bounds=_AT_LEAST_0,
    )
    kv_disk: str | None = option(
        None,
        "Folder where cached prefixes are kept for the next start. They tell what was asked, so "
        "keep it to yourself.",
    )
    kv_disk_size: int = option(
        4 << 30, "Most that this folder may hold, such as 10G.",
        parse=parse_size, bounds=_AT_LEAST_1,
    )  # fmt: skip
    kv_events_config: dict[str, object] = option(
        None,
        "JSON that has routers told what is cached, such as "
        '{"enable_kv_cache_events": true, "replay_endpoint": "tcp://*:5558"}, by vLLM\'s events; '
        "docs/routers.md has its keys. Events tell the tokens of requests.",
        parse=_json_object,
        factory=dict,
    )

    kv_transfer_config: dict[str, object] = option(
        None,
        "JSON that has KV blocks move between engines, such as "
        '{"kv_connector": "pagoda", "kv_role": "kv_producer"}, by vLLM\'s requests; '
        "docs/disaggregated.md has its keys.",
        parse=_json_object,
        factory=dict,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.kv_events, self.kv_transfer  # what is wrong is said now
        if self.kv_transfer.is_on and not self.enable_prefix_caching:
            raise ConfigError(
                "--kv-transfer-config moves blocks from one prefix cache to another: leave out "
                "--no-enable-prefix-caching."
            )

    @property
    def kv_events(self) -> KVEventsConfig:
        return kv_events(self.kv_events_config)

    @property
    def kv_transfer(self) -> KVTransferConfig:
        return kv_transfer(self.kv_transfer_config)


@dataclass(frozen=True)
class SchedulerConfig(Options):
    """How steps are filled."""

    max_num_seqs: int | str = option(
        "auto", "Most requests running at once.",
        aliases=("-np", "--parallel"), parse=_length, bounds=_AT_LEAST_1,
    )  # fmt: skip
    max_num_batched_tokens: int | str = option(
        "auto", "Most tokens in one step.",
        aliases=("-b", "--batch-size"), parse=_length, bounds=_AT_LEAST_1,
    )  # fmt: skip
    enable_chunked_prefill: bool = option(
        True, "Split long prompts over several steps, which short ones share."
    )
    long_prefill_token_threshold: int = option(
        0, "Most prompt tokens one request takes in a step; 0 is no limit.", bounds=_AT_LEAST_0
    )
    max_step_ms: float | str = option(
        "auto",
        "Most time of a step while replies are being generated; prompts are split to keep it, as "
        "far as measured steps foretell. Milliseconds; or a multiple such as `2.5x` of what the "
        "step takes without prompts (and with eight replies, if there are fewer); 0 is no limit, "
        "also where nobody generates and prompts are read in short steps otherwise.",
        parse=_step_bound,
        bounds=_AT_LEAST_0,
    )
    scheduling_policy: str = option(
        "fcfs", "Order of waiting requests.", choices=("fcfs", "priority")
    )
    max_num_queued_reqs: int | None = option(
        None, "Most requests that wait; the server refuses more with 503.", bounds=_AT_LEAST_0
    )
    max_num_queued_tokens: int | None = option(
        None,
        "Most prompt tokens of waiting requests, such as 64k; the server refuses more with 503.",
        parse=parse_size,
        bounds=_AT_LEAST_0,
    )


@dataclass(frozen=True)
class DeviceConfig(Options):
    """Where the model runs."""

    device: str = option(
        "auto", "Where to run.", choices=("auto", "cpu", "cuda"), aliases=("-dev",), parse=_device
    )
    threads: int | str = option(
        "auto",
        "CPU threads; `auto` is one a core, within affinity and the container's quota, or more "
        "where these were measured to be faster.",
        aliases=("-t",), parse=_length, bounds=_AT_LEAST_1,
    )  # fmt: skip
    numa: str = option(
        "auto",
        "A CPU with several memories (NUMA): `auto` has the threads beside each read the weights "
        "that lie there, `off` treats them as one.",
        choices=("auto", "off"), parse=_numa,
    )  # fmt: skip
    cpu_offload_gb: float | None = option(
        None,
        "GiB of weights, for each GPU, that stay in the host's memory: experts first, then layers, "
        "from the last up; 0 keeps all on the GPU. By default what does not fit there.",
        bounds=_AT_LEAST_0,
    )
    n_cpu_moe: int | str | None = option(
        None,
        "Layers whose experts stay in the host's memory: a number, or `all`.",
        aliases=("-ncmoe",),
        parse=_count,
        bounds=_AT_LEAST_0,
    )
    n_gpu_layers: int | str | None = option(
        None,
        "Layers whose weights are on the GPU, the others' stay in the host's memory: a number, "
        "`all`, or `auto`, which is the same as without this flag.",
        aliases=("-ngl", "--gpu-layers"),
        parse=_count,
        bounds=_AT_LEAST_0,
    )
    enforce_eager: bool = option(False, "Run steps op by op instead of captured.")
    attention_backend: str = option(
        "auto",
        "What attends to cached tokens: by default a CPU's own kernels and `triton` on a GPU; "
        "`torch` runs on both and is slower. `flash-attn` (sm_90 and sm_100) and `flashinfer` come "
        "first where they are installed. The log says what each kind of layer got, and why.",
        choices=("auto", "triton", "torch", "flashinfer", "flash-attn"),
        parse=_backend,
    )


NO_DOMAIN = "none"
"""The value of --allowed-media-domains that lets nothing be fetched."""


def _media_limits(text: str) -> dict[str, int]:
    limits = {}
    for kind, most in _json_object(text).items():
        if kind not in MODALITIES:
            known = " and ".join(map(repr, MODALITIES))
            raise ConfigError(f"{kind!r} is no medium that is served; known are {known}.")
        if type(most) is not int or most < 0:
            raise ConfigError(f"The limit of {kind!r} must be a whole number, not {most!r}.")
        limits[kind] = most
    return limits


@dataclass(frozen=True)
class MediaConfig(Options):
    """Pictures, videos and sounds in prompts, for models that see or hear."""

    limit_mm_per_prompt: dict[str, int] = option(
        None,
        'JSON of the most pictures, videos and sounds that a prompt may hold, such as {"image": 4, '
        '"video": 1, "audio": 2}; 0 takes none. 64, 8 and 16 by default.',
        parse=_media_limits,
        factory=lambda: {kind: modality.most for kind, modality in MODALITIES.items()},
    )
    image_max_tokens: int | str = option(
        "auto",
        "Most tokens that one picture becomes; larger ones are made smaller. By default 1024 on a "
        "CPU and 4096 on a GPU, at most half of the context.",
        parse=_length,
        bounds=_AT_LEAST_1,
    )
    video_max_tokens: int | str = option(
        "auto",
        "Most tokens that one video becomes, the times between its frames apart: its frames are "
        "made smaller and fewer, each at most as large as an image. By default 4096 on a CPU and "
        "16384 on a GPU, at most half of the context.",
        parse=_length,
        bounds=_AT_LEAST_1,
    )
    allowed_media_domains: tuple[str, ...] = option(
        (),
        "Hosts from which a request may have pictures, videos and sounds fetched, such as "
        "images.example; by default every host with a public address. `none` has them come inside "
        "the request.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        domains = self.allowed_media_domains
        if NO_DOMAIN in domains and len(domains) > 1:
            raise ConfigError(
                f"--allowed-media-domains {' '.join(domains)} is none and some; give {NO_DOMAIN} "
                "alone, or hosts alone."
            )

    def most(self, kind: str) -> int:
        """The most media of a kind in one prompt."""
        return self.limit_mm_per_prompt.get(kind, MODALITIES[kind].most)


@dataclass(frozen=True)
class EngineConfig:
    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    media: MediaConfig = field(default_factory=MediaConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    adapters: AdapterConfig = field(default_factory=AdapterConfig)
    nodes: NodesConfig = field(default_factory=NodesConfig)

    def __post_init__(self) -> None:
        self.nodes.check(self.parallel.num_ranks, self.parallel.data_parallel_size)
        if self.parallel.distributed_executor_backend == "ray" and self.nodes.nnodes > 1:
            raise ConfigError(
                "--nnodes names machines, and with --distributed-executor-backend ray Ray has "
                "them; leave one of the two out."
            )
