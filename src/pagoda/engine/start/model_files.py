"""What a config makes of a model's files: its spec, its tensors, its weights."""

from collections.abc import Mapping
from dataclasses import replace

from pagoda.arch.registry import spec_for
from pagoda.arch.sentence import with_sentence_files
from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import ConfigError
from pagoda.base.log import get_logger
from pagoda.config.engine import ModelConfig
from pagoda.planner.encoder import with_pooling
from pagoda.planner.memory.assumed import dummy_of
from pagoda.planner.quantization import quantized_tensors, rounding_in_words
from pagoda.planner.resolved import ResolvedModel
from pagoda.weights.checkpoint import Checkpoint, TensorInfo
from pagoda.weights.files import ModelFiles
from pagoda.weights.quantized import QuantizedCheckpoint

log = get_logger("engine.model_files")


def spec_of(files: ModelFiles, config: ModelConfig) -> ModelSpec:
    """What the headers say of the model."""
    spec = spec_for(files.config, files.metadata, _tensors_of(files, config))
    if files.kind == "safetensors":
        spec = with_sentence_files(spec, files.config, files.folder)
    if config.score_tokens is not None:
        spec = _with_answers(spec, files, config, config.score_tokens)
    return with_pooling(spec, config)


def _with_answers(spec: ModelSpec, files: ModelFiles, config: ModelConfig, words: str) -> ModelSpec:
    """The spec of a model that ranks by what it would say; ConfigError where it cannot."""
    from pagoda.engine.served.text_side import tokenizer_of

    given = words.split(",")
    if len(given) != 2 or not spec.writes_text:
        needs = "two words with a comma between" if spec.writes_text else "a model that writes text"
        raise ConfigError(f"--score-tokens {words} needs {needs}: --score-tokens no,yes.")
    tokenizer, ids = tokenizer_of(config, files), []
    for word in given:
        found = tokenizer.encode(word, add_special_tokens=False)
        if len(found) != 1:
            raise ConfigError(
                f"--score-tokens {words}: {word!r} is {len(found)} tokens of this model, and must "
                "be one."
            )
        ids += found
    no, yes = ids
    pooling = replace(spec.pooling, labels=("LABEL_0",), activation="sigmoid", answers=(yes, no))
    return replace(spec, pooling=pooling)


def checkpoint_of(files: ModelFiles, spec: ModelSpec, config: ResolvedModel) -> Checkpoint | None:
    """Its weights, rounded where `config` says so; None for a dummy load."""
    if config.dummy:
        return None
    checkpoint = files.checkpoint
    if config.quantization == "none":
        return checkpoint
    log.info("%s", rounding_in_words(spec, checkpoint.tensors, config.quantization))
    rounded = quantized_tensors(spec, checkpoint.tensors, config.quantization)
    return QuantizedCheckpoint(checkpoint, rounded)


def planned_tensors(
    files: ModelFiles, spec: ModelSpec, config: ModelConfig
) -> Mapping[str, TensorInfo]:
    """Its tensors, or those that config.json lets assume for a dummy load; none where these are
    plain."""
    assumed = dummy_of(spec, files.config).tensors if config.load_format == "dummy" else None
    return assumed or _tensors_of(files, config)


def mapped_bytes(files: ModelFiles, config: ModelConfig) -> int:
    """Bytes of the weight files that are read; none for a dummy load."""
    if config.load_format == "dummy":
        return 0
    return sum(path.stat().st_size for path in files.weight_paths())


def _tensors_of(files: ModelFiles, config: ModelConfig) -> Mapping[str, TensorInfo]:
    """None for a dummy load of a folder, which need not hold weights."""
    if config.load_format == "dummy" and files.kind != "gguf":
        return {}
    return files.checkpoint.tensors
