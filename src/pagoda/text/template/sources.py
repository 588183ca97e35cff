"""Where a model keeps its chat templates."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pagoda.base.errors import CheckpointError, ConfigError
from pagoda.text.template.named import NAMED_TEMPLATES, named_template
from pagoda.weights.choice import TEKKEN
from pagoda.weights.files import ModelFiles
from pagoda.weights.jsonfile import read_json


def template_sources(
    files: ModelFiles, override: str | None, *, adds_bos: bool = False
) -> dict[str, str]:
    """Templates by name (`default`, `tool_use`, ...).

    `override` is a file's path, a text, or one of `NAMED_TEMPLATES`, which begins with BOS where
    the tokenizer adds one. A folder with a tekken.json and no template has Mistral's turns.
    """
    if override in NAMED_TEMPLATES and not Path(override).exists():
        return {"default": named_template(override, adds_bos=adds_bos)}
    if override is not None:
        return {"default": _override_source(override)}
    if files.kind == "gguf":
        return _gguf_sources(files.metadata)
    found = _folder_sources(files.folder)
    if not found and (files.folder / TEKKEN).is_file():
        # Mistral publishes none beside it: mistral_common has them in code.
        tekken = read_json(files.folder / TEKKEN)
        settings = tekken.get("config")
        version = settings.get("version") if isinstance(settings, dict) else None
        name = "mistral-v3-tekken" if version == "v3" else "mistral-v7-tekken"
        hears = tekken.get("audio") is not None
        found = {"default": named_template(name, adds_bos=adds_bos, hears=hears)}
    return found


def _override_source(override: str) -> str:
    if "{" in override or "\n" in override:
        return override
    path = Path(override)
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"The chat template {override} can't be read: {error}. "
            "Give a file, the template itself, or one of these formats: "
            f"{', '.join(NAMED_TEMPLATES)}."
        ) from error


def _gguf_sources(metadata: Mapping[str, Any]) -> dict[str, str]:
    key = "tokenizer.chat_template"
    sources = {
        name.removeprefix(key).removeprefix(".") or "default": source
        for name, source in metadata.items()
        if (name == key or name.startswith(f"{key}.")) and isinstance(source, str)
    }
    return {name: source for name, source in sources.items() if source}


def _folder_sources(folder: Path) -> dict[str, str]:
    """Files of their own come before tokenizer_config.json, as in transformers."""
    files = {path.stem: path for path in sorted((folder / "chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    if files:
        return {name: _read_template(path) for name, path in files.items()}
    for name in ("tokenizer_config.json", "chat_template.json"):
        path = folder / name
        configured = read_json(path).get("chat_template") if path.is_file() else None
        if isinstance(configured, str):
            return {"default": configured}
        if isinstance(configured, dict):
            return {str(name): str(source) for name, source in configured.items()}
        if isinstance(configured, list):
            return dict(_named_template(path, entry) for entry in configured)
    return {}


def _named_template(path: Path, entry: object) -> tuple[str, str]:
    if not isinstance(entry, dict) or not {"name", "template"} <= entry.keys():
        raise CheckpointError(
            f"{path}: an entry of chat_template lacks name and template. Fetch the model again, or "
            "give a template with --chat-template."
        )
    return str(entry["name"]), str(entry["template"])


def _read_template(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} can't be read: {error}. Fetch the model again.") from error
