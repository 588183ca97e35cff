"""Fields that the chat and the completions API share.

The class attributes of `Body` say what happens to a field that is no attribute of the model:
refused (UNSUPPORTED), dropped without a word (IGNORED, with the reason for docs/api.md), or dropped
with a line in the log.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PrivateAttr,
    model_validator,
)
from pydantic_core import CoreSchema

from pagoda.base.errors import RequestError
from pagoda.core.messages import KVTransfer
from pagoda.server.bodies.asker import Asker
from pagoda.server.protocol.numbers import (
    BREAKERS_DESCRIPTION,
    SAMPLERS_DESCRIPTION,
    openai_number,
    with_numbers,
)

ItemT = TypeVar("ItemT")

_LENGTHS = ("max_tokens", "max_completion_tokens")


class _FirstError:
    """As pydantic's FailFast, which has no hash and so no place in a union."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return {**handler(source), "fail_fast": True}


# A body has room for millions of wrong items, and an error for each would take minutes: one does.
Items = Annotated[list[ItemT], _FirstError()]

# Served by nothing behind the API yet; a value listed here means the same as leaving it out.
UNSUPPORTED_GENERATION: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "ec_transfer_params": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "kv_transfer_params": (),
    "length_penalty": (1.0,),
    "logprob_token_ids": ([],),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "prompt_embeds": (),
    "repetition_detection": (),
    "routed_experts_prompt_start": (),
    "stream_interval": (1,),
    "thinking_token_budget": (),
    "truncation_side": ("left",),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermarking": (),
}

# llama-server's, on the routes that do not take them.
UNSUPPORTED_STRUCTURE: dict[str, tuple[Any, ...]] = {"grammar": ("",), "json_schema": ()}

_PLATFORM = "For OpenAI's own platform; there is nothing to honour on one machine."
IGNORED_GENERATION: dict[str, str] = {
    **dict.fromkeys(
        ("metadata", "prompt_cache_retention", "safety_identifier",
         "service_tier", "store", "user"),
        _PLATFORM,
    ),
    "cache_prompt": "Prefixes are always reused; `cache_salt` keeps requests apart.",
    "id_slot": "There are no slots to choose: any request can use the whole cache.",
    "return_progress": "A stream whose prompt takes long tells `prompt_progress` anyway.",
    "session_id": "A hint for routers; a header of that name, or `prompt_cache_key`, is honoured.",
}  # fmt: skip


class Body(BaseModel):
    # allow_inf_nan: "nan" as a string would otherwise be read as a float.
    model_config = ConfigDict(extra="allow", allow_inf_nan=False, protected_namespaces=())

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {}
    IGNORED: ClassVar[Mapping[str, str]] = {}


class QueuedBody(Body):
    """What every body takes that becomes requests of an engine."""

    model: str | None = None
    priority: int = Field(
        0, ge=-(2**63), lt=2**63, description="Lower is served earlier under the priority policy."
    )
    cache_salt: str | None = Field(
        None, min_length=1, max_length=128, description="Requests share cached prefixes by salt."
    )
    request_id: str | None = Field(None, min_length=1, max_length=128)


class LoraScale(BaseModel):
    id: int
    scale: float


class TextBody(QueuedBody):
    """What every body takes that asks for text."""

    lora: Items[LoraScale] | None = Field(
        None, description="Of the adapters of --lora those that apply, and their scales."
    )

    _asker: Asker = PrivateAttr(Asker())

    @property
    def asker(self) -> Asker:
        """Whose request it is."""
        return self._asker

    def comes_from(self, asker: Asker) -> None:
        self._asker = asker

    @property
    def kv_transfer(self) -> KVTransfer | None:
        """What another engine has to do with it."""
        return None

    def default_length(self, of_model: int | None) -> int | None:
        """Tokens to generate where no `max_tokens` was chosen, as far as the context has room;
        None fills it. `of_model`: the default of the model's own generation config."""
        return of_model


