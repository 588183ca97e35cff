"""Cline's command line: a folder of settings of its own, beside the user's."""

import json

from pagoda.cli.clients.client import Client, Setup, Target

_PROVIDER = "openai-compatible"
_DATA = "data"
_SETTINGS = f"{_DATA}/settings/providers.json"


def configure(target: Target) -> Setup:
    settings = {
        "provider": _PROVIDER,
        "apiKey": target.key,
        "model": target.model,
        "baseUrl": target.url,
    }
    providers = {
        "version": 1,
        "lastUsedProvider": _PROVIDER,
        "modes": {},
        "providers": {
            _PROVIDER: {
                "settings": settings,
                "updatedAt": "2026-01-01T00:00:00.000Z",
                "tokenSource": "manual",
            }
        },
    }
    words = ("--data-dir", str(target.folder / _DATA))
    return Setup(words, files={_SETTINGS: json.dumps(providers, indent=2) + "\n"})


def editor(target: Target) -> str:
    return (
        "In VS Code, Cline's settings (the gear): API Provider `OpenAI Compatible`, Base URL "
        f"`{target.url}`, API Key `{target.key}`, Model ID `{target.model}`"
        + (f", Context Window Size `{target.context}`." if target.context else ".")
    )


CLIENT = Client(
    name="cline",
    title="Cline",
    program="cline",
    install="npm install -g cline",
    prompt_tokens=6_000,
    configure=configure,
    files=(_SETTINGS,),
    editor=editor,
)
