"""LLM's keyword arguments -> EngineConfig: vLLM's names, checked, none silently dropped."""

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pagoda.base.errors import ConfigError
from pagoda.base.log import get_logger
from pagoda.base.near import nearest
from pagoda.config.compat import answer, quantization_answer
from pagoda.config.compat_table import TABLE
from pagoda.config.engine import EngineConfig

log = get_logger(__name__)


def engine_config(options: dict[str, Any]) -> EngineConfig:
    """The config that the keyword arguments describe.

    Arguments that others know and that have no meaning here are answered with one log line;
    ConfigError for unknown ones, naming the nearest, and for values of the wrong kind.
    """
    config = EngineConfig()
    known = dict(_options(config))
    values: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        if value is None:
            continue  # vLLM's way to say "as you like"
        if name == "quantization":
            line = quantization_answer(f"LLM(quantization={value!r})", str(value))
            if line is not None:
                log.warning("%s", line)
                continue
        said = {name: value} if name in known else _foreign(name, value, known)
        for ours, given in said.items():
            section, field = known[ours]
            values.setdefault(section, {})[field.name] = _value(config, section, field, given)
    changed = {
        section: dataclasses.replace(getattr(config, section), **fields)
        for section, fields in values.items()
    }
    return dataclasses.replace(config, **changed)


def _options(config: EngineConfig) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Each argument's name and aliases, with the section of the config and its field."""
    for section in dataclasses.fields(config):
        for field in dataclasses.fields(getattr(config, section.name)):
            yield field.name, (section.name, field)
            for alias in field.metadata["aliases"]:
                if alias.startswith("--"):
                    yield _argument(alias), (section.name, field)


def _argument(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def _value(config: EngineConfig, section: str, field: Any, value: Any) -> Any:
    """The value as its field wants it; choices and bounds are the config's own business."""
    parse = field.metadata["parse"]
    if parse is not None and isinstance(value, str):
        return parse(value)
    if field.name == "dtype":
        value = str(value).removeprefix("torch.")
    hint = typing.get_type_hints(type(getattr(config, section)))[field.name]
    if isinstance(value, str) and typing.get_origin(hint) is tuple:
        value = (value,)
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise ConfigError(f"LLM({field.name}={value!r}) is not usable: {error}.") from error


def _foreign(name: str, value: Any, known: dict[str, Any]) -> Mapping[str, Any]:
    """What an argument that only others know says in ours; else one line says what it does here.

    ConfigError if it is refused.
    """
    what = f"LLM({name}={value!r})"
    foreign = {_argument(flag): entry for entry in TABLE for flag in entry.flags.split()}
    entry = foreign.get(name)
    if entry is None:
        close = nearest(name, known, foreign)
        hint = f"; did you mean {close!r}?" if close else "."
        raise ConfigError(f"LLM() has no argument {name!r}{hint}")
    if str(value) in entry.means:
        return entry.means[str(value)]
    if value and str(value) not in entry.quiet:
        log.warning("%s", answer(what, entry.effect, entry.why.text))
    return {}
