"""How a text's states become a vector or a score: as the model's files say, or as flags do."""

from dataclasses import replace
from typing import cast

from pagoda.arch.spec import ModelSpec, PoolingMethod
from pagoda.base.errors import ConfigError
from pagoda.config.engine import ModelConfig


def with_pooling(spec: ModelSpec, config: ModelConfig) -> ModelSpec:
    """The spec with the pooling that was asked for; ConfigError for what the model cannot do."""
    wanted, task = config.pooling, config.task
    classifies = bool(spec.pooling.labels)
    if task == "generate" and not spec.writes_text:
        raise ConfigError(
            "--task generate (or --runner generate) asks for text, and this model writes none: it "
            "gives vectors or scores. Leave the flag out, or serve a model that generates."
        )
    if (task == "classify" or wanted == "rank") and not classifies:
        asked = "--task classify" if task == "classify" else "--pooling rank"
        raise ConfigError(
            f"{asked} needs a classifier, and this model has none. Leave the flag out: /score and "
            "/rerank then compare vectors."
        )
    if wanted in ("auto", "rank", spec.pooling.method):
        return spec
    if spec.encoder is None or classifies:
        kind = "a classifier was trained with its own" if classifies else "decoders pool by last"
        raise ConfigError(
            f"--pooling {wanted} is not possible here: {kind}. Leave the flag out; this model "
            f"pools by {spec.pooling.method}."
        )
    return replace(spec, pooling=replace(spec.pooling, method=cast(PoolingMethod, wanted)))
