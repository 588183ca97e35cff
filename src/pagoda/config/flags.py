"""Command-line flags, generated from the config dataclasses."""

import argparse
import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pagoda.base.errors import ConfigError
from pagoda.base.units import parse_size, short_size
from pagoda.base.words import message_of, say, tell, told
from pagoda.config.adapters import AdapterConfig
from pagoda.config.engine import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    MediaConfig,
    ModelConfig,
    SchedulerConfig,
)
from pagoda.config.nodes import NodesConfig
from pagoda.config.option import flag_name
from pagoda.config.parallel import ParallelConfig
from pagoda.config.parser import MergeJson
from pagoda.config.speculation import SpeculationConfig

T = TypeVar("T")
_NAME = re.compile(r"[\w][\w.-]*", re.ASCII)
SECTIONS = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "parallel": ParallelConfig,
    "device": DeviceConfig,
    "media": MediaConfig,
    "speculation": SpeculationConfig,
    "adapters": AdapterConfig,
    "nodes": NodesConfig,
}


def add_flags(parser: argparse.ArgumentParser, cls: type) -> None:
    """Add a group of flags, one per field of the dataclass `cls`.

    A flag that is not given leaves nothing in the namespace, so the dataclass's default holds.
    """
    title = cls.__name__.removesuffix("Config").lower()
    group = parser.add_argument_group(title, inspect.getdoc(cls))
    for field in dataclasses.fields(cls):
        _add_flag(group, field)


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """The model as a positional argument, and every engine flag."""
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="same as --model")
    for cls in SECTIONS.values():
        add_flags(parser, cls)


def from_namespace(cls: type[T], namespace: argparse.Namespace) -> T:
    """The dataclass with the flags that were given. Raises ConfigError for values out of range."""
    given = vars(namespace)
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]  # a dataclass
    return cls(**{name: given[name] for name in names if name in given})


def engine_config(namespace: argparse.Namespace, *, plan_only: bool = False) -> EngineConfig:
    """What `add_engine_flags` parsed; `plan_only` lets pass what can be planned and not be
    served."""
    tag = getattr(namespace, "model_tag", None)
    named = getattr(namespace, "model", None)
    if tag and named and tag != named:
        raise ConfigError(f"Two models are given, {tag} and --model {named}; name one.")
    sections: dict[str, Any] = {
        name: from_namespace(cls, namespace) for name, cls in SECTIONS.items()
    }
    config = EngineConfig(**sections)
    if tag:
        name, tag = split_name(tag)
        names = (name,) if name and not config.model.served_model_name else ()
        model = dataclasses.replace(config.model, model=tag)
        if names:
            model = dataclasses.replace(model, served_model_name=names)
        config = dataclasses.replace(config, model=model)
    if not plan_only:
        config.speculation.check()
    return config


def split_name(word: str) -> tuple[str | None, str]:
    """NAME=MODEL as (NAME, MODEL); (None, word) for anything else, files with such names too."""
    name, equals, model = word.partition("=")
    if not equals or not model or not _NAME.fullmatch(name) or Path(word).exists():
        return None, word
    return name, model


def read_config_file(path: str, given: Collection[str] = ()) -> list[str]:
    """Flags of a YAML file of `flag: value`, as words, less those in `given`; vLLM's `--config`."""
    import yaml  # type: ignore[import-untyped]  # comes with huggingface_hub

    try:
        entries = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"The config file {path} cannot be read: {error}.") from error
    if not isinstance(entries, dict):
        raise ConfigError(f"The config file {path} must map flags to values.")
    return flag_words({k: v for k, v in entries.items() if flag_name(str(k)) not in given})


def flag_words(flags: Mapping[Any, Any]) -> list[str]:
    """Flags by their names, with - or _, as the words of a command line."""
    return [word for key, value in flags.items() for word in _words(flag_name(str(key)), value)]


