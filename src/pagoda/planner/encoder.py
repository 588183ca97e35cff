"""What an encoder's "auto" values become: each text is computed whole, in one step. And how a
text's states become a vector or a score: as the model's files say, or as flags do."""

from dataclasses import replace
from typing import cast

from pagoda.arch.encoder import EncoderSpec
from pagoda.arch.spec import ModelSpec, PoolingMethod
from pagoda.base.errors import ConfigError
from pagoda.base.facts import DeviceFacts
from pagoda.base.words import say
from pagoda.config.engine import EngineConfig, ModelConfig
from pagoda.planner.reason import Reason

DTYPE_REASON = say("the checkpoint is F32, and an encoder is small")


def resolve_encoder(
    config: EngineConfig,
    spec: ModelSpec,
    encoder: EncoderSpec,
    facts: DeviceFacts,
    reasons: list[Reason],
) -> EngineConfig:
    """`config` with the longest text and the tokens of a step; ConfigError where they clash."""
    length = config.model.max_model_len
    if not isinstance(length, int):
        length = spec.max_position
        reasons.append(Reason("max_model_len", length, say("the model's own")))
    positions = encoder.num_positions - encoder.position_offset
    if encoder.num_positions and not 1 <= length <= positions:
        raise ConfigError(
            f"--max-model-len {length} must be between 1 and {positions}: this encoder has learned "
            "no more positions."
        )
    tokens = config.scheduler.max_num_batched_tokens
    if tokens == "auto":
        tokens = max(512 if facts.device == "cpu" else 16384, length)
        why = say("default on {device}", device=facts.device)
        reasons.append(Reason("max_num_batched_tokens", tokens, why))
    if int(tokens) < length:
        why = say("not {tokens}: an encoder computes each text in one step", tokens=tokens)
        tokens = length
        reasons.append(Reason("max_num_batched_tokens", tokens, why))
    # No replies run beside the texts, so nothing paces them.
    scheduler = replace(
        config.scheduler,
        max_num_batched_tokens=tokens,
        max_step_ms=0.0,
        enable_chunked_prefill=False,
        long_prefill_token_threshold=0,
    )
    return replace(config, scheduler=scheduler, model=replace(config.model, max_model_len=length))


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
    if classifies:
        raise ConfigError(
            f"--pooling {wanted} is not possible here: a classifier was trained with its own. "
            f"Leave the flag out; this model pools by {spec.pooling.method}."
        )
    return replace(spec, pooling=replace(spec.pooling, method=cast(PoolingMethod, wanted)))
