"""Which source `chat` and `complete` talk to, from their flags."""

import argparse
import sys
from pathlib import Path
from typing import Any

from pagoda.base import env
from pagoda.base.errors import ConfigError
from pagoda.cli.talk.conversation import OPTIONS
from pagoda.cli.talk.source import Source
from pagoda.config.compat import add_compat_flags, answers
from pagoda.config.flags import add_engine_flags, engine_config
from pagoda.config.sampling import NUMBERS

_DEFAULT_PORT = 8000
# Also as llama-cli spells them.
_FLAGS = {number.name: (number.flags, number.doc) for number in NUMBERS} | {
    "max_tokens": (
        ("--max-tokens", "-n", "--predict", "--n-predict"),
        "Most tokens of a reply; -1 is as many as fit.",
    ),
}


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """The server or the model, and how tokens are chosen."""
    where = parser.add_argument_group("server")
    add_base_url(where, "an OpenAI-compatible server, such as http://host:8000/v1")
    where.add_argument(
        "--port", type=int, metavar="N",
        help="a server on this machine (default: the one on port 8000, if it fits)",
    )  # fmt: skip
    where.add_argument("--model-name", metavar="NAME", help="one of the server's models")
    where.add_argument("--api-key", metavar="KEY", help="key for the server; also PAGODA_API_KEY")
    sampling = parser.add_argument_group("sampling", "By default as the model or server has it.")
    for name, (flags, text) in _FLAGS.items():
        kind = OPTIONS[name]
        sampling.add_argument(*flags, type=kind, metavar="N" if kind is int else "X", help=text)
    add_engine_flags(parser)
    add_compat_flags(parser)


def add_base_url(group: argparse._ActionsContainer, text: str) -> None:
    """`--base-url`, which may also be spelt `--url`."""
    group.add_argument("--base-url", metavar="URL", help=text)
    group.add_argument("--url", dest="base_url", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def say_answers(args: argparse.Namespace) -> None:
    """One line on stderr for each flag that means nothing here; ConfigError as `answers`."""
    for line in answers(args):
        print(line, file=sys.stderr)


def request_options(args: argparse.Namespace) -> dict[str, Any]:
    """Sampling options that were given, by their names in requests."""
    given = {name: getattr(args, name, None) for name in OPTIONS}
    if (given["max_tokens"] or 0) < 0:  # llama-cli's "as many as there are"
        given["max_tokens"] = None
    return {name: value for name, value in given.items() if value is not None}


def refuse_text_as_model(args: argparse.Namespace) -> None:
    """Raises ConfigError where the text to send stands in the model's place."""
    word = getattr(args, "model_tag", None)
    if word and any(letter.isspace() for letter in word) and not Path(word).exists():
        raise ConfigError(f"{word!r} is no model; to send it as text, put -q before it.")


async def open_source(args: argparse.Namespace) -> Source:
    """The server of --base-url or --port; without them, one on port 8000 that fits, else an engine
    of our own. A server that was named is never replaced: that would load a model unasked."""
    from pagoda.cli.talk.source_http import HttpSource, find_local

    key = args.api_key or env.get("PAGODA_API_KEY")
    model = args.model_name or getattr(args, "model_tag", None) or getattr(args, "model", None)
    url = args.base_url or (None if args.port is None else f"127.0.0.1:{args.port}")
    if url:
        return await HttpSource.connect(_base_url(url), model=model, api_key=key)
    config = engine_config(args)
    found = await find_local(_DEFAULT_PORT, model, key)
    if found is not None:
        return found
    if args.model_name:
        raise ConfigError(
            f"No server on port {_DEFAULT_PORT} has a model {args.model_name!r}; say which server "
            "does with --base-url or --port, or load a model here with --model."
        )

    from pagoda.cli.talk.source_engine import EngineSource

    return await EngineSource.start(config)


def _base_url(url: str) -> str:
    """With the scheme and the /v1 that people leave out."""
    if "://" not in url:
        url = "http://" + url
    url = url.rstrip("/")
    return url if url.endswith("/v1") else url + "/v1"
