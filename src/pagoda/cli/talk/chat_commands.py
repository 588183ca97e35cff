"""The /commands of `pagoda chat`."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pagoda.base.columns import left
from pagoda.base.errors import ConfigError
from pagoda.base.near import nearest
from pagoda.base.words import say, tell, told
from pagoda.cli.talk.conversation import OPTIONS, Conversation
from pagoda.cli.talk.pictures import check_sight, paths_of, read_picture
from pagoda.cli.talk.reply import describe
from pagoda.cli.talk.source import Source, Usage


class Next(Enum):
    """What the chat does after a command."""

    PROMPT = "prompt"
    REPLY = "reply"
    EXIT = "exit"


@dataclass(frozen=True)
class Command:
    argument: str
    doc: str
    run: Callable[[str, Conversation, Source], tuple[str, Next]]
    """(argument, chat, source) -> (text to show, what follows)."""


def run_command(line: str, chat: Conversation, source: Source) -> tuple[str, Next]:
    """Carry out `/name argument`. Raises PagodaError with the reason it failed."""
    name, _, argument = line[1:].partition(" ")
    name = name.lower()
    name = _ALIASES.get(name, name)
    if name not in COMMANDS:
        if Path(line.strip()).is_file():
            raise ConfigError(f"{line.strip()} is no picture; /read FILE sends the text of a file.")
        close = nearest(name, COMMANDS)
        hint = f"did you mean /{close}?" if close else "/help lists them."
        raise ConfigError(f"There is no command /{name}; {hint}")
    try:
        return COMMANDS[name].run(argument.strip(), chat, source)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"{error.filename} cannot be opened: {reason}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{argument.strip()} is not text.") from error


def _help(_argument: str, _chat: Conversation, _source: Source) -> tuple[str, Next]:
    lines = []
    for name, command in COMMANDS.items():
        usage = f"/{name} {command.argument}".strip()
        lines.append(f"  {usage:<22}{told(command.doc)}")
    more = (
        tell("Enter sends; Alt-Enter or a \\ at the end of the line starts a new one."),
        tell('""" begins and ends a message of several lines.'),
        tell("A picture that is dropped here goes with the message, or with the next one."),
        tell("Ctrl-C stops a reply, Ctrl-D leaves."),
    )
    return "\n".join([*lines, "", *(f"  {line}" for line in more)]), Next.PROMPT


def _clear(_argument: str, chat: Conversation, _source: Source) -> tuple[str, Next]:
    chat.clear()
    return tell("The chat is empty."), Next.PROMPT


def _system(argument: str, chat: Conversation, _source: Source) -> tuple[str, Next]:
    if argument:
        chat.system = None if argument == "none" else argument
        said = tell("The system prompt is set." if chat.system else "No system prompt.")
        return said, Next.PROMPT
    return chat.system or tell("No system prompt; /system TEXT sets one."), Next.PROMPT


def _regen(_argument: str, chat: Conversation, _source: Source) -> tuple[str, Next]:
    if not chat.take_back_answer():
        raise ConfigError("There is nothing to answer again.")
    return "", Next.REPLY


def _read(argument: str, chat: Conversation, _source: Source) -> tuple[str, Next]:
    chat.ask(_path(argument).read_text())
    return "", Next.REPLY


def _image(argument: str, chat: Conversation, source: Source) -> tuple[str, Next]:
    if argument == "none":
        chat.pictures.clear()
    elif argument:
        return attach(paths_of(argument), chat, source), Next.PROMPT
    return waiting(chat) or tell("No picture waits; /image FILE adds one."), Next.PROMPT


def attach(paths: Sequence[Path], chat: Conversation, source: Source) -> str:
    """Keep pictures for the next message; the words that say so. Raises ConfigError, and keeps
    none, where one cannot be sent or the model cannot see."""
    check_sight(source)
    chat.pictures += [read_picture(path) for path in paths]
    return waiting(chat)


def waiting(chat: Conversation) -> str:
    names = ", ".join(str(picture) for picture in chat.pictures)
    return tell("With the next message: {names}", names=names) if names else ""


