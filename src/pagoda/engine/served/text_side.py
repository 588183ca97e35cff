"""What a model needs outside the engine: tokenizer, template, parser, sampling defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from pagoda.arch.registry import spec_for
from pagoda.base.errors import CheckpointError, ConfigError, RequestError
from pagoda.base.log import get_logger
from pagoda.config.engine import ModelConfig
from pagoda.config.modality import MODALITIES
from pagoda.config.sampling import NUMBERS
from pagoda.core.sampling import SamplingParams
from pagoda.core.structured import StructuredOutputsParams
from pagoda.engine.media import MediaInput
from pagoda.text.media.base import Processor
from pagoda.text.media.select import processors_for
from pagoda.text.parsers.base import ParserFamily
from pagoda.text.parsers.select import parser_for
from pagoda.text.sounds.dictation import Dictation, dictation_of
from pagoda.text.sounds.speech import Speech, speech_of
from pagoda.text.template.chat import ChatTemplate, ContentFormatName, load_chat_template
from pagoda.text.tokenizer import Tokenizer, load_tokenizer
from pagoda.weights.files import ModelFiles, open_model
from pagoda.weights.hub.progress import terminal_progress
from pagoda.weights.hub.store import Progress
from pagoda.weights.jsonfile import read_json
from pagoda.weights.source import resolve_model

log = get_logger(__name__)

# generation_config.json: its name -> ours.
_SAMPLING_DEFAULTS = {
    **{number.name: number.name for number in NUMBERS},
    "samplers": "samplers",
    "dry_sequence_breakers": "dry_sequence_breakers",
    "max_new_tokens": "max_tokens",
    "max_tokens": "max_tokens",
}


@dataclass(frozen=True)
class TextSide:
    """Loaded in the process that talks to clients, so all of it is torch-free."""

    files: ModelFiles
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    parser: ParserFamily
    defaults: dict[str, Any]
    """Sampling defaults, by SamplingParams' names."""
    media: dict[str, MediaInput] = field(default_factory=dict)
    """By kind; empty where the model reads text only."""
    speech: Speech | None = None
    """None unless the model writes down what it hears."""
    dictation: Dictation | None = None
    """None unless a model that chats does so at a prompt of its own."""

    @cached_property
    def special_markup(self) -> dict[str, int]:
        """The parser's markup as far as it is special tokens: text to id."""
        wanted, text = set(self.parser.markup_tokens), self.tokenizer.token_text
        named = ((text(index), index) for index in self.tokenizer.special_ids)
        return {name: index for name, index in named if name in wanted}

    @cached_property
    def markup_ids(self) -> frozenset[int]:
        """Special tokens that the parser must see; they never reach a client."""
        return frozenset(self.special_markup.values())


def fetch_model(model: ModelConfig, on_progress: Progress | None = None) -> ModelConfig:
    """`model` with its files on this machine, fetched if need be, with a bar on a terminal.

    `on_progress` is called, from any thread, whenever bytes arrived; what it raises ends the fetch.
    """
    with terminal_progress() as show:

        def progress(name: str, done: int, total: int) -> None:
            show(name, done, total)
            if on_progress is not None:
                on_progress(name, done, total)

        path = resolve_model(
            model.model,
            download_dir=model.download_dir,
            revision=model.revision,
            progress=progress,
        )
    return replace(model, model=str(path))


