"""Flags that all kinds of `pagoda agent` share, and what they make."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagoda.base import env

if TYPE_CHECKING:
    from pagoda.agent.operator import Operator
    from pagoda.agent.settings import Settings

SETTINGS_NAME = "agent.json"
# Flags that change one field of the settings for this run.
_SETTINGS = {
    "base_url": ("URL", str, "where the model is served"),
    "model": ("NAME", str, "its name there"),
    "api": ("API", str, "openai, responses, anthropic or dashscope"),
    "profile": ("NAME", str, "how the model speaks and counts; by its name otherwise"),
    "prompt": ("TEXT", str, "what the model should know of the computer"),
    "images_kept": ("N", int, "screenshots in each request"),
    "max_rounds": ("N", int, "calls of the model at most"),
    "max_tokens": ("N", int, "tokens at most, in and out"),
    "max_cost": ("SUM", float, "money at most, with --price-input and --price-output"),
    "max_minutes": ("N", float, "minutes at most"),
    "price_input": ("SUM", float, "price of a million tokens read"),
    "price_output": ("SUM", float, "price of a million tokens written"),
    "ca_file": ("FILE", str, "certificates to trust"),
}


def add_driver(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--driver",
        required=True,
        metavar="URL",
        help="the computer: x11: (this display), vnc://host:5900, nanokvm://admin@host, "
        "pikvm://admin@host",
    )
    parser.add_argument(
        "--secrets",
        type=Path,
        metavar="FILE",
        help="lines NAME=VALUE; the model writes {{secret:NAME}} and never sees the value",
    )


def add_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings, over those of the page")
    for name, (metavar, kind, text) in _SETTINGS.items():
        flag = "--" + name.replace("_", "-")
        group.add_argument(flag, dest=name, type=kind, metavar=metavar, help=text)
    group.add_argument("--insecure", action="store_true", default=None, help="any certificate")


def add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs-dir", type=Path, metavar="DIR", help="where journals are kept; in the cache"
    )


def runs_folder(args: argparse.Namespace) -> Path:
    return args.runs_dir or env.cache_dir() / "agent-runs"


def settings_path() -> Path:
    return env.config_dir() / SETTINGS_NAME


def load_settings(args: argparse.Namespace) -> "Settings":
    """The page's settings, with those of the flags over them."""
    from pagoda.agent import settings

    names = [*_SETTINGS, "insecure"]
    changes: dict[str, Any] = {
        name: value for name in names if (value := getattr(args, name)) is not None
    }
    kept = settings.load(settings_path())
    key = env.get("PAGODA_API_KEY")
    if key and not kept.api_key:
        changes["api_key"] = key
    return settings.changed(kept, changes)


def make_operator(args: argparse.Namespace) -> "Operator":
    """From the flags, the settings file and the environment; the driver is not open yet."""
    from pagoda.agent.drivers.registry import make_driver
    from pagoda.agent.operator import Operator
    from pagoda.agent.secrets import Secrets

    secrets = Secrets.load(args.secrets)
    return Operator(make_driver(args.driver), load_settings(args), secrets, runs_folder(args))
