"""The EAGLE-3 head that a config names: where it is, and whether it fits its model."""

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from pagoda.arch.eagle3 import with_eagle3_head
from pagoda.arch.spec import DraftHeadSpec, ModelSpec
from pagoda.base.errors import CheckpointError, ConfigError
from pagoda.config.engine import EngineConfig
from pagoda.planner.memory.tensors import model_tensors
from pagoda.weights.checkpoint import Checkpoint, TensorInfo
from pagoda.weights.files import ModelFiles
from pagoda.weights.joined import HEAD_PREFIX

_READ = ("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
"""Architectures whose layers a head can read."""
_QUOTED = 3


def wants_eagle3(config: EngineConfig, spec: ModelSpec) -> bool:
    """Whether a head is to guess for this model."""
    asked = config.speculation
    if asked.method != "eagle3" or not asked.count("num_speculative_tokens", 1):
        return False
    return spec.encoder is None and spec.writes_text


def head_name(config: EngineConfig, spec: ModelSpec) -> str:
    """The head that `config` names; ConfigError where this model can have none."""
    name = config.speculation.model
    problem = ""
    if not name:
        problem = (
            "no head is named. Write --speculative-config "
            '\'{"method": "eagle3", "model": "HEAD"}\' with a folder, a GGUF or a hub model'
        )
    elif spec.architecture not in _READ:
        problem = (
            f"the layers of {spec.architecture} cannot be read by a head here; those of "
            f"{', '.join(_READ)} can"
        )
    elif config.parallel.num_ranks > 1:
        problem = "a head drafts on one device only, and several share this model"
    elif config.model.load_format == "dummy":
        problem = "a head guesses nothing that random weights (--load-format dummy) say"
    if problem:
        raise ConfigError(
            f"The method eagle3 cannot be used: {problem}. Or take another method, such as suffix."
        )
    return name


def with_head(
    files: ModelFiles, spec: ModelSpec, head: ModelFiles, source: str
) -> tuple[ModelFiles, ModelSpec]:
    """A model's files and spec with a head's, which comes from `source`.

    CheckpointError and UnsupportedModelError for a head that does not fit.
    """
    spec = fitted(spec, head, source)
    _check_token_map(spec, head.checkpoint, source)
    return replace(files, draft_head=head), spec


def fitted(spec: ModelSpec, head: ModelFiles, source: str) -> ModelSpec:
    """`spec` with the head, by its headers alone. Raises as `with_head`."""
    tensors = head.checkpoint.tensors
    spec = with_eagle3_head(spec, head.config, head.metadata, tensors, source)
    _check_tensors(spec, tensors, source)
    return spec


def _check_tensors(spec: ModelSpec, tensors: Mapping[str, TensorInfo], source: str) -> None:
    """CheckpointError where they are not those of the spec."""
    held = {tensor.name: tensor for tensor in model_tensors(spec)}
    used = set()
    for rule in _head_of(spec).weights:
        names = [name.removeprefix(HEAD_PREFIX) for name in rule.sources]
        missing = [name for name in names if name not in tensors]
        if missing:
            raise CheckpointError(f"{source} lacks {_quoted(missing)}; fetch it again.")
        used.update(names)
        shapes = [tensors[name].shape for name in names]
        rows, columns = sum(sum(shape[:1]) for shape in shapes), {shape[1:] for shape in shapes}
        wanted = held[rule.param].shape
        if rows != wanted[0] or columns != {wanted[1:]}:
            found = " and ".join(str(list(shape)) for shape in shapes)
            raise CheckpointError(
                f"{source}: {_quoted(names)} has the shape {found}, and the sizes of the head and "
                f"of this model make it {list(wanted)}. The head was trained for another model."
            )
    unused = [name for name in tensors if name not in used and not _is_left_out(spec, name)]
    if unused:
        raise CheckpointError(
            f"{source} holds {_quoted(unused)}, which an EAGLE-3 head as known here has no place "
            "for; take another head."
        )


def _check_token_map(spec: ModelSpec, checkpoint: Checkpoint, source: str) -> None:
    """CheckpointError unless each of the head's tokens is one of the model's."""
    eagle3 = _head_of(spec).eagle3
    assert eagle3 is not None
    if eagle3.mapped == "no":
        return
    if checkpoint.tensors["d2t"].type != "I64":
        stored = checkpoint.tensors["d2t"].type
        raise CheckpointError(f"{source}: d2t is stored as {stored}; it holds numbers of 64 bits.")
    ids = checkpoint.read("d2t").view("<i8").flatten().tolist()
    if eagle3.mapped == "by offset":
        ids = [place + offset for place, offset in enumerate(ids)]
    if not all(0 <= id < spec.vocab_size for id in ids):
        raise CheckpointError(
            f"{source}: d2t names tokens from {min(ids)} to {max(ids)}, and the model has those "
            f"below {spec.vocab_size}. The head was trained for another model, or is damaged."
        )


def _head_of(spec: ModelSpec) -> DraftHeadSpec:
    assert spec.draft_head is not None
    return spec.draft_head


def _is_left_out(spec: ModelSpec, name: str) -> bool:
    return any(fnmatchcase(HEAD_PREFIX + name, pattern) for pattern in spec.ignored_weights)


def _quoted(names: list[str]) -> str:
    more = f" and {len(names) - _QUOTED} more" if len(names) > _QUOTED else ""
    # Names come from the file: control characters must not reach the log.
    return f"{', '.join(ascii(name)[1:-1] for name in names[:_QUOTED])}{more}"
