"""Claude Code: variables, also in a file of settings, since those of the user's would win."""

import json

from pagoda.cli.clients.client import Client, Setup, Target

_SETTINGS = "settings.json"


def configure(target: Target) -> Setup:
    environment = {
        "ANTHROPIC_BASE_URL": target.root,
        "ANTHROPIC_AUTH_TOKEN": target.key,
        # A key would be sent in the token's place.
        "ANTHROPIC_API_KEY": "",
        "ANTHROPIC_MODEL": target.model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": target.model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": target.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": target.model,
        "CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # The picker would offer the model with a context of a million tokens.
        "CLAUDE_CODE_DISABLE_1M_CONTEXT": "1",
    }
    if target.context:
        # It takes the model for one of 200,000 tokens otherwise.
        environment["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(target.context)
        environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(target.output)
    settings = json.dumps({"env": environment}, indent=2) + "\n"
    words = ("--settings", str(target.folder / _SETTINGS))
    return Setup(words, environment, {_SETTINGS: settings})


CLIENT = Client(
    name="claude",
    title="Claude Code",
    program="claude",
    install="npm install -g @anthropic-ai/claude-code",
    prompt_tokens=20_000,
    configure=configure,
    files=(_SETTINGS,),
    prefers="claude",
)
