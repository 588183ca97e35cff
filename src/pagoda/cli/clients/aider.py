"""aider: flags, a key in the environment, and a file with the length of the context."""

import json

from pagoda.cli.clients.client import Client, Setup, Target

_METADATA = "model-metadata.json"


def configure(target: Target) -> Setup:
    model = f"openai/{target.model}"
    words = ["--model", model, "--openai-api-base", target.url, "--no-show-model-warnings"]
    files = {}
    if target.context:
        described = {
            "litellm_provider": "openai",
            "mode": "chat",
            "max_tokens": target.output,
            "max_input_tokens": target.context,
            "max_output_tokens": target.output,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
        }
        files[_METADATA] = json.dumps({model: described}, indent=2) + "\n"
        words += ["--model-metadata-file", str(target.folder / _METADATA)]
    return Setup(tuple(words), {"AIDER_OPENAI_API_KEY": target.key}, files)


CLIENT = Client(
    name="aider",
    title="aider",
    program="aider",
    install="python -m pip install aider-install && aider-install",
    prompt_tokens=3_000,
    configure=configure,
    files=(_METADATA,),
)