def load_text_side(config: ModelConfig) -> TextSide:
    """Tokenizer, chat template, parser and defaults of a model that is already local."""
    path = resolve_model(config.model, download_dir=config.download_dir)
    files = open_model(path, config.mmproj)
    tokenizer = tokenizer_of(config, files)
    media = {
        kind: MediaInput(MODALITIES[kind], processor, tokenizer)
        for kind, processor in processors_of(files).items()
    }
    template = load_chat_template(
        _tokenizer_files(config, files),
        tokenizer,
        override=config.chat_template,
        content_format=cast(ContentFormatName, config.chat_template_content_format),
        placeholders={kind: found.placeholder for kind, found in media.items()},
        variables=config.default_chat_template_kwargs,
    )
    parser = parser_for(
        template.source if template is not None else None,
        config.reasoning_parser,
        config.tool_call_parser,
    )
    log.info("Thought and tool calls are parsed as: %s.", parser.name)
    if template is not None and not template.shows_tools and parser.form.calls is not None:
        log.info("The chat template shows no tools: the system turn describes them.")
    defaults = sampling_defaults(config, files)
    speech, dictation = speech_of(tokenizer, files), dictation_of(tokenizer, files)
    return TextSide(files, tokenizer, template, parser, defaults, media, speech, dictation)


def processors_of(files: ModelFiles) -> Mapping[str, Processor]:
    """By kind, of the media that a model takes; not of those whose tower its checkpoint lost."""
    processors = processors_for(files)
    if processors and files.kind == "safetensors" and files.weight_paths():
        spec = spec_for(files.config, {}, files.checkpoint.tensors)
        towers = {"image": spec.vision, "audio": spec.audio}
        return {kind: x for kind, x in processors.items() if towers[x.encoder] is not None}
    return processors


def tokenizer_of(config: ModelConfig, files: ModelFiles) -> Tokenizer:
    """The tokenizer that goes with a model, or the one that was asked for instead."""
    return load_tokenizer(_tokenizer_files(config, files))


def _tokenizer_files(config: ModelConfig, files: ModelFiles) -> ModelFiles:
    if config.tokenizer is None:
        return files
    return open_model(resolve_model(config.tokenizer, download_dir=config.download_dir))


def sampling_defaults(config: ModelConfig, files: ModelFiles) -> dict[str, Any]:
    """The model's own sampling defaults, as `--generation-config` and its override tell.

    Raises ConfigError for values that no request could bring.
    """
    source = config.generation_config
    found: dict[str, Any] = {}
    if source == "auto":
        found = files.generation_config
    elif source != "vllm":
        found = _read_generation_config(Path(source))
    chosen = {**found, **config.override_generation_config}
    defaults = {
        ours: chosen[theirs]
        for theirs, ours in _SAMPLING_DEFAULTS.items()
        if chosen.get(theirs) is not None
    }
    try:
        SamplingParams(**defaults)
    except RequestError as error:
        raise ConfigError(
            f"The generation config has an unusable default: {error} "
            "`--generation-config vllm` ignores it."
        ) from error
    if defaults:
        origins = {
            "the model's generation_config.json (`--generation-config vllm` ignores it)": found,
            "flags": config.override_generation_config,
        }
        log.info(
            "Default sampling parameters come from %s: %s.",
            " and ".join(
                name for name, said in origins.items() if said.keys() & _SAMPLING_DEFAULTS
            ),
            ", ".join(f"{name}={value}" for name, value in sorted(defaults.items())),
        )
    structure = _default_structure(config)
    return defaults if structure is None else {**defaults, "structured_outputs": structure}


def _default_structure(config: ModelConfig) -> StructuredOutputsParams | None:
    """What replies follow that were asked for no structure; ConfigError for what cannot be."""
    if config.grammar is None and config.json_schema is None:
        return None
    # Grammars bring llguidance; only who asks for one pays for it.
    from pagoda.engine.constraint import completion_constraint

    try:
        wanted = StructuredOutputsParams(grammar=config.grammar, json=config.json_schema)
        completion_constraint(wanted)
    except RequestError as error:
        asked = {"--grammar": config.grammar, "--json-schema": config.json_schema}
        flags = " and ".join(flag for flag, text in asked.items() if text is not None)
        raise ConfigError(f"{flags} can't be enforced: {error}") from error
    return wanted


def _read_generation_config(path: Path) -> dict[str, Any]:
    file = path / "generation_config.json" if path.is_dir() else path
    try:
        return read_json(file)
    except CheckpointError as error:
        raise ConfigError(f"--generation-config {path} can't be read: {error}") from error
