"""An engine in this process, for the benches."""

import argparse
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pagoda.base.errors import ConfigError
from pagoda.base.log import get_logger, setup_logging
from pagoda.config.compat import add_compat_flags, answers
from pagoda.config.engine import EngineConfig, ModelConfig
from pagoda.config.flags import add_engine_flags, engine_config
from pagoda.config.speculation import SpeculationConfig

if TYPE_CHECKING:
    from pagoda.bench.inprocess import BenchEngine


def add_own_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add them first: a bench's own flag of the same name (--batch-size) then takes its place."""
    parser.conflict_handler = "resolve"
    add_engine_flags(parser)
    add_compat_flags(parser)


@contextmanager
def own_engine(args: argparse.Namespace, *, max_model_len: int) -> Iterator["BenchEngine"]:
    """The engine of the flags. Unless they say otherwise its context is `max_model_len`,
    equal prefixes are computed again and nothing is guessed, so that a repeated run measures the
    same work, and steps take whatever they take, for nobody reads along.

    Raises ConfigError where the longest request, `max_model_len` tokens, does not fit.
    """
    from pagoda.bench.inprocess import BenchEngine

    engine = BenchEngine.start(own_config(args, max_model_len=max_model_len))
    try:
        _refuse_beyond(engine.ready.max_model_len, max_model_len)
        yield engine
    finally:
        engine.close()


def own_config(args: argparse.Namespace, *, max_model_len: int) -> EngineConfig:
    """The configuration of `own_engine`. Raises ConfigError as that does."""
    from pagoda.engine.served.text_side import fetch_model

    setup_logging("warning")
    for line in answers(args):
        get_logger("cli.bench").warning("%s", line)
    config = engine_config(args)
    model, cache, scheduler = fetch_model(config.model), config.cache, config.scheduler
    _check_length(model, max_model_len)
    if model.max_model_len is None:
        model = dataclasses.replace(model, max_model_len=max_model_len)
    if not hasattr(args, "enable_prefix_caching"):
        cache = dataclasses.replace(cache, enable_prefix_caching=False)
    if not hasattr(args, "max_step_ms"):
        scheduler = dataclasses.replace(scheduler, max_step_ms=0)
    speculation = config.speculation
    if not hasattr(args, "speculative_config"):
        speculation = SpeculationConfig({"method": "none"})
    return dataclasses.replace(
        config, model=model, cache=cache, scheduler=scheduler, speculation=speculation
    )


def _check_length(model: ModelConfig, longest: int) -> None:
    """What can be told before the weights are loaded."""
    from pagoda.arch.registry import spec_for
    from pagoda.weights.files import open_model

    limit = model.max_model_len
    if limit is None:
        files = open_model(Path(model.model))
        dummy = model.load_format == "dummy" and files.kind != "gguf"
        tensors = () if dummy else files.checkpoint.tensors
        limit = spec_for(files.config, files.metadata, tensors).max_position
    if isinstance(limit, int):
        _refuse_beyond(limit, longest)


def _refuse_beyond(limit: int, longest: int) -> None:
    if longest > limit:
        raise ConfigError(
            f"The longest request has {longest} tokens, prompt and output together; the context "
            f"holds {limit}. Lower --input-len or --output-len, or raise --max-model-len."
        )


class LocalTokenizer:
    """The model's tokenizer, with the face of a server's."""

    def __init__(self, model: ModelConfig):
        from pagoda.engine.served.text_side import fetch_model
        from pagoda.text.tokenizer import load_tokenizer
        from pagoda.weights.files import open_model

        wanted = dataclasses.replace(model, model=model.tokenizer or model.model)
        self._tokenizer = load_tokenizer(open_model(Path(fetch_model(wanted).model)))

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    async def ids(self, text: str) -> list[int] | None:
        return self._tokenizer.encode(text, add_special_tokens=False)

    async def count(self, text: str) -> int:
        return len(self.encode(text))
