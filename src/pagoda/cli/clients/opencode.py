"""opencode: a configuration in one variable, which it lays over the files of the user."""

import json
from typing import Any

from pagoda.base import env
from pagoda.base.errors import ConfigError
from pagoda.cli.clients.client import Client, Setup, Target

_VARIABLE = "OPENCODE_CONFIG_CONTENT"


def configure(target: Target) -> Setup:
    """Raises ConfigError where the user's own value of the variable is not JSON."""
    name = f"pagoda/{target.model}"
    provider = {
        "name": "Pagoda",
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": target.url, "apiKey": target.key},
        "models": {target.model: _model(target)},
    }
    config = _own()
    providers = {**config.get("provider", {}), "pagoda": provider}
    config |= {"model": name, "small_model": name, "provider": providers}
    return Setup(environment={_VARIABLE: json.dumps(config, ensure_ascii=False)})


def _model(target: Target) -> dict[str, Any]:
    model: dict[str, Any] = {"name": target.model, "tool_call": True}
    if target.context:
        model["limit"] = {"context": target.context, "output": target.output}
    if target.sees:
        model |= {
            "attachment": True,
            "modalities": {"input": ["text", "image"], "output": ["text"]},
        }
    return model


def _own() -> dict[str, Any]:
    text = env.get(_VARIABLE)
    if text is None:
        return {"$schema": "https://opencode.ai/config.json"}
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"The variable {_VARIABLE} holds no JSON object ({error}); unset it, or mend it."
        ) from error


CLIENT = Client(
    name="opencode",
    title="opencode",
    program="opencode",
    install="npm install -g opencode-ai",
    prompt_tokens=10_000,
    configure=configure,
)
