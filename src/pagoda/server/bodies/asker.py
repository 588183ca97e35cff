"""Which session and which of its agents a request is of, in the words of several clients."""

from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

_SESSION = (
    "x-claude-code-session-id",
    "session_id",  # Codex
    "x-session-id",
    "session-id",
    "conversation_id",
    "x-opencode-session",
    "x-session-affinity",
    "x-session-token",  # llm-d
)
"""Headers, the first of which counts."""
_AGENT = ("x-claude-code-agent-id", "x-openai-subagent", "x-agent-id")
"""Headers of subagents alone."""


class Asker(NamedTuple):
    """Opaque and short, whatever a client sends."""

    session: str | None = None
    agent: str | None = None
    """None: the session's main agent."""


def asker_of(headers: Mapping[str, str], named: str | None = None) -> Asker:
    """`named`: what the body says of the session, for clients without headers."""
    return Asker(
        _opaque(_first(headers, _SESSION) or named or ""), _opaque(_first(headers, _AGENT))
    )


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((headers[name] for name in names if headers.get(name)), "")


def _opaque(value: str) -> str | None:
    return sha256(value.encode(errors="surrogatepass")).hexdigest()[:16] if value else None