def with_config_file(words: list[str]) -> list[str]:
    """Put the flags of `--config FILE` behind the words; what the words say already wins."""
    for index, word in enumerate(words):
        if word != "--config" and not word.startswith("--config="):
            continue
        path = word.partition("=")[2] or "".join(words[index + 1 : index + 2])
        rest = words[:index] + words[index + (1 if "=" in word else 2) :]
        names = (word.partition("=")[0] for word in rest if word.startswith("-"))
        given = {"--" + name.lstrip("-").replace("_", "-") for name in names}
        if rest and not rest[0].startswith("-"):
            given.add("--model")
        return rest + read_config_file(path, given)
    return words


def _words(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag if value else "--no-" + flag.removeprefix("--")]
    if isinstance(value, list):
        return [flag, *map(str, value)]
    if isinstance(value, dict):
        return [flag, json.dumps(value)]
    return [] if value is None else [flag, str(value)]


def _add_flag(group: Any, field: dataclasses.Field[Any]) -> None:
    flag, metadata = flag_name(field.name), field.metadata
    kwargs: dict[str, Any] = {
        "dest": field.name,
        "default": argparse.SUPPRESS,
        "help": _help(field),
    }
    kind = _base_type(field.type)
    if kind is bool:
        kwargs["action"] = argparse.BooleanOptionalAction
    elif kind is tuple:
        kwargs |= {"nargs": "+", "action": _Extend, "metavar": _metavar(field, kind)}
    else:
        kwargs["type"] = reader(metadata["parse"] or kind)
        kwargs["metavar"] = _metavar(field, kind)
        if metadata["choices"]:
            kwargs["choices"] = metadata["choices"]
        if kind is dict:
            kwargs["action"] = MergeJson
    group.add_argument(flag, *metadata["aliases"], **kwargs)


class _Extend(argparse.Action):
    """Values of a repeated flag add up; `["a", "b"]` is a list too, as vLLM writes it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if len(values) == 1 and values[0].startswith("["):
            try:
                values = [
                    value if isinstance(value, str) else json.dumps(value)
                    for value in json.loads(values[0])
                ]
            except ValueError:
                what = say(
                    "{flag} is not a JSON list: {text!r}.", flag=option_string, text=values[0]
                )
                parser.error(what)
        setattr(namespace, self.dest, (*getattr(namespace, self.dest, ()), *values))


def reader(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """`parse` for argparse, keeping its own words about what is wrong."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except json.JSONDecodeError as error:
            raise argparse.ArgumentTypeError(
                tell(
                    "{text!r} is not JSON: {error}. In a shell, put it into single quotes.",
                    text=text,
                    error=error,
                )
            ) from error
        except ConfigError as error:
            raise argparse.ArgumentTypeError(told(message_of(error))) from error
        except ValueError as error:
            fault = tell("{text!r} is {fault}.", text=text, fault=_fault(error))
            raise argparse.ArgumentTypeError(fault) from error

    return read


def _fault(error: ValueError) -> str:
    """What Python's own words say of a text."""
    if "for int()" in str(error):
        return say("not a whole number")
    if "to float" in str(error):
        return say("not a number")
    return say("not understood ({error})", error=error)


def _base_type(annotation: Any) -> type:
    """The type a flag's text becomes: `int | None` is an int, `tuple[str, ...]` a tuple."""
    if isinstance(annotation, types.UnionType):
        annotation = next(arm for arm in typing.get_args(annotation) if arm is not types.NoneType)
    kind: type = typing.get_origin(annotation) or annotation
    return kind


def _metavar(field: dataclasses.Field[Any], kind: type) -> str:
    if field.metadata["choices"]:
        return "{" + ",".join(field.metadata["choices"]) + "}"
    fallback = field.name.rpartition("_")[2].upper()
    return {int: "N", float: "X", dict: "JSON"}.get(kind, fallback)


def _help(field: dataclasses.Field[Any]) -> str:
    """The field's doc, with its default where that says something."""
    doc, default = say(field.metadata["doc"]), field.default
    if default is dataclasses.MISSING or default in (None, False, (), ""):
        return doc
    shown = " ".join(default) if isinstance(default, tuple) else default
    if field.metadata["parse"] is parse_size:
        shown = short_size(default)
    shown = say("on") if default is True else shown
    return say("{doc} (default: {default})", doc=doc, default=shown)
