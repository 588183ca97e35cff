"""The `pagoda` command: finds the subcommand and turns every error into one line."""

import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from pagoda.base.errors import PagodaError
from pagoda.base.near import nearest
from pagoda.base.printable import for_terminal
from pagoda.base.words import LANGUAGES, message_of, say, speak, tell, told
from pagoda.version import __version__

if TYPE_CHECKING:
    import argparse

COMMANDS = {
    "serve": "Serve a model behind an OpenAI-compatible API.",
    "stop": "Stop a running server.",
    "service": "Install a server that systemd keeps running.",
    "ps": "List the running servers, their models and requests.",
    "top": "Show what the running servers do, second by second.",
    "chat": "Chat in the terminal, with a server or with a model on this machine.",
    "launch": "Start a coding agent (Codex, Claude Code, opencode, ...) with a model.",
    "complete": "Continue text, without a chat template.",
    "run-batch": "Answer a file of OpenAI batch requests.",
    "pull": "Fetch a model.",
    "list": "List the models in the cache.",
    "rm": "Remove a model from the cache.",
    "keys": "Make, list and remove API keys with limits.",
    "doctor": "Say what this machine can run, and what holds it back.",
    "bench": "Measure latency, throughput or a running server.",
    "simulate": "Say how replicas of a model would serve a load.",
    "completion": "Complete commands and flags in a shell.",
    "agent": "Let a served model that sees operate a computer.",
}
_HELP_FLAGS = ("-h", "--help", "help")
_VERSION_FLAGS = ("--version", "-v", "-V", "version")
_USAGE_ERROR = 2
_INTERRUPTED = 128 + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line. Returns the exit status: 0, 1 (failed), 2 (usage) or 130 (Ctrl-C)."""
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        # What the terminal's encoding has not, such as an emoji in GBK, is shown as `?`.
        sys.stdout.reconfigure(errors="replace")
    try:
        status = _run(words)
        if sys.stdout is not None:  # as after `>&-`
            # Here, where a reader that left is no error; at exit it would be.
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output left (`pagoda list | head`). Python would complain once more
        # when it flushes stdout at exit, so stdout goes nowhere from here.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except PagodaError as error:
        return _report(words, message_of(error), error)
    except OSError as error:
        return _report(words, _fault(error), error)
    except Exception as error:  # noqa: BLE001 - the process's edge
        if _of_interrupt(error):
            return _INTERRUPTED
        what = f"{type(error).__name__}: {error}"
        text = say("{what} (a bug; PAGODA_DEBUG=1 shows where)", what=what)
        return _report(words, text, error)


def _fault(error: OSError) -> str:
    """What it says, without Python's number; standard output that is full has no name."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}." if error.filename else f"{reason}."


def _of_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C lies behind it: native code that it reaches in the middle of an import, such
    as pydantic's, raises errors of its own then."""
    if "KeyboardInterrupt" in str(error):
        return True
    cause = error.__cause__ or error.__context__
    return isinstance(cause, KeyboardInterrupt) or (cause is not None and _of_interrupt(cause))


def _run(words: list[str]) -> int:
    words, language = _without_language(words)
    if words and words[0] in _VERSION_FLAGS:
        print(f"pagoda {__version__}")
        return 0
    speak(language)
    if len(words) > 1 and words[0] == "help":
        words = [words[1], "--help"]
    if words and words[0].startswith("--help="):
        words = ["--help", words[0].removeprefix("--help=")]
    if len(words) > 1 and words[0] in _HELP_FLAGS and words[1] != "all":
        # A word that is no command is looked for in the flags of serve, which has most of them.
        words = [words[1], "--help"] if words[1] in COMMANDS else ["serve", f"--help={words[1]}"]
    if not words or words[0] in _HELP_FLAGS:
        print(_overview())
        return 0 if words else _USAGE_ERROR
    name, *rest = words
    if name not in COMMANDS:
        return _unknown(name)
    return _run_command(name, rest)


