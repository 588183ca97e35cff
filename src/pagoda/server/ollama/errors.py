"""Errors as clients of Ollama and LM Studio read them: `{"error": "what is wrong"}`."""

import msgspec
from starlette.types import Scope

PREFIX = "/api/"


class OllamaError(msgspec.Struct):
    error: str


def is_ollama(scope: Scope) -> bool:
    """Whether the request's path, served or not, belongs to Ollama's API or LM Studio's."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path.startswith(PREFIX)


def error_reply(message: str) -> bytes:
    return msgspec.json.encode(OllamaError(message))
