"""Facts that several flags of others rest on."""

from pagoda.config.compat_row import Fact
from pagoda.config.sampling import ABSENT, NUMBERS
from pagoda.config.sampling import SAMPLERS as _ORDER

_SAMPLERS = [name.replace("_", "-") for name in _ORDER]

ONE_DEVICE = Fact(
    "a model's devices are those of --tensor-parallel-size and --pipeline-parallel-size",
    has=("--tensor-parallel-size", "--pipeline-parallel-size"),
    lacks=("context_parallel", "expert_parallel", "eplb", "rpc", "ray"),
)
REPLICAS = Fact(
    "the engines of --data-parallel-size run on one machine, behind one server",
    has=("--data-parallel-size",),
    lacks=("parallel_rank", "parallel_address", "parallel_backend", "parallel_hybrid"),
)
ONE_PROCESS = Fact("one server process answers all requests", lacks=("server_count", "http_thread"))
ONE_ENGINE = Fact(
    "a request is served by one engine; --kv-transfer-config lets another compute its prompt",
    has=("--kv-transfer-config",),
    lacks=("ec_transfer_config", "scale_out"),
)
GRAPHS = Fact(
    "steps are captured as graphs when they are first needed; --enforce-eager leaves it out",
    has=("--enforce-eager", "pagoda.runtime.steps.captured"),
)
PARSERS = Fact(
    "--reasoning-parser and --tool-call-parser say what a reply's parts are, by default as the "
    "chat template shows",
    has=("--reasoning-parser", "--tool-call-parser", "pagoda.text.parsers.select"),
)
HEAD = Fact("a request line and its headers may have 16 KiB", has=("pagoda.server.http1",))
REMOTE_MEDIA = Fact(
    "pictures and videos come inside requests or from public hosts, never from the server's own "
    "files; --allowed-media-domains narrows the hosts",
    has=("--allowed-media-domains",),
    lacks=("local_media", "media_path"),
)
MEDIA_FIELDS = Fact(
    "send media_io_kwargs and mm_processor_kwargs with the request, or limit all with "
    "--image-max-tokens and --video-max-tokens",
    has=("media_io_kwargs", "mm_processor_kwargs", "--image-max-tokens", "--video-max-tokens"),
)
MEDIA_CACHE = Fact(
    "prepared pictures are kept in up to 256 MiB of memory", has=("pagoda.engine.media",)
)
TOWER = Fact(
    "the vision tower is loaded where there is one; --limit-mm-per-prompt "
    """'{"image": 0, "video": 0}' refuses what it would read""",
    has=("--limit-mm-per-prompt", "pagoda.layers.vision"),
)
VISION_CACHED = Fact(
    "pictures are encoded in slices between steps, and their embeddings kept for a while",
    has=("pagoda.runtime.media",),
)
GUESSES = Fact(
    "as many guesses are verified as make replies faster; --speculative-config says what guesses",
    has=("--speculative-config", "pagoda.core.speculation.speculator"),
)
DRAFT_MODEL = Fact(
    "a draft model runs where the model runs, with its threads and its type of cache",
    has=("--speculative-config", "pagoda.runtime.speculation.model_drafter"),
)
DRAFT_TASK = Fact(
    "a draft model is named beside the one that it drafts for, by --speculative-config",
    has=("--speculative-config", "pagoda.planner.draft_model"),
)
LORA_RESIDENT = Fact(
    "all adapters that are loaded stay beside the model; --max-loras is how many",
    has=("--max-loras", "pagoda.engine.adapters"),
)
PROMPT_ADAPTERS = Fact("prompt adapters are not served", lacks=("prompt_adapter",))
STEERING = Fact("control vectors are not applied", lacks=("control_vector", "steer"))
DEFAULT_FIELD = Fact(
    "send it in the request, or give --override-generation-config JSON where it has the name",
    has=("--override-generation-config",),
)
SAMPLERS = Fact(
    f"samplers are mirostat, {', '.join(_SAMPLERS[:-1])} and {_SAMPLERS[-1]}; there is no other",
    has=tuple(number.name for number in NUMBERS),
    lacks=tuple(absent.native for absent in ABSENT),
)
KERNELS = Fact("kernels are chosen by device and format", has=("pagoda.kernels.selector",))
OFFLOAD = Fact(
    "give --cpu-offload-gb, --n-cpu-moe or --n-gpu-layers",
    has=("--cpu-offload-gb", "--n-cpu-moe", "--n-gpu-layers"),
)
STATES = Fact(
    "states of recurrent layers are kept where later requests resume, in float32",
    has=("pagoda.core.kvcache.checkpoints", "pagoda.layers.delta_net"),
)
PRELOADED = Fact("weights are mapped from the file and copied once", has=("pagoda.weights.mapped",))
MAPPED = Fact(
    "weights are copied into memory; experts that it is too small for are mapped from disk",
    has=("pagoda.quant.streamed",),
)
NO_PLUGINS = Fact(
    "no code from outside is loaded", lacks=("plugin", "middleware", "cls", "logits_processor")
)
NO_REMOTE_CODE = Fact("no code from a checkpoint ever runs", lacks=("remote_code", "code_revision"))
ROPE = Fact("rope is read from the checkpoint", has=("pagoda.arch.rope",), lacks=("rope", "yarn"))
LLGUIDANCE = Fact(
    "llguidance enforces structured output, and has no settings",
    has=("structured_outputs", "pagoda.core.grammar"),
    lacks=("guided_decoding", "structured_outputs_config"),
)
TEMPLATE_FORMS = Fact(
    "the chat template says what stands around messages; --chat-template gives another",
    has=("--chat-template",),
)
THOUGHT = Fact(
    "each request bounds its thought by `thinking_token_budget`; --reasoning-budget 0 "
    "switches it off",
    has=("--chat-template-kwargs", "thinking_token_budget"),
)
SERVER_TOOLS = Fact(
    "no reply calls tools by itself; clients name theirs in `tools`, /tools has those of --tools "
    "and --mcp-config, and `pagoda agent` operates a computer",
    has=("tools", "--tools", "/tools", "--mcp-config"),
    lacks=("tool_server",),
)
LOG = Fact("give --log-level and --log-format", has=("--log-level", "--log-format"))
LOG_STDERR = Fact("the log goes to stderr", lacks=("log_file", "prompts_dir"))
TRACES = Fact("no traces are sent", lacks=("trace", "otlp"))
ONE_STEP = Fact(
    "--max-num-batched-tokens and --max-num-seqs limit a step",
    has=("--max-num-batched-tokens", "--max-num-seqs"),
)
ADMISSION = Fact("admission keeps its own reserve", has=("pagoda.core.admission",))
RECOMPUTED = Fact("preempted requests are computed again", lacks=("swap", "preemption_mode"))
KV_OFFLOADING = Fact(
    "--kv-offloading-size says how many GiB of the host's memory evicted blocks have",
    has=("--kv-offloading-size",),
    lacks=("cache_ram", "offloading_backend"),
)
AFFINITY = Fact(
    "--threads says how many there are, and they stay inside the process's affinity",
    has=("--threads", "pagoda.base.machine"),
)
FITS = Fact(
    "the planner always fits the model, as --gpu-memory-utilization lets it",
    has=("--gpu-memory-utilization", "pagoda.planner.resolve"),
)
WHOLE_CONTEXT = Fact(
    "a request ends when the context is full", lacks=("context_shift", "sliding_context")
)
TYPES = Fact(
    "give --kv-cache-dtype int8 or q4_0, the smallest that keys and values have",
    has=("--kv-cache-dtype",),
    lacks=("int4_per_token", "nvfp4"),
)
VECTORS = Fact(
    "a model that generates gives vectors too, one that classifies scores",
    has=("--task", "/v1/embeddings", "/classify", "/rerank"),
    lacks=("reward",),
)
