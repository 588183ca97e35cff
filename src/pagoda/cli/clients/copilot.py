"""GitHub Copilot's command line: variables alone."""

import json

from pagoda.cli.clients.client import Client, Setup, Target


def configure(target: Target) -> Setup:
    environment = {
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_WIRE_API": "completions",
        "COPILOT_PROVIDER_BASE_URL": target.url,
        "COPILOT_PROVIDER_API_KEY": target.key,
        "COPILOT_MODEL": target.model,
    }
    if target.context and target.output:
        prompt = target.context - target.output
        environment["COPILOT_PROVIDER_MAX_PROMPT_TOKENS"] = str(prompt)
        environment["COPILOT_PROVIDER_MAX_OUTPUT_TOKENS"] = str(target.output)
    return Setup(environment=environment)


def editor(target: Target) -> str:
    model = {
        "id": target.model,
        "name": target.model,
        "url": f"{target.url}/chat/completions",
        "toolCalling": True,
        "vision": target.sees,
    }
    if target.context and target.output:
        model |= {
            "maxInputTokens": target.context - target.output,
            "maxOutputTokens": target.output,
        }
    entry = {
        "name": "Pagoda", "vendor": "customendpoint", "apiKey": target.key,
        "apiType": "chat-completions", "models": [model],
    }  # fmt: skip
    return (
        "In VS Code, `Chat: Manage Language Models`, Add Models, Custom Endpoint; in the file that "
        f"opens (chatLanguageModels.json):\n{json.dumps([entry], indent=2)}"
    )


CLIENT = Client(
    name="copilot",
    title="Copilot CLI",
    program="copilot",
    install="npm install -g @github/copilot",
    prompt_tokens=12_000,
    configure=configure,
    editor=editor,
)
