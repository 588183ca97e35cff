"""A model that is served: its engine and the text side of it."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pagoda.arch.spec import PoolingSpec
from pagoda.config.engine import EngineConfig, MediaConfig
from pagoda.core.messages import AddRequest, EngineProgress, PoolingParams
from pagoda.core.sampling import SamplingParams
from pagoda.engine import requests
from pagoda.engine.aside.direct import Aside, Direct
from pagoda.engine.media import Placed, attach_media
from pagoda.engine.processes.client import Progress
from pagoda.engine.replicas.launch import Engine, launch
from pagoda.engine.requests import fan_out
from pagoda.engine.served.text_side import TextSide, fetch_model, load_text_side
from pagoda.engine.start.progress import WEIGHTS_PHASE
from pagoda.text.parsers.base import ParserFamily
from pagoda.text.template.chat import ChatTemplate
from pagoda.text.tokenizer import Tokenizer

__all__ = ["ServedModel", "fan_out", "start_served_model"]


@dataclass
class ServedModel:
    """One model under its names: an engine, and the text side of it."""

    names: tuple[str, ...]
    """The first is the one reported."""
    client: Engine
    text: TextSide
    root: str
    """The model as it was asked for."""
    work: Aside | None = None
    """Who renders, tokenizes and decodes beside the event loop; None: threads of this process."""
    max_logprobs: int = 20
    media: MediaConfig = field(default_factory=MediaConfig)
    created: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def aside(self) -> Aside:
        return self.work or Direct(self.text)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.text.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self.text.chat_template

    @property
    def parser(self) -> ParserFamily:
        return self.text.parser

    @property
    def defaults(self) -> dict[str, Any]:
        return self.text.defaults

    @property
    def generates(self) -> bool:
        """False for a model of vectors or scores; True until the engine was ready once."""
        return self.client.ready is None or self.client.ready.generates

    @property
    def pooling(self) -> PoolingSpec:
        ready = self.client.ready
        return PoolingSpec() if ready is None else ready.pooling

    @property
    def max_model_len(self) -> int:
        """0 until the engine was ready once."""
        ready = self.client.ready
        return ready.max_model_len if ready is not None else 0

    @property
    def modalities(self) -> list[str]:
        """What a prompt may hold: `text`, and kinds of media that both sides take."""
        ready = self.client.ready
        media = {} if ready is None else ready.media
        return ["text", *(kind for kind in self.text.media if kind in media)]

    def make_request(
        self,
        req_id: str,
        prompt_ids: list[int],
        sampling: SamplingParams,
        *,
        media: Sequence[Placed] = (),
        grammar: str | None = None,
        prediction: Sequence[int] = (),
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AddRequest:
        """A request for this model's engine; `n` of `sampling` is `fan_out`'s business, and
        `prediction` what the client expects of the reply.

        Raises ContextLengthError when prompt and max_tokens, or the prediction, do not fit the
        context, and RequestError for anything else that this model cannot do.
        """
        limits = self._limits()
        request = requests.make_request(
            req_id, prompt_ids, sampling, self.tokenizer, limits, grammar
        )
        request.prediction_token_ids = requests.checked_prediction(prediction, limits)
        attach_media(request, media)
        request.priority = priority
        request.cache_salt = cache_salt
        return request

    def make_pool_request(
        self,
        req_id: str,
        prompt_ids: list[int],
        pooling: PoolingParams,
        *,
        media: Sequence[Placed] = (),
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AddRequest:
        """A request for a vector or for scores; raises as `make_request` does."""
        request = requests.make_pool_request(req_id, prompt_ids, pooling, self._limits())
        attach_media(request, media)
        request.priority = priority
        request.cache_salt = cache_salt
        return request

    def _limits(self) -> requests.RequestLimits:
        ready = self.client.ready
        return requests.RequestLimits(
            max_model_len=self.max_model_len,
            vocab_size=ready.vocab_size if ready is not None else self.tokenizer.vocab_size,
            max_logprobs=self.max_logprobs,
            generates=self.generates,
        )


async def start_served_model(
    config: EngineConfig, progress: Progress, *, log_level: str = "info"
) -> ServedModel:
    """Fetch the model if it is not local, and wait until it serves; `progress` hears of each phase.

    Raises what loading raises: SourceError, CheckpointError, ConfigError, EngineDeadError.
    """
    local = replace(config, model=fetch_model(config.model))
    client = launch(local, log_level=log_level)
    try:
        loading = asyncio.to_thread(load_text_side, local.model)
        text = await both_sides(loading, client, progress=progress)
    except BaseException:
        await client.shutdown()
        raise
    return served_model(config, client, text)


async def both_sides(
    text: Awaitable[TextSide],
    client: Engine,
    *,
    timeout: float | None = None,
    progress: Progress,
) -> TextSide:
    """The text side, once the engine is ready too.

    Raises what either raises. Where both would, the engine's error comes first: a config.json of
    another model is no reason to go and look for its tokenizer.
    """
    weights_fit = asyncio.Event()

    def watch(step: EngineProgress) -> None:
        if step.phase == WEIGHTS_PHASE and step.total:
            weights_fit.set()
        progress(step)

    loading = asyncio.ensure_future(text)
    engine = asyncio.ensure_future(client.wait_ready(timeout, watch))
    fitting = asyncio.ensure_future(weights_fit.wait())
    try:
        await asyncio.wait((loading, engine), return_when=asyncio.FIRST_EXCEPTION)
        await asyncio.wait((engine, fitting), return_when=asyncio.FIRST_COMPLETED)
        if engine.done():
            engine.result()
        return loading.result()
    finally:
        for task in (loading, engine, fitting):
            task.cancel()
        await asyncio.gather(loading, engine, fitting, return_exceptions=True)


def served_model(
    config: EngineConfig, client: Engine, text: TextSide, work: Aside | None = None
) -> ServedModel:
    """What `config` asked for, under the names it gives."""
    return ServedModel(
        names=config.model.served_model_name or (config.model.model,),
        client=client,
        text=text,
        root=config.model.model,
        work=work,
        max_logprobs=config.model.max_logprobs,
        media=config.media,
    )
