"""Models by what stands on their last layer: an output head, nothing, or a classifier."""

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from pagoda.arch.read import MAX_WIDTH, Reader
from pagoda.arch.spec import ModelSpec, PoolingMethod, PoolingSpec, WeightRule
from pagoda.base.errors import UnsupportedModelError

Activation = Literal["sigmoid", "softmax", "identity"]

_PREFIX = "model."
_NESTED = "model.language_model."
_HEADLESS = ("Model", "ForSequenceClassification")
_GGUF_CLASSIFIER = "cls.output.weight"
_GGUF_UNPOOLED = 0
_GGUF_POOLING: dict[int, PoolingMethod] = {1: "mean", 2: "cls", 3: "last"}
"""llama.cpp's numbers."""


def causal_class(name: str) -> str:
    """The class that writes text of the same family: Qwen3ForCausalLM of Qwen3Model."""
    for ending in _HEADLESS:
        if name.endswith(ending):
            return name.removesuffix(ending) + "ForCausalLM"
    return name


def with_config_head(
    spec: ModelSpec, name: str, reader: Reader, tensor_names: Collection[str]
) -> ModelSpec:
    """The spec of a decoder, `spec` being that of its causal class and `name` its own class.

    Embedding models often name the causal class and hold a bare model all the same: the tensors'
    names decide where there are any.
    """
    if name.endswith("ForSequenceClassification"):
        pooling = classifier_pooling(reader, "last")
        return _with_classifier(_without_head(spec), "score.weight", pooling)
    if "embed_tokens.weight" in tensor_names or (name.endswith("Model") and not tensor_names):
        return _without_prefix(_without_head(spec))
    return _without_head(spec) if name.endswith("Model") else spec


def with_gguf_head(spec: ModelSpec, reader: Reader, tensor_names: Collection[str]) -> ModelSpec:
    """The spec of a GGUF decoder, which holds a classifier where llama.cpp converted a reranker."""
    if _GGUF_CLASSIFIER not in tensor_names:
        return _with_gguf_pooling(spec, reader)
    labels = reader.texts("classifier.output_labels", ("LABEL_0",))
    activation: Activation = "sigmoid" if len(labels) == 1 else "softmax"
    pooling = PoolingSpec("last", False, None, labels, activation)
    return _with_classifier(_without_head(spec), _GGUF_CLASSIFIER, pooling)


def _with_gguf_pooling(spec: ModelSpec, reader: Reader) -> ModelSpec:
    """With the pooling that llama.cpp's converter noted, where the model is for vectors."""
    code = reader.raw("pooling_type")
    if code is None or code == _GGUF_UNPOOLED:
        return spec
    if code not in _GGUF_POOLING:
        known = ", ".join(f"{number} ({name})" for number, name in _GGUF_POOLING.items())
        raise UnsupportedModelError(
            f"The GGUF pools by type {code!r}, which is none of {known}; a ranker (4) needs its "
            "tensor cls.output.weight."
        )
    return replace(spec, pooling=replace(spec.pooling, method=_GGUF_POOLING[code]))


def _without_head(spec: ModelSpec) -> ModelSpec:
    return replace(
        spec,
        weights=tuple(rule for rule in spec.weights if rule.param != "head.weight"),
        ignored_weights=(*spec.ignored_weights, "lm_head.weight"),
        tie_word_embeddings=True,
        writes_text=False,
    )


def _without_prefix(spec: ModelSpec) -> ModelSpec:
    rules = (
        replace(rule, sources=tuple(source.removeprefix(_PREFIX) for source in rule.sources))
        for rule in spec.weights
    )
    return replace(spec, weights=tuple(rules))


def as_nested(spec: ModelSpec, tensor_names: Collection[str]) -> ModelSpec:
    """With the names under which some programs save a language model that a tower stands beside,
    where the tensors have them: `model.language_model.` and `model.visual.`."""
    flat = any(_PREFIX + "embed_tokens.weight" in rule.sources for rule in spec.weights)
    if spec.vision is None or not flat or _NESTED + "embed_tokens.weight" not in tensor_names:
        return spec
    vision = replace(spec.vision, weights=tuple(map(_nested, spec.vision.weights)))
    return replace(spec, weights=tuple(map(_nested, spec.weights)), vision=vision)


def _nested(rule: WeightRule) -> WeightRule:
    sources = []
    for source in rule.sources:
        if source.startswith("visual."):
            source = _PREFIX + source
        elif source.startswith(_PREFIX) and not source.startswith((_NESTED, _PREFIX + "visual.")):
            source = _NESTED + source.removeprefix(_PREFIX)
        sources.append(source)
    return replace(rule, sources=tuple(sources))


def _with_classifier(spec: ModelSpec, source: str, pooling: PoolingSpec) -> ModelSpec:
    rule = WeightRule("score.weight", (source,))
    return replace(spec, weights=(*spec.weights, rule), pooling=pooling)


def classifier_pooling(reader: Reader, method: PoolingMethod) -> PoolingSpec:
    """Labels and activation of a classifier; a cross-encoder is one with a single label."""
    section = reader.section("id2label")
    # transformers writes two labels where it writes none.
    count = reader.integer("num_labels", MAX_WIDTH, 2)
    labels = tuple(f"LABEL_{index}" for index in range(count))
    if section is not None:
        labels = tuple(section.text(str(index)) for index in range(len(reader.raw("id2label"))))
    return PoolingSpec(method, False, None, labels, score_activation(reader, len(labels)))


def score_activation(reader: Reader, count: int) -> Activation:
    """As the checkpoint's problem type says, else sentence-transformers' entry, else by count."""
    problem = reader.raw("problem_type")
    if problem == "regression":
        return "identity"
    if problem == "multi_label_classification":
        return "sigmoid"
    section = reader.section("sentence_transformers")
    chosen = reader.raw("sbert_ce_default_activation_function")
    chosen = section.raw("activation_fn") if section is not None else chosen
    if problem is None and chosen is not None:
        name = str(chosen).rpartition(".")[2]
        if name not in ("Identity", "Sigmoid"):
            raise UnsupportedModelError(
                f"config.json asks for the activation {chosen!r} of scores; known are Identity "
                "and Sigmoid."
            )
        return "identity" if name == "Identity" else "sigmoid"
    return "sigmoid" if count == 1 else "softmax"
