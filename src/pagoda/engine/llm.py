"""The offline engine: a model in this process, used by a script. Names and results are vLLM's."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeGuard

from pagoda.base import env
from pagoda.base.errors import ConfigError, ContextLengthError, PagodaError, RequestError
from pagoda.base.log import get_logger
from pagoda.core.lora import LoRARequest
from pagoda.core.messages import AbortRequests, AddRequest, EngineProgress, RequestDelta
from pagoda.core.sampling import SamplingParams
from pagoda.engine.beams import (
    BeamSearchOutput,
    BeamSearchParams,
    BeamSearchSequence,
    beam_search,
)
from pagoda.engine.constraint import (
    Constraint,
    ToolUse,
    chat_constraint,
    completion_constraint,
)
from pagoda.engine.interrupt import deferred_interrupt
from pagoda.engine.media import MediaFiles, Placed, attach_media, payloads
from pagoda.engine.offline_media import OfflineMedia, message_media, prompt_media
from pagoda.engine.offline_vectors import (
    ClassificationOutput,
    EmbeddingOutput,
    OfflineVectors,
    PoolingParams,
    PoolingRequestOutput,
    ScoringOutput,
)
from pagoda.engine.outputs import CompletionOutput, OutputProcessor, RequestOutput, TokenTable
from pagoda.engine.processes.adapters import KnownAdapters
from pagoda.engine.processes.watchdog import Watchdog
from pagoda.engine.requests import RequestLimits, fan_out, make_request
from pagoda.engine.served.text_side import fetch_model, load_text_side
from pagoda.engine.start.options import engine_config
from pagoda.engine.start.progress import PromptDisplay, StartupDisplay
from pagoda.engine.startup import start_engine
from pagoda.text.media.options import media_options
from pagoda.text.template.chat import ContentFormatName, load_chat_template
from pagoda.text.tokenizer import Tokenizer

log = get_logger(__name__)

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, {"prompt": text} or {"prompt_token_ids": ids}; a dict may also hold
`multi_modal_data` and `mm_processor_kwargs`."""
Message = Mapping[str, Any]
Loras = LoRARequest | Sequence[LoRARequest | None] | None
"""One for all prompts, or one for each."""


class _Tokenized(NamedTuple):
    text: str | None
    ids: list[int]
    media: Sequence[Placed] = ()