def _set(argument: str, chat: Conversation, source: Source) -> tuple[str, Next]:
    name, _, value = argument.replace("=", " ", 1).partition(" ")
    if name:
        chat.set_option(name, value.strip())
    return "\n".join(f"  {option:<20}{_in_force(option, chat, source)}" for option in OPTIONS), (
        Next.PROMPT
    )


def _in_force(option: str, chat: Conversation, source: Source) -> str:
    if option in chat.options:
        return str(chat.options[option])
    default = source.defaults.get(option)
    if default is None:
        return tell("default")
    return tell("{value} (default)", value=default)


def _save(argument: str, chat: Conversation, _source: Source) -> tuple[str, Next]:
    path = _path(argument)
    chat.save(path)
    said = tell("{count} messages are in {path}.", count=len(chat.turns), path=path)
    return said, Next.PROMPT


def _load(argument: str, chat: Conversation, _source: Source) -> tuple[str, Next]:
    chat.load(_path(argument))
    return tell("{count} messages loaded.", count=len(chat.turns)), Next.PROMPT


def _stats(_argument: str, chat: Conversation, source: Source) -> tuple[str, Next]:
    length = source.max_model_len or "?"
    context = tell("{used} of {most} tokens", used=context_used(chat), most=length)
    rows = [
        (tell("the model"), f"{source.model} {told(source.place)}"),
        (tell("context"), context),
    ]
    if chat.usages:
        last = chat.usages[-1]
        rows += [(tell("last reply"), describe(last)), *_read_and_guessed([last])]
    generated = sum(usage.completion_tokens for usage in chat.usages)
    replies = tell("{count}, {tokens} tokens", count=len(chat.usages), tokens=generated)
    rows += [(tell("replies"), replies)]
    if len(chat.usages) > 1:
        rows += _read_and_guessed(chat.usages)
    return "\n".join(f"  {left(name, 12)}{value}" for name, value in rows), Next.PROMPT


def _read_and_guessed(usages: Sequence[Usage]) -> list[tuple[str, str]]:
    prompts = sum(usage.prompt_tokens for usage in usages)
    cached = sum(usage.cached_tokens for usage in usages)
    guessed = sum(usage.draft_tokens for usage in usages)
    right = sum(usage.accepted_tokens for usage in usages)
    read = tell(
        "{count} tokens, {cached} of them from the prefix cache", count=prompts, cached=cached
    )
    rows = [("  " + tell("prompt" if len(usages) == 1 else "prompts"), read)]
    if guessed:
        verified = tell(
            "{count} tokens verified, {right} of them right", count=guessed, right=right
        )
        rows.append(("  " + tell("guesses"), verified))
    return rows


def _exit(_argument: str, _chat: Conversation, _source: Source) -> tuple[str, Next]:
    return "", Next.EXIT


def is_command(line: str) -> bool:
    """Whether a line is a /command; what else begins with / may be the path of a picture."""
    name = line[1:].partition(" ")[0].lower()
    return line.startswith("/") and (name in COMMANDS or name in _ALIASES)


def context_used(chat: Conversation) -> str:
    """Tokens of the chat so far, as of the last reply; `?` where nobody has counted them."""
    return "?" if chat.context is None else str(chat.context)


def _path(argument: str) -> Path:
    if not argument:
        raise ConfigError("Name a file.")
    return Path(os.path.expanduser(argument))  # `~nobody` stays as it is


COMMANDS = {
    "help": Command("", say("this list"), _help),
    "clear": Command("", say("forget what was said"), _clear),
    "system": Command("[TEXT|none]", say("show or set the system prompt"), _system),
    "regen": Command("", say("answer the last message again"), _regen),
    "read": Command("FILE", say("send a file's text"), _read),
    "image": Command("FILE ...|none", say("send pictures with the next message"), _image),
    "set": Command("[OPTION VALUE]", say("show or set sampling options"), _set),
    "save": Command("FILE", say("keep the chat in a file"), _save),
    "load": Command("FILE", say("go on with a saved chat"), _load),
    "stats": Command("", say("figures of the last reply and of the chat"), _stats),
    "exit": Command("", say("leave (/bye, /quit, Ctrl-D)"), _exit),
}
_ALIASES = {"quit": "exit", "bye": "exit"}
FILE_COMMANDS = ("read", "image", "save", "load")
