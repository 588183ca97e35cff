"""The model that the doctor is asked about: its spec and headers, never its weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pagoda.arch.registry import spec_for
from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import SourceError
from pagoda.base.words import message_of, say
from pagoda.config.engine import EngineConfig, ModelConfig
from pagoda.planner.draft_model import (
    DraftModel,
    check_draft_model,
    draft_config,
    draft_model_name,
    named_draft,
)
from pagoda.planner.eagle3 import fitted, head_name, wants_eagle3
from pagoda.planner.memory.assumed import config_tensors, dummy_of
from pagoda.planner.quantization import quantized_tensors
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.choice import VOCABULARIES, is_gguf_model, quant_of
from pagoda.weights.files import ModelFiles, open_model
from pagoda.weights.joined import HEAD_PREFIX, PrefixedCheckpoint
from pagoda.weights.jsonfile import read_json
from pagoda.weights.safetensors import INDEX_NAME
from pagoda.weights.source import parse_ref

HEADERS, ASSUMED, DUMMY = say("headers"), say("config.json alone"), say("random weights")


@dataclass(frozen=True)
class Subject:
    ref: str
    """As it was asked for."""
    spec: ModelSpec
    tensors: Mapping[str, TensorInfo]
    basis: str
    """Where sizes come from: the weights' headers, config.json alone, or `--load-format dummy`."""
    file_bytes: int
    """Bytes of the weight files; 0 where there are none."""
    file: Path | None
    """The first of the weight files."""
    config: Mapping[str, Any]
    """config.json; empty for a GGUF."""
    drafts: bool
    """The checkpoint has a head that drafts several tokens at once."""
    others: tuple[tuple[str, int], ...] = ()
    """Further quantizations beside the file: how to ask for them, and their bytes."""
    missing: tuple[str, ...] = ()
    """Files that serving it needs and its folder lacks."""
    unreached: str = ""
    """Why the hub gave no headers, where the catalogue's config stands in."""
    draft: DraftModel | None = None
    """What guesses tokens for it."""

    def rounded(self, method: str) -> Mapping[str, TensorInfo]:
        """The tensors as `--quantization` with this method leaves them."""
        if method == "none":
            return self.tensors
        return quantized_tensors(self.spec, self.tensors, method)


def find_subject(model: ModelConfig, *, text_only: bool = False) -> Subject:
    """A GGUF without its vision tower if `text_only`. Raises what opening a model raises; the hub
    is asked for headers alone, and the catalogue where it cannot be."""
    from pagoda.weights.hub.remote import fetch_headers

    try:
        path = fetch_headers(model.model, download_dir=model.download_dir, revision=model.revision)
    except SourceError as error:
        return _from_catalogue(model, error)
    files = open_model(path, model.mmproj)
    if text_only:
        files = replace(files, projector=None)
    config = files.config or {}
    missing = _missing(model, files)
    dummy = model.load_format == "dummy" and files.kind != "gguf"
    weights = files.weight_paths()
    if dummy or not weights:
        return replace(_of_config(model, config), missing=missing)
    tensors = files.checkpoint.tensors
    spec = spec_for(files.config, files.metadata, tensors)
    return Subject(
        model.model,
        spec,
        tensors,
        HEADERS,
        sum(weight.stat().st_size for weight in weights),
        weights[0],
        config,
        any(_is_draft(name) for name in tensors),
        _others(model.model, files),
        missing,
    )


def with_draft_model(subject: Subject, config: EngineConfig) -> Subject:
    """With the draft model that `config` asks for. Raises what `find_subject` raises, and
    ConfigError for one that cannot guess for this model; their tokens are not compared."""
    name = draft_model_name(config, subject.spec)
    if name is None:
        return subject
    asked = draft_config(name, config)
    with named_draft(name):
        found = find_subject(asked, text_only=True)
    draft = DraftModel(name, found.spec, found.tensors)
    check_draft_model(config, subject.spec, draft)
    return replace(subject, draft=draft)