class LLM:
    """Loads a model and generates with it, in this process and without any other.

    Takes what `pagoda serve` takes, as keyword arguments: dtype, max_model_len,
    gpu_memory_utilization, seed, max_num_seqs, ... Raises ConfigError for an argument that is
    not known, and what loading raises: SourceError, CheckpointError, CapacityError. Their
    tracebacks show the call alone; with PAGODA_DEBUG=1 all of it.
    """

    def __init__(self, model: str, tokenizer: str | None = None, **options: Any):
        try:
            self._load({"model": model, "tokenizer": tokenizer, **options})
        except PagodaError as error:
            if env.get("PAGODA_DEBUG"):
                raise
            raise error.with_traceback(None) from None

    def _load(self, options: dict[str, Any]) -> None:
        # Nobody reads along here, so that prompts need not wait for replies.
        config = engine_config({"max_step_ms": 0, **options})
        if config.cache.kv_transfer.is_on:
            raise ConfigError(
                "LLM() neither gives nor fetches KV blocks: pagoda serve has --kv-transfer-config."
            )
        if config.parallel.data_parallel_size > 1:
            raise ConfigError(
                "LLM() runs one engine in this process; `pagoda serve --data-parallel-size` runs "
                "several."
            )
        self._config = replace(config, model=fetch_model(config.model))
        self._text = load_text_side(self._config.model)
        display, watchdog = StartupDisplay(), Watchdog()

        def report(message: object) -> None:
            if isinstance(message, EngineProgress):
                watchdog.beat(message.phase)
                display.update(message)

        try:
            self._core, ready = start_engine(self._config, report)
        finally:
            display.close()
            watchdog.close()
        self.max_model_len = ready.max_model_len
        self._limits = RequestLimits(
            max_model_len=ready.max_model_len,
            vocab_size=ready.vocab_size,
            max_logprobs=self._config.model.max_logprobs,
            clamp_max_tokens=True,
            generates=ready.generates,
        )
        self._unlimited = replace(self._limits, max_logprobs=-1)
        self._media = OfflineMedia(self._text, ready.media, self._config.media)
        self._req_ids = itertools.count()
        self._vectors = OfflineVectors(self._core, self._text, self._limits, ready.pooling)
        self._loras = {adapter.path: adapter.identity for adapter in ready.adapters}
        self._known = KnownAdapters(self._config.adapters)
        list(self._known.on_ready(ready))  # the first process has nothing to catch up with

    def get_tokenizer(self) -> Tokenizer:
        return self._text.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own defaults, from its generation_config.json."""
        return SamplingParams(**self._text.defaults)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        lora_request: Loras = None,
    ) -> list[RequestOutput]:
        """Complete each prompt; results in the order of the prompts.

        Pictures and videos come as vLLM takes them: {"prompt": text, "multi_modal_data": {"image":
        a PIL image or several, "video": frames}}, with the model's own marks in the text. A file's
        pathlib.Path stands for what is in it.
        `sampling_params`: one for all prompts, or one for each. `use_tqdm` shows a progress bar
        on a terminal. Raises RequestError (a ValueError) for a prompt or parameter that cannot
        be served, before anything runs.
        """
        tokenized = [self._tokenize(prompt) for prompt in _as_list(prompts)]

        def constrain(_: str | None, sampling: SamplingParams) -> Constraint:
            return completion_constraint(sampling.structured_outputs)

        adapters = self._adapters(lora_request, len(tokenized))
        return self._run(tokenized, sampling_params, use_tqdm, priority, constrain, adapters)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        lora_request: Loras = None,
        **template: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several.

        Messages may hold parts of type image_pil (a PIL image), image_url and video_url (data
        URLs or pathlib.Path); `mm_processor_kwargs` as in the chat API.
        Outputs have `reasoning`, `content` and `tool_calls` beside `text`, the raw reply.
        `template`: chat_template (text or file), tools, add_generation_prompt (True),
        continue_final_message (False), chat_template_kwargs (further template variables).
        """
        render = self._renderer(**template)
        several = bool(messages) and not isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = messages if several else [messages]
        options = media_options({}, mm_processor_kwargs or {})
        tokenized = []
        for conversation in conversations:
            text = render(conversation)
            given = message_media(conversation)
            placed = self._media.place(text, given, options, add_special_tokens=False)
            tokenized.append(_Tokenized(text, *placed))
        use = ToolUse(template.get("tools") or ())

        def constrain(text: str | None, sampling: SamplingParams) -> Constraint:
            return chat_constraint(self._text, text or "", sampling.structured_outputs, use)

        shown, adapters = self._text.markup_ids, self._adapters(lora_request, len(tokenized))
        outputs = self._run(tokenized, sampling_params, use_tqdm, None, constrain, adapters, shown)
        for output in outputs:
            for completion in output.outputs:
                completion.parse(
                    self._text.parser(output.prompt or "", template.get("tools") or ())
                )
        return outputs

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        use_tqdm: bool = False,
    ) -> list[BeamSearchOutput]:
        """The most likely continuations of each prompt, which may not hold media. A hypothesis
        ends at the context's end, too. Raises RequestError as `generate`."""
        ids = [self._tokenize(prompt).ids for prompt in _as_list(prompts)]
        room = self.max_model_len - max(map(len, ids), default=0)
        if room < 1:
            raise ContextLengthError(
                f"The longest prompt leaves no room in the context of {self.max_model_len} tokens.",
                "prompts",
            )
        params = replace(params, max_tokens=min(params.max_tokens, room))
        tokenizer = self._text.tokenizer

        def expand(beams: Sequence[BeamSearchSequence], count: int) -> list[TokenTable]:
            sampling = SamplingParams(
                max_tokens=1, temperature=0.0, ignore_eos=True,
                logprobs=min(count, self._limits.vocab_size),
            )  # fmt: skip
            found = self._run(
                [_Tokenized(None, beam.tokens) for beam in beams], sampling, use_tqdm, None,
                lambda text, sampling: Constraint(), [None] * len(beams), limits=self._unlimited,
            )  # fmt: skip
            return [(output.outputs[0].logprobs or [{}])[0] for output in found]

        outputs = beam_search(ids, params, tokenizer.eos_token_ids, expand)
        for output in outputs:
            for sequence in output.sequences:
                sequence.text = tokenizer.decode(sequence.tokens, skip_special_tokens=True)
        return outputs

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
    ) -> list[PoolingRequestOutput[EmbeddingOutput]]:
        """A vector of each text, pooled as the model's files say. RequestError for a classifier,
        and for a text that is too long."""
        params = pooling_params or PoolingParams()
        return self._vectors.embed(self._pooled_texts(prompts), params, use_tqdm)

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
    ) -> list[PoolingRequestOutput[ClassificationOutput]]:
        """Probabilities of a classifier's labels for each text. RequestError for a model without
        one, and for a text that is too long."""
        params = pooling_params or PoolingParams()
        return self._vectors.classify(self._pooled_texts(prompts), params, use_tqdm)

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        /,
        *,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
    ) -> list[PoolingRequestOutput[ScoringOutput]]:
        """How alike two texts are, one text with each of several or pair by pair: the score of a
        classifier with one label (a cross-encoder), else the cosine of two vectors."""
        first = [data_1] if isinstance(data_1, str) else list(data_1)
        second = [data_2] if isinstance(data_2, str) else list(data_2)
        if not first or len(first) not in (1, len(second)):
            raise RequestError(
                f"{len(first)} texts cannot be paired with {len(second)}: give as many, or one.",
                "data_1",
            )
        params = pooling_params or PoolingParams()
        return self._vectors.score(first, second, params, use_tqdm)

    def _pooled_texts(self, prompts: Prompt | Sequence[Prompt]) -> list[list[int]]:
        return [self._tokenize(prompt).ids for prompt in _as_list(prompts)]

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False while blocks are in use."""
        return bool(self._core.scheduler.reset_prefix_cache())

    def _adapters(self, asked: Loras, count: int) -> Sequence[str | None]:
        """What each prompt's requests name, loaded where it is new. Raises what loading raises."""
        each = [asked] * count if isinstance(asked, LoRARequest) or asked is None else asked
        paths = {lora.lora_path for lora in each if lora is not None}
        for path in paths - self._loras.keys():
            self._loras[path] = self._core.adapters.load(path).identity
        found = [None if lora is None else self._loras[lora.lora_path] for lora in each]
        return _per_prompt(found, count, "lora_request")

    def _renderer(
        self,
        *,
        chat_template: str | None = None,
        chat_template_content_format: ContentFormatName = "auto",
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Callable[[Any], str]:
        template = self._text.chat_template
        if chat_template is not None:
            template = load_chat_template(
                self._text.files,
                self._text.tokenizer,
                override=chat_template,
                content_format=chat_template_content_format,
            )
        if template is None:
            raise RequestError(
                "The model has no chat template: pass chat_template=, or use generate()."
            )
        return lambda conversation: template.render(
            conversation,
            tools=tools,
            call_form=self._text.parser.form.calls,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=chat_template_kwargs,
        )

    def _tokenize(self, prompt: Prompt) -> _Tokenized:
        if isinstance(prompt, str):
            return _Tokenized(prompt, self._text.tokenizer.encode(prompt))
        if isinstance(prompt, Mapping):
            text = prompt.get("prompt")
            given = prompt.get("prompt_token_ids", text)
            if given is not None:
                options = media_options({}, prompt.get("mm_processor_kwargs") or {})
                return _Tokenized(text, *self._media.place(given, prompt_media(prompt), options))
        elif _is_ids(prompt):
            return _Tokenized(None, list(prompt))
        raise RequestError(
            "A prompt is a string, a list of token ids, or a dict with `prompt` or "
            f"`prompt_token_ids`; got {type(prompt).__name__}.",
            "prompts",
        )

    def _run(
        self,
        prompts: list[_Tokenized],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        show: bool,
        priority: Sequence[int] | None,
        constrain: Callable[[str | None, SamplingParams], Constraint],
        adapters: Sequence[str | None],
        shown_ids: frozenset[int] = frozenset(),
        limits: RequestLimits | None = None,
    ) -> list[RequestOutput]:
        batch = _Batch(self._text.tokenizer, shown_ids)
        every = _per_prompt(
            self.get_default_sampling_params() if sampling_params is None else sampling_params,
            len(prompts),
            "sampling_params",
        )
        for sampling in every:
            if not isinstance(sampling, SamplingParams):
                raise RequestError(
                    "sampling_params is a SamplingParams, or a list of one for each prompt; got "
                    f"{type(sampling).__name__}.",
                    "sampling_params",
                )
        priorities = _per_prompt(0 if priority is None else priority, len(prompts), "priority")
        with TemporaryDirectory(prefix="pagoda-media-") as folder:
            files = MediaFiles()
            for prompt, sampling, rank, adapter in zip(
                prompts, every, priorities, adapters, strict=True
            ):
                constraint = constrain(prompt.text, sampling)
                for left_out in constraint.unenforced:
                    log.warning("Not enforced: %s", left_out)
                request = make_request(
                    str(next(self._req_ids)),
                    prompt.ids,
                    sampling,
                    self._text.tokenizer,
                    limits or self._limits,
                    constraint.grammar,
                )
                request.priority, request.adapter = rank, adapter
                if adapter is None:
                    self._known.apply(request, None, None)
                attach_media(request, prompt.media)
                files.hold(request, Path(folder), payloads(prompt.media))
                batch.add(prompt.text, request, fan_out(request, sampling.n))
            return self._drive(batch, show)

    def _drive(self, batch: "_Batch", show: bool) -> list[RequestOutput]:
        core = self._core
        with PromptDisplay(len(batch.outputs), show) as display, deferred_interrupt() as asked:
            try:
                for request in batch.requests:
                    core.handle(request)
                while batch.pending:
                    stopped = [req_id for delta in core.step() if (req_id := batch.take(delta))]
                    if stopped:
                        core.handle(AbortRequests(stopped))
                    display.update(batch.num_finished)
                    if asked():
                        raise KeyboardInterrupt
            finally:
                # Nothing of this batch may be left in the engine, however it ended.
                core.handle(AbortRequests(list(batch.pending)))
        return batch.outputs


class _Batch:
    """The requests of one call, and where their deltas belong."""

    def __init__(self, tokenizer: Tokenizer, shown_ids: frozenset[int]):
        self._tokenizer = tokenizer
        self._shown_ids = shown_ids
        self.outputs: list[RequestOutput] = []
        self.requests: list[AddRequest] = []
        self.pending: dict[str, tuple[RequestOutput, int, OutputProcessor]] = {}
        self.num_finished = 0

    def add(self, text: str | None, request: AddRequest, fanned: list[AddRequest]) -> None:
        ids = request.prompt_token_ids
        outputs = [CompletionOutput(index) for index in range(len(fanned))]
        output = RequestOutput(request.req_id, text, ids, outputs)
        self.outputs.append(output)
        self.requests += fanned
        for index, part in enumerate(fanned):
            processor = OutputProcessor(self._tokenizer, part.sampling, ids, self._shown_ids)
            self.pending[part.req_id] = (output, index, processor)

    def take(self, delta: RequestDelta) -> str | None:
        """Add a delta to its result; its id where a stop string ended it and the engine must."""
        entry = self.pending.get(delta.req_id)
        if entry is None:
            return None
        output, index, processor = entry
        part = processor.process(delta)
        if part.error is not None:
            log.error("Request %s failed: %s", delta.req_id, part.error)
        output.add(index, part, self._tokenizer)
        if part.finish_reason is not None:
            del self.pending[delta.req_id]
            self.num_finished += output.finished
        return delta.req_id if processor.matched_stop and delta.finish_reason is None else None


def _as_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Any]:
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Sequence) or _is_ids(prompts):
        return [prompts]
    return prompts


def _is_ids(value: Any) -> TypeGuard[Sequence[int]]:
    """Not empty, and nothing but integers; bytes are a text."""
    several = isinstance(value, Sequence) and not isinstance(value, bytes)
    return several and len(value) > 0 and all(type(item) is int for item in value)


def _per_prompt(value: Any, count: int, name: str) -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [value] * count
    if len(value) != count:
        raise RequestError(f"{name} has {len(value)} entries for {count} prompts.", name)
    return value
