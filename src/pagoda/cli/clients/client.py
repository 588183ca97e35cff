"""What `pagoda launch` knows of a program, and what it tells the program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Clients insist on a key; a server without keys takes any.
ANY_KEY = "pagoda"
_MOST_OUTPUT = 32_000


@dataclass(frozen=True)
class Target:
    """The model that a program is to work with."""

    root: str
    """The server's address, without /v1."""
    model: str
    """The name that requests give."""
    folder: Path
    """For files of this program's; it need not exist yet."""
    api_key: str | None = None
    context: int | None = None
    """Tokens; None where the server does not say."""
    sees: bool = False
    catalog: tuple[dict[str, Any], ...] = ()
    """The models as Codex wants them described; empty where the server does not describe them."""

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    @property
    def key(self) -> str:
        return self.api_key or ANY_KEY

    @property
    def output(self) -> int | None:
        """The part of the context that is kept for a reply, in tokens."""
        return None if self.context is None else min(self.context // 4, _MOST_OUTPUT)


@dataclass(frozen=True)
class Setup:
    """How a program is started. Nothing else is written, and no file of the user's is changed."""

    words: tuple[str, ...] = ()
    """In front of the user's own."""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts by their paths in the target's folder."""


@dataclass(frozen=True)
class Client:
    name: str
    title: str
    program: str
    install: str
    """The command that installs it."""
    prompt_tokens: int
    """About so long are its instructions and tools, which each request repeats."""
    configure: Callable[[Target], Setup]
    files: tuple[str, ...] = ()
    """All that `configure` may write."""
    prefers: str = ""
    """The client wants that one of a model's names which contains this."""
    editor: Callable[[Target], str] | None = None
    """What to type where it runs as an editor's extension."""