def _without_language(words: list[str]) -> tuple[list[str], str | None]:
    """The words without `--lang zh` or `--lang=zh`, wherever it stands, and the language. One that
    there is not stays, for the parser to complain of."""
    kept: list[str] = []
    language = None
    for index, word in enumerate(words):
        if word == "--":
            return kept + words[index:], language
        flag, _, value = word.partition("=")
        if flag == "--lang" and value in LANGUAGES:
            language = value
        elif word in LANGUAGES and kept and kept[-1] == "--lang":
            kept.pop()
            language = word
        else:
            kept.append(word)
    return kept, language


def _run_command(name: str, words: list[str]) -> int:
    from pagoda.base import env

    # For all processes of the command, before they import numpy. That starts a thread for each
    # core, which would spin for 50 ms and take the cores from what else is imported.
    env.set_default("OPENBLAS_THREAD_TIMEOUT", "4")
    module, args = parse_command(name, words)
    return int(module.run(args))


def parse_command(name: str, words: list[str]) -> "tuple[ModuleType, argparse.Namespace]":
    """The subcommand's module and its flags. Raises SystemExit for usage errors and --help."""
    module, parser = command_parser(name)
    prepare = getattr(module, "prepare", None)
    return module, parser.parse_args(prepare(words) if prepare else words)


def command_parser(name: str) -> "tuple[ModuleType, argparse.ArgumentParser]":
    """The subcommand's module, and what parses its flags."""
    from pagoda.config.parser import FlagParser

    module = importlib.import_module("pagoda.cli." + name.replace("-", "_"))
    parser = FlagParser(
        prog=f"pagoda {name}",
        usage=f"pagoda {name} {module.USAGE}",
        description=COMMANDS[name],
        epilog=getattr(module, "EPILOG", None),
        usual=getattr(module, "USUAL", ()),
    )
    module.add_arguments(parser)
    return module, parser


def _overview() -> str:
    lines = [tell("usage: pagoda COMMAND ..."), "", tell("commands:")]
    lines += [f"  {name:<12}{told(text)}" for name, text in COMMANDS.items()]
    more = tell("`pagoda COMMAND --help` lists a command's flags; `pagoda --version` the version.")
    return "\n".join([*lines, "", more])


# As other programs for models call what they do.
_SYNONYMS = {
    "run": "chat", "start": "serve", "server": "serve", "ls": "list",
    "show": "doctor", "info": "doctor", "check": "doctor", "remove": "rm", "delete": "rm",
    "download": "pull", "benchmark": "bench", "collect-env": "doctor",
}  # fmt: skip


def _unknown(name: str) -> int:
    close = _SYNONYMS.get(name) or nearest(name, COMMANDS)
    if name.startswith("-"):
        text = tell("flags follow a command, as in `pagoda serve {flag}`.", flag=name)
    elif _is_model(name):
        text = tell(
            "{name!r} is a model, not a command: `pagoda serve {name}` serves it, "
            "`pagoda chat {name}` chats with it.",
            name=name,
        )
    elif close:
        text = tell("there is no command {name!r}; did you mean {close!r}?", name=name, close=close)
    else:
        known = ", ".join(COMMANDS)
        text = tell("there is no command {name!r}; there are: {known}.", name=name, known=known)
    print(f"pagoda: {text}", file=sys.stderr)
    return _USAGE_ERROR


def _is_model(name: str) -> bool:
    """Whether it is a model on this machine, an alias, or looks like one of the hub."""
    from pagoda.weights.files import open_model
    from pagoda.weights.source import parse_ref

    try:
        found = parse_ref(name)
        return found.kind != "local" or bool(open_model(Path(found.name)))
    except PagodaError:
        return False


def _report(words: list[str], text: str, error: Exception) -> int:
    from pagoda.base import env

    if env.get("PAGODA_DEBUG"):
        raise error
    print(f"pagoda {words[0] if words else ''}: {for_terminal(told(text))}", file=sys.stderr)
    return 1
