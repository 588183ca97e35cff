"""A chat's state: what was said, under which system prompt, with which sampling."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pagoda.base.errors import ConfigError
from pagoda.base.whole import write_whole
from pagoda.cli.talk.pictures import Picture
from pagoda.cli.talk.source import Usage
from pagoda.config.sampling import NUMBERS
from pagoda.core.sampling import SamplingParams

_MOST = {number.name: number.most for number in NUMBERS if number.most is not None}
"""What OpenAI-compatible servers take."""
OPTIONS: dict[str, type] = {
    **{number.name: number.kind for number in NUMBERS},
    "max_tokens": int,
    "seed": int,
}
"""Sampling options of a chat, by their names in requests."""


@dataclass
class Conversation:
    system: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    pictures: list[Picture] = field(default_factory=list)
    """For the next message."""
    turns: list[dict[str, Any]] = field(default_factory=list)
    """Messages after the system prompt: user and assistant by turns."""
    usages: list[Usage] = field(default_factory=list)
    context: int | None = 0
    """Tokens of it all, as of the last reply; None where they were not counted."""

    def messages(self) -> list[dict[str, Any]]:
        start = [{"role": "system", "content": self.system}] if self.system else []
        return [*start, *self.turns]

    def ask(self, text: str) -> None:
        """Add a message of the user, with the pictures that wait for one."""
        parts: Any = [picture.part for picture in self.pictures]
        self.pictures = []
        content = [*parts, {"type": "text", "text": text}] if parts else text
        self.turns.append({"role": "user", "content": content})

    def answer(self, text: str, usage: Usage | None) -> None:
        """Keep a reply; `usage` is None where it was stopped."""
        self.turns.append({"role": "assistant", "content": text})
        self.context = None
        if usage is not None:
            self.usages.append(usage)
            self.context = usage.prompt_tokens + usage.completion_tokens

    def take_back_answer(self) -> bool:
        """Forget the last reply, keeping its question. False where there is none."""
        if self.turns and self.turns[-1]["role"] == "assistant":
            self.turns.pop()
        return bool(self.turns)

    def clear(self) -> None:
        self.turns.clear()
        self.pictures.clear()
        self.usages.clear()
        self.context = 0

    def set_option(self, name: str, text: str) -> None:
        """Set a sampling option; `default` removes it. Raises PagodaError for unusable ones."""
        if name not in OPTIONS:
            raise ConfigError(f"There is no option {name!r}; options: {', '.join(OPTIONS)}.")
        if text == "default":
            self.options.pop(name, None)
            return
        try:
            value = OPTIONS[name](text)
        except ValueError:
            raise ConfigError(f"{text!r} is no value for {name}.") from None
        SamplingParams(**{name: value})
        if name in _MOST and value > _MOST[name]:
            raise ConfigError(f"{name} must be at most {_MOST[name]:g}, not {text}.")
        self.options[name] = value

    def save(self, path: Path) -> None:
        """Raises ConfigError where it cannot be written."""
        text = json.dumps(self.messages(), ensure_ascii=False, indent=2) + "\n"
        try:
            write_whole(path, text)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error

    def load(self, path: Path) -> None:
        """Take the messages of a file that `save` wrote. Raises ConfigError for anything else."""
        try:
            messages = json.loads(path.read_text())
            texts = [(str(entry["role"]), entry["content"]) for entry in messages]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} holds no saved chat.") from error
        if any(not _is_content(content) for _, content in texts):
            raise ConfigError(f"{path} holds messages that are neither text nor pictures.")
        self.clear()
        systems = [content for role, content in texts if role == "system"]
        self.system = systems[0] if systems else None
        self.turns = [{"role": r, "content": c} for r, c in texts if r != "system"]
        self.context = None


def _is_content(content: Any) -> bool:
    """Whether it is what `Conversation.ask` makes."""
    if not isinstance(content, list):
        return isinstance(content, str)
    try:
        return all(
            isinstance(part["text"], str)
            if part["type"] == "text"
            else part["type"] == "image_url" and part["image_url"]["url"].startswith("data:image/")
            for part in content
        )
    except (KeyError, TypeError, AttributeError):
        return False
