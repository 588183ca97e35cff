"""Which models a server has: those of its command line and of a folder, and further ones."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pagoda.base.errors import ConfigError
from pagoda.config.engine import EngineConfig
from pagoda.config.flags import split_name
from pagoda.engine.served.model_entry import ModelEntry
from pagoda.weights.source import parse_ref


def model_entry(
    config: EngineConfig, names: tuple[str, ...], model: str, pinned: Sequence[str] = ()
) -> ModelEntry:
    """A model under its names, with the flags of `config`; `pinned` has names of models."""
    return ModelEntry(
        names,
        replace(config, model=replace(config.model, model=model, served_model_name=names)),
        pinned=any(name in pinned for name in names),
    )


def find_models(folder: str | None) -> dict[str, str]:
    """The models of a folder, name to path: GGUF files, and folders with a config or such files.

    Raises ConfigError where there are none.
    """
    if folder is None:
        return {}
    found = {}
    root = Path(folder)
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if path.suffix == ".gguf" and not path.name.startswith("mmproj"):
            found[path.stem] = str(path)
        elif path.is_dir() and ((path / "config.json").exists() or any(path.glob("*.gguf"))):
            found[path.name] = str(path)
    if not found:
        raise ConfigError(
            f"--models-dir {folder} has no models: it needs GGUF files, or folders with a "
            "config.json or GGUF files."
        )
    return found


def model_entries(
    config: EngineConfig, more: Sequence[str], pinned: Sequence[str], found: Mapping[str, str]
) -> list[ModelEntry]:
    """The model of `config` first, then `more`, as `NAME=MODEL` or MODEL, then those `found` in a
    folder by their names, all with the same flags. Raises ConfigError for unknown pins,
    SourceError for what can be no model."""
    first = config.model.served_model_name or (config.model.model,)
    wanted = [(first, config.model.model)]
    for word in more:
        name, model = split_name(word)
        parse_ref(model)  # what can be nothing is said now, not at the first request
        wanted.append(((name or model,), model))
    wanted += [((name,), path) for name, path in found.items()]
    # Adapters that flags name are the first model's, and so are the ports that tell of its cache
    # or give of it; others have room for adapters that are loaded.
    alone = replace(
        config,
        adapters=config.adapters.unnamed,
        cache=replace(config.cache, kv_events_config={}, kv_transfer_config={}),
    )
    entries = [
        model_entry(config if index == 0 else alone, names, model, pinned)
        for index, (names, model) in enumerate(wanted)
    ]
    known = {name for entry in entries for name in entry.names}
    unknown = [name for name in pinned if name not in known]
    if unknown:
        raise ConfigError(f"--pin {unknown[0]} is none of the models: {', '.join(sorted(known))}.")
    return entries
