"""Codex: overrides on its command line, and a file that describes the models."""

import json
from typing import Any

from pagoda.cli.clients.client import Client, Setup, Target

_CATALOG = "models.json"
_KEY = "PAGODA_API_KEY"


def configure(target: Target) -> Setup:
    provider = {"name": "Pagoda", "base_url": target.url, "wire_api": "responses"}
    if target.api_key:
        provider["env_key"] = _KEY
    settings: dict[str, Any] = {
        "model": target.model,
        "model_provider": "pagoda",
        "model_providers.pagoda": provider,
    }
    files = {}
    if target.catalog:
        # Without it Codex takes the model for an unknown one: no apply_patch, a context of its own.
        files[_CATALOG] = json.dumps({"models": target.catalog}, indent=2) + "\n"
        settings["model_catalog_json"] = str(target.folder / _CATALOG)
    if target.context:
        settings["model_context_window"] = target.context
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={_toml(value)}")]
    return Setup(tuple(words), {_KEY: target.api_key} if target.api_key else {}, files)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    # TOML's strings are JSON's, but for escaped surrogates.
    return json.dumps(value, ensure_ascii=False)


CLIENT = Client(
    name="codex",
    title="Codex",
    program="codex",
    install="npm install -g @openai/codex",
    prompt_tokens=10_000,
    configure=configure,
    files=(_CATALOG,),
)
