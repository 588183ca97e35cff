"""What a config makes of a model's files: its spec, its tensors, its weights."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from pagoda.arch.registry import spec_for
from pagoda.arch.sentence import with_sentence_files
from pagoda.arch.spec import ModelSpec, PoolingMethod
from pagoda.base.errors import ConfigError
from pagoda.base.log import get_logger
from pagoda.config.engine import ModelConfig
from pagoda.planner.assumed import Dummy, dummy_of
from pagoda.planner.quantization import quantized_tensors, rounding_in_words
from pagoda.weights.checkpoint import Checkpoint, TensorInfo
from pagoda.weights.files import ModelFiles
from pagoda.weights.quantized import QuantizedCheckpoint

log = get_logger("engine.model_files")


def spec_of(files: ModelFiles, config: ModelConfig) -> ModelSpec:
    """What the headers say of the model."""
    spec = spec_for(files.config, files.metadata, _tensors_of(files, config))
    if files.kind == "safetensors":
        spec = with_sentence_files(spec, files.config, files.folder)
    return _pooled(spec, config)


def _pooled(spec: ModelSpec, config: ModelConfig) -> ModelSpec:
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


def checkpoint_of(files: ModelFiles, spec: ModelSpec, config: ModelConfig) -> Checkpoint | None:
    """Its weights, rounded where a resolved config says so; None for a dummy load."""
    if config.load_format == "dummy":
        return None
    checkpoint = files.checkpoint
    if config.quantization == "none":
        return checkpoint
    log.info("%s", rounding_in_words(spec, checkpoint.tensors, config.quantization))
    rounded = quantized_tensors(spec, checkpoint.tensors, config.quantization)
    return QuantizedCheckpoint(checkpoint, rounded)


def dummy_in(files: ModelFiles, spec: ModelSpec, config: ModelConfig) -> Dummy | None:
    """What its random weights look like; None where weights are loaded."""
    return dummy_of(spec, files.config) if config.load_format == "dummy" else None


def planned_tensors(
    files: ModelFiles, spec: ModelSpec, config: ModelConfig
) -> Mapping[str, TensorInfo]:
    """Its tensors, or those that config.json lets assume for a dummy load; none where these are
    plain."""
    dummy = dummy_in(files, spec, config)
    return _tensors_of(files, config) if dummy is None or not dummy.tensors else dummy.tensors


def mapped_bytes(files: ModelFiles, config: ModelConfig) -> int:
    """Of the weight files that are read; none for a dummy load."""
    if config.load_format == "dummy":
        return 0
    return sum(path.stat().st_size for path in files.weight_paths())


def _tensors_of(files: ModelFiles, config: ModelConfig) -> Mapping[str, TensorInfo]:
    """None for a dummy load of a folder, which need not hold weights."""
    if config.load_format == "dummy" and files.kind != "gguf":
        return {}
    return files.checkpoint.tensors
