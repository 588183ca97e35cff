"""Flags that all kinds of `pagoda agent` share, and what they make."""

import argparse
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagoda_agent.base import env
from pagoda_agent.base.errors import ConfigError
from pagoda_agent.cli.name import command

if TYPE_CHECKING:
    from pagoda_agent.drivers.base import Driver
    from pagoda_agent.settings import Settings
    from pagoda_agent.task.control import Control
    from pagoda_agent.task.operator import Operator

SETTINGS_NAME = "agent.json"
# Of runs that are listed: how many, and characters of each one's task.
_LISTED_RUNS, _LISTED_TASK = 5, 60


# Flags that change one field of the settings for this run.
_SETTINGS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "base_url": ("URL", str, "where the model is served"),
    "model": ("NAME", str, "its name there"),
    "api": ("API", str, "openai, responses, anthropic or dashscope"),
    "profile": ("NAME", str, "how the model speaks and counts; by its name otherwise"),
    "prompt": ("TEXT", str, "what the model should know of the computer"),
    "system_prompt": (
        "FILE",
        Path,
        "a system prompt in place of the built-in one, which `pagoda agent prompt` prints",
    ),
    "consent": (
        "LEVEL",
        str,
        "when you are asked: strict (every action), default (what is not known to only read), "
        "trusting (what is known to be dangerous)",
    ),
    "images_kept": ("N", int, "screenshots in each request"),
    "max_rounds": ("N", int, "calls of the model at most"),
    "max_tokens": ("N", int, "tokens at most, in and out"),
    "max_cost": ("SUM", float, "money at most, with --price-input and --price-output"),
    "max_minutes": ("N", float, "minutes at most"),
    "reply_seconds": ("N", float, "seconds at most for one reply of the model (600)"),
    "price_input": ("SUM", float, "price of a million tokens read"),
    "price_output": ("SUM", float, "price of a million tokens written"),
    "ca_file": ("FILE", str, "certificates to trust"),
}

_FLAGS = {"system_prompt": "--system-prompt-file"}
"""That are not called as their setting is."""
_ALIASES = {"base_url": ("--url",)}
"""As the flag is called elsewhere."""


def add_driver(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--driver",
        metavar="URL",
        help="the computer, if not the settings' one: x11: (this display), vnc://host:5900, "
        "nanokvm://admin@host, pikvm://admin@host",
    )
    parser.add_argument(
        "--secrets",
        type=Path,
        metavar="FILE",
        help="lines NAME=VALUE; the model writes {{secret:NAME}} and never sees the value",
    )


def add_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "settings, over those of the page",
        "The key that the model's server wants is no flag, for a command line is seen by every "
        "user: set it on the page, or in PAGODA_API_KEY.",
    )
    for name in _SETTINGS:
        add_setting(group, name)
    group.add_argument("--insecure", action="store_true", default=None, help="any certificate")


def add_setting(parser: "argparse._ActionsContainer", name: str) -> None:
    """The flag of one field of the settings."""
    metavar, kind, text = _SETTINGS[name]
    names = [_flag(name), *_ALIASES.get(name, ())]
    text = text.replace("pagoda agent", command())
    parser.add_argument(*names, dest=name, type=kind, metavar=metavar, help=text)


def add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs-dir", type=Path, metavar="DIR", help="where journals are kept; in the cache"
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run's name, as its folder is called")


def add_operator(parser: argparse.ArgumentParser) -> None:
    """What `make_operator` needs."""
    add_driver(parser)
    add_runs(parser)
    add_settings(parser)


def runs_folder(args: argparse.Namespace) -> Path:
    return args.runs_dir or env.cache_dir() / "agent-runs"


def find_run(args: argparse.Namespace) -> Path:
    """The folder of the run that is named. ConfigError where there is none, with those there
    are."""
    from pagoda_agent.runs.journal import JOURNAL, latest

    runs = runs_folder(args)
    folder: Path = runs / args.run
    if (folder / JOURNAL).is_file():
        return folder
    text = f"There is no run {args.run!r} in {runs}"
    found = latest(runs, _LISTED_RUNS)
    if not found:
        raise ConfigError(f"{text}, and no other either; --runs-dir names another folder.")
    listed = "".join(f"\n  {name}  {' '.join(task.split())[:_LISTED_TASK]}" for name, task in found)
    raise ConfigError(f"{text}. The latest there:{listed}")


def settings_path() -> Path:
    return env.config_dir() / SETTINGS_NAME


def load_settings(args: argparse.Namespace) -> "Settings":
    """The page's settings, with those of the flags over them."""
    from pagoda_agent import settings

    names = ["driver", *_SETTINGS, "insecure"]
    changes: dict[str, Any] = {
        name: value for name in names if (value := getattr(args, name, None)) is not None
    }
    if isinstance(file := changes.get("system_prompt"), Path):
        changes["system_prompt"] = _text_of(file)
    kept = settings.load(settings_path())
    key = env.get("PAGODA_API_KEY")
    if key and not kept.api_key:
        changes["api_key"] = key
    try:
        return settings.changed(kept, changes)
    except ConfigError as error:
        raise ConfigError(_with_flags(str(error))) from error


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--system-prompt-file {file} cannot be read: {error}.") from error


def _with_flags(text: str) -> str:
    """What is said of a setting, said of its flag."""
    for name in (name for name in _SETTINGS if "_" in name):
        text = text.replace(name, _flag(name))
    return text


def _flag(name: str) -> str:
    return _FLAGS.get(name, "--" + name.replace("_", "-"))


def make_operator(args: argparse.Namespace, absent: bool = False) -> "Operator":
    """From the flags, the settings file and the environment; the driver is not open yet. Makes the
    folder of the journals. `absent`: a driver that lacks packages is no error, but stands for
    itself until they are installed."""
    from pagoda_agent.drivers.absent import AbsentDriver
    from pagoda_agent.drivers.needs import LacksError
    from pagoda_agent.runs.journal import make_runs
    from pagoda_agent.secrets import Secrets
    from pagoda_agent.task.operator import Operator

    secrets, settings = Secrets.load(args.secrets), load_settings(args)
    try:
        driver = named_driver(settings)
    except LacksError as error:
        if not absent:
            raise
        driver = AbsentDriver(settings.driver, error.lacks)
    operator = Operator(driver, settings, secrets, runs_folder(args))
    make_runs(operator.runs)
    return operator


def named_driver(settings: "Settings") -> "Driver":
    """Not open yet. Raises ConfigError, also where no computer is named."""
    from pagoda_agent.drivers.registry import make_driver

    if not settings.driver:
        raise ConfigError(
            "Name the computer with --driver: x11: (this display), vnc://host:5900, "
            "nanokvm://admin@host or pikvm://admin@host."
        )
    return make_driver(settings.driver)


def in_terminal(args: argparse.Namespace, begin: "Callable[[Operator], Awaitable[Control]]") -> int:
    """Watch a task from this terminal; 0 where it was done, 1 where not."""
    import asyncio

    from pagoda_agent.base.log import setup_logging
    from pagoda_agent.cli.terminal import Terminal

    setup_logging("warning")
    operator = make_operator(args)

    async def watch() -> int:
        return await Terminal(operator).run(lambda: begin(operator))

    return asyncio.run(watch())