def with_eagle3_head(subject: Subject, config: EngineConfig) -> Subject:
    """With the head that `config` asks for, by its headers. Raises what `find_subject` raises, and
    what `planner.eagle3` does for a head that does not fit."""
    from pagoda.weights.hub.remote import fetch_headers

    if not wants_eagle3(config, subject.spec) or subject.spec.drafts:
        return subject
    name = head_name(config, subject.spec)
    head = open_model(fetch_headers(name, download_dir=config.model.download_dir))
    spec = fitted(subject.spec, head, name)
    tensors = PrefixedCheckpoint(head.checkpoint, HEAD_PREFIX).tensors
    return replace(subject, spec=spec, tensors={**subject.tensors, **tensors})


def without_drafts(subject: Subject) -> Subject:
    """Without what was named to guess for it, a draft model or the head of another checkpoint."""
    spec = subject.spec
    named = spec.draft_head is not None and spec.draft_head.eagle3 is not None
    head = None if named else spec.draft_head
    return replace(subject, spec=replace(spec, drafts=False, draft_head=head), draft=None)


def _of_config(model: ModelConfig, config: Mapping[str, Any]) -> Subject:
    """Without headers."""
    spec = spec_for(config, {}, ())
    if model.load_format == "dummy":
        tensors = dummy_of(spec, config).tensors
        return Subject(model.model, spec, tensors, DUMMY, 0, None, config, drafts=False)
    tensors, drafts = config_tensors(spec, config), _config_drafts(config)
    return Subject(model.model, spec, tensors, ASSUMED, 0, None, config, drafts)


def _from_catalogue(model: ModelConfig, error: SourceError) -> Subject:
    """The subject for a hub's model as it is; raises `error` with what else is enough."""
    ref = parse_ref(model.model)
    if ref.kind not in ("hf", "modelscope"):
        raise error
    plain = ref.selector is None and model.revision is None
    config = config_of(ref.name) if plain else None
    if config is None:
        raise SourceError(
            say(
                "{error} To plan it, a folder with its config.json is enough: pagoda doctor "
                "FOLDER. Known without a network: {names}.",
                error=message_of(error),
                names=", ".join(names()),
            )
        ) from error
    return replace(_of_config(model, config), unreached=message_of(error))


def _is_draft(name: str) -> bool:
    """Names as transformers and llama.cpp write them."""
    return name.startswith("mtp.") or ".nextn." in name


def _config_drafts(config: Mapping[str, Any]) -> bool:
    nested = config.get("text_config")
    sections = [config, nested if isinstance(nested, Mapping) else {}]
    names = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
    return any(section.get(name) for section in sections for name in names)


def _missing(model: ModelConfig, files: ModelFiles) -> tuple[str, ...]:
    """The files that a model on this machine lacks; a hub's other files come when it is served."""
    if files.kind == "gguf" or parse_ref(model.model).kind != "local":
        return ()
    found: list[str] = []
    if model.load_format != "dummy" and not files.weight_paths():
        path = files.folder / INDEX_NAME
        index = read_json(path).get("weight_map") if path.is_file() else None
        shards = sorted(set(index.values())) if isinstance(index, dict) else []
        missing = say("the weights")
        if shards:
            missing = say("the weights ({first} and on)", first=shards[0])
        found.append(missing)
    if model.tokenizer is None and not any((files.folder / x).is_file() for x in VOCABULARIES):
        found.append("tokenizer.json")
    return tuple(found)


def _others(ref: str, files: ModelFiles) -> tuple[tuple[str, int], ...]:
    """Other GGUFs in the file's folder, smallest first."""
    if files.kind != "gguf" or not Path(ref).expanduser().exists():
        return ()
    folder, mine = files.folder, {path.name for path in files.weight_paths()}
    found = [
        (str(folder / path.name), path.stat().st_size)
        for path in folder.glob("*.gguf")
        if is_gguf_model(path.name) and path.name not in mine and quant_of(path.name)
    ]
    return tuple(sorted(found, key=lambda other: other[1]))


def config_of(name: str) -> dict[str, Any] | None:
    """The config of `org/name`, in any case; None for a model that is not in the catalogue."""
    found = _configs().get(name.lower())
    if isinstance(found, str):
        found = _configs()[found.lower()]
    return found


def names() -> list[str]:
    return list(_read())


@cache
def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("catalogue.json").read_text())
    return found


@cache
def _configs() -> dict[str, Any]:
    return {name.lower(): config for name, config in _read().items()}
