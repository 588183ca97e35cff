"""What sentence-transformers' files add to a spec: pooling, normalization, the longest input."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pagoda.arch.heads import score_activation
from pagoda.arch.names import linear_rules
from pagoda.arch.read import MAX_CONTEXT, MAX_VOCAB, MAX_WIDTH, Reader
from pagoda.arch.spec import DenseSpec, ModelSpec, PoolingMethod, PoolingSpec, WeightRule
from pagoda.base.errors import UnsupportedModelError
from pagoda.weights.jsonfile import read_json, read_json_list
from pagoda.weights.sentence import MODULES, is_dense

# sentence-transformers' names, since version 6 and as flags before.
_METHODS: dict[str, PoolingMethod] = {
    "mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last",
    "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max", "pooling_mode_lasttoken": "last",
}  # fmt: skip
_FOLDER = re.compile(r"[\w.-]+", re.ASCII)
# torch's classes; sentence-transformers' default is the latter.
_ACTIVATIONS: dict[str, Literal["identity", "tanh"]] = {"Identity": "identity", "Tanh": "tanh"}


def with_sentence_files(
    spec: ModelSpec, config: Mapping[str, Any] | None, folder: Path
) -> ModelSpec:
    """The spec of a checkpoint whose folder may hold sentence-transformers' files.

    Without them it stays as its architecture has it. Raises CheckpointError for broken files,
    UnsupportedModelError for a module or a way of pooling that is not known here.
    """
    spec = _with_longest_input(spec, folder)
    if spec.pooling.labels:
        return spec
    pooling = _dimensions(spec.pooling, Reader(config or {}, "config.json"))
    path = folder / MODULES
    if not path.is_file():
        return replace(spec, pooling=pooling)
    reader, modules = Reader(config or {}, "config.json"), read_json_list(path)
    pooling = _with_modules(pooling, modules, folder, reader)
    return replace(spec, pooling=pooling, weights=(*spec.weights, *_dense_rules(pooling, modules)))


def _with_longest_input(spec: ModelSpec, folder: Path) -> ModelSpec:
    """Until version 6 the length stood in `sentence_bert_config.json` (or another family's
    name), since then in tokenizer_config.json."""
    lengths = [
        Reader(read_json(path), path.name).integer("max_seq_length", MAX_CONTEXT, spec.max_position)
        for path in folder.glob("sentence_*_config.json")
    ]
    tokenizer = folder / "tokenizer_config.json"
    if not lengths and spec.encoder is not None and tokenizer.is_file():
        # Where there is no limit transformers writes one of 10^30.
        longest = read_json(tokenizer).get("model_max_length")
        if isinstance(longest, int | float) and longest >= 1:
            lengths = [int(min(longest, spec.max_position))]
    return replace(spec, max_position=min([spec.max_position, *lengths]))


def _dimensions(pooling: PoolingSpec, config: Reader) -> PoolingSpec:
    listed = config.raw("matryoshka_dimensions")
    if listed is None and not config.has("is_matryoshka"):
        return pooling
    if listed is None:
        return replace(pooling, dimensions=() if config.flag("is_matryoshka", False) else None)
    count = len(listed) if isinstance(listed, list) else 1
    return replace(pooling, dimensions=config.integers("matryoshka_dimensions", count, MAX_WIDTH))


def _with_modules(
    pooling: PoolingSpec, modules: list[Any], folder: Path, config: Reader
) -> PoolingSpec:
    pooling = replace(pooling, normalize=False)
    for entry in modules:
        module = Reader(entry if isinstance(entry, Mapping) else {}, MODULES)
        kind = module.text("type").rpartition(".")[2]
        if kind == "Pooling":
            pooling = replace(pooling, method=_method(_module_config(module, folder)))
        elif kind == "LogitScore":
            pooling = replace(
                pooling,
                labels=("LABEL_0",),
                activation=score_activation(config, 1),
                answers=_answers(_module_config(module, folder)),
            )
        elif kind == "Normalize":
            pooling = replace(pooling, normalize=True)
        elif kind == "Dense":
            pooling = replace(
                pooling, dense=(*pooling.dense, _dense(_module_config(module, folder)))
            )
        elif kind != "Transformer":
            raise UnsupportedModelError(
                f"{MODULES} asks for {kind!r}; known are Transformer, Pooling, Dense, Normalize "
                "and LogitScore. Choose a model without it."
            )
    return pooling


def _module_config(module: Reader, folder: Path) -> Reader:
    name = module.text("path")
    if not _FOLDER.fullmatch(name):
        raise module.error("path", f"is {name!r}, which is no name of a folder")
    config = folder / name / "config.json"
    return Reader(read_json(config), str(config))


def _dense(config: Reader) -> DenseSpec:
    activation = config.text("activation_function", "Tanh").rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"A Dense module has the activation {activation!r}; known are "
            f"{' and '.join(_ACTIVATIONS)}. Choose a model without it."
        )
    return DenseSpec(
        config.integer("in_features", MAX_WIDTH),
        config.integer("out_features", MAX_WIDTH),
        config.flag("bias", True),
        _ACTIVATIONS[activation],
    )


def _dense_rules(pooling: PoolingSpec, modules: list[Any]) -> list[WeightRule]:
    """Names as `weights.sentence` gives them to the tensors of modules."""
    rules: list[WeightRule] = []
    folders = [Reader(entry, MODULES).text("path") for entry in modules if is_dense(entry)]
    for index, (dense, name) in enumerate(zip(pooling.dense, folders, strict=True)):
        rules += linear_rules(f"projections.{index}", (f"{name}/linear",), dense.bias)
    return rules


def _answers(config: Reader) -> tuple[int, int | None]:
    no = None
    if config.has("false_token_id"):
        no = config.integer("false_token_id", MAX_VOCAB, minimum=0)
    return config.integer("true_token_id", MAX_VOCAB, minimum=0), no


def _method(config: Reader) -> PoolingMethod:
    if config.has("pooling_mode"):
        mode = config.raw("pooling_mode")
        modes = [str(item) for item in (mode if isinstance(mode, list) else [mode])]
    else:
        names = [*_METHODS, "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens"]
        modes = [name for name in names if config.flag(name, False)]
    if len(modes) != 1 or modes[0] not in _METHODS:
        raise UnsupportedModelError(
            f"The model pools by {' and '.join(modes) or 'nothing'}; known are one of mean, cls, "
            "max and lasttoken."
        )
    return _METHODS[modes[0]]