class KVTransferParams(BaseModel):
    """vLLM's, as its NixlConnector takes and gives them. What else stands in it is passed over:
    blocks are asked for by what they hold."""

    do_remote_decode: bool = Field(False, description="Another engine will fetch the prompt's KV.")
    do_remote_prefill: bool = Field(False, description="The prompt's KV is at another engine.")
    remote_host: str | None = Field(None, max_length=255)
    remote_port: int | None = Field(None, ge=1, lt=2**16)

    def transfer(self) -> KVTransfer | None:
        """RequestError where it says nothing of where the blocks are."""
        host, port = (self.remote_host, self.remote_port) if self.do_remote_prefill else (None, 0)
        if self.do_remote_prefill and (not host or not port):
            raise RequestError(
                "do_remote_prefill needs remote_host and remote_port, as the reply to "
                "do_remote_decode has them.",
                "kv_transfer_params",
            )
        if not self.do_remote_decode and host is None:
            return None
        return KVTransfer(self.do_remote_decode, host, port or 0)


class StreamOptions(BaseModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class ResponseFormat(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: str
    json_schema: dict[str, Any] | None = Field(None, description="Its `schema` is enforced.")
    own_schema: dict[str, Any] | bool | None = Field(
        None,
        alias="schema",
        description="Of `json_object` and `json_schema`, as llama-server and Together take it.",
    )


class SamplingFields(with_numbers(Body, openai_number)):  # type: ignore[misc]  # made of a table
    """How tokens are chosen. None: the model's default, then OpenAI's."""

    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = UNSUPPORTED_GENERATION
    IGNORED: ClassVar[Mapping[str, str]] = IGNORED_GENERATION

    n: int = Field(1, ge=1, le=128, description="Completions per prompt.")
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: str | Items[str] = []
    stop_token_ids: Items[int] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    bad_words: Items[str] = []
    allowed_token_ids: Items[int] | None = None
    samplers: str | Items[str] | None = Field(None, description=SAMPLERS_DESCRIPTION)
    dry_sequence_breakers: Items[str] | None = Field(None, description=BREAKERS_DESCRIPTION)
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, description="Keep only the last so many prompt tokens; -1 fits the context."
    )


class MovableBody(Body):
    """What bodies take whose prompt and reply may be computed by two engines."""

    kv_transfer_params: KVTransferParams | None = Field(
        None, description="vLLM's; docs/disaggregated.md says how it is used."
    )

    @property
    def kv_transfer(self) -> KVTransfer | None:
        given = self.kv_transfer_params
        return None if given is None else given.transfer()


class GenerationBody(SamplingFields, TextBody):
    """What OpenAI's generating routes share."""

    response_format: ResponseFormat | None = Field(
        None, description="`text`, `json_object`, `json_schema` or `structural_tag`."
    )
    structured_outputs: dict[str, Any] | None = Field(
        None,
        description="One of json, regex, choice, grammar (GBNF or Lark), json_object, "
        "structural_tag.",
    )
    grammar: str = Field("", description="GBNF or Lark, as llama-server takes it.")
    json_schema: dict[str, Any] | bool | None = Field(
        None, description="What the reply is JSON of, as llama-server takes it."
    )
    n_predict: int | None = Field(
        None,
        ge=-1,
        description="As llama-server takes it: over `max_tokens`, up to what the context has room "
        "for; -1 fills it.",
    )
    stream: bool = False
    stream_options: StreamOptions | None = None
    echo: bool = False
    prompt_cache_key: str | None = Field(
        None,
        description="Requests of one session say the same, and keep what is cached of it from "
        "others' evictions. Headers such as `x-session-id` count before it.",
    )
    return_prefix_report: bool = Field(
        False, description="Usage says where the prompt parted from what was cached, and why."
    )
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = Field(
        False, description="Logprobs name tokens as `token_id:N`."
    )
    timings_per_token: bool = Field(
        False, description="llama-server's `timings` in every chunk, not only the last."
    )

    @model_validator(mode="before")
    @classmethod
    def _no_end(cls, fields: Any) -> Any:
        """-1 is what LM Studio's clients send for a reply without an end."""
        if not isinstance(fields, dict):
            return fields
        endless = [name for name in _LENGTHS if fields.get(name) == -1]
        rest = {name: value for name, value in fields.items() if name not in endless}
        return {"n_predict": -1, **rest} if endless else fields

    def default_length(self, of_model: int | None) -> int | None:
        if self.n_predict is None:
            return of_model
        return None if self.n_predict == -1 else self.n_predict
