"""`pagoda launch`: a coding agent that works with a model of this machine."""

import argparse
import dataclasses
import json
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pagoda.base import env
from pagoda.base.errors import ConfigError
from pagoda.base.words import say, tell, told
from pagoda.cli.clients.client import Client, Target
from pagoda.cli.clients.registry import CLIENTS
from pagoda.cli.connect import add_base_url

if TYPE_CHECKING:
    from pagoda.cli.clients.server import Models, StartedServer

USAGE = f"{{{','.join(CLIENTS)}}} [flags] [-- ARGUMENTS]"
EPILOG = (
    "The server goes on when the client has ended; `pagoda stop` ends it. No file of the client's "
    "is changed: settings go by flags, variables and files in a folder of Pagoda's own."
)
_DEFAULT_PORT = 8000
_ARGUMENTS = "--client-arguments"


def prepare(words: Sequence[str]) -> list[str]:
    """What stands behind `--` is the client's; a parser would look for flags in it."""
    if "--" not in words:
        return list(words)
    cut = list(words).index("--")
    return [*words[:cut], f"{_ARGUMENTS}={json.dumps(list(words[cut + 1 :]))}"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "client", choices=CLIENTS, metavar=f"{{{','.join(CLIENTS)}}}", help="the program to start"
    )
    parser.add_argument(
        "-m", "--model", metavar="MODEL",
        help="the model (default: the running server's first, else smollm2)",
    )  # fmt: skip
    parser.add_argument(
        "--port", type=_port, metavar="N",
        help="where the server runs, or is to run, on this machine (default: where one runs, else "
        f"{_DEFAULT_PORT})",
    )  # fmt: skip
    add_base_url(parser, "a server that runs elsewhere")
    parser.add_argument("--api-key", metavar="KEY", help="key for the server; also PAGODA_API_KEY")
    parser.add_argument(
        "--print", action="store_true", help="show what would be written and run, and do nothing"
    )
    parser.add_argument(
        "--undo", action="store_true", help="remove the settings that were written for the client"
    )
    parser.add_argument(_ARGUMENTS, type=json.loads, default=[], help=argparse.SUPPRESS)


def _port(text: str) -> int:
    if text.isdecimal() and 0 < int(text) < 1 << 16:
        return int(text)
    raise argparse.ArgumentTypeError(f"a port is a number from 1 to 65535, not {text!r}")


def run(args: argparse.Namespace) -> int:
    client = CLIENTS[args.client]
    if args.base_url and args.port is not None:
        raise ConfigError("--base-url and --port both say where the server is; give one of them.")
    if args.undo:
        return _undo(client)
    if shutil.which(client.program) is None and not args.print:
        raise ConfigError(_missing(client))
    if args.port is None and not args.base_url:
        from pagoda.cli.clients.server import find_port

        args.port = find_port(_DEFAULT_PORT, args.model, _key(args))
    if args.print:
        return _print(client, args)
    models, started = _server(args)
    try:
        return _run(client, args, models)
    finally:
        if started is not None:
            _say(
                tell(
                    "The server goes on; `pagoda stop {port}` ends it (log: {log}).",
                    port=started.port,
                    log=started.log,
                )
            )


def _run(client: Client, args: argparse.Namespace, models: "Models") -> int:
    from pagoda.cli.clients.program import folder_of, run_program, write_files

    target = _target(client, args, models)
    if not _is_agreed(client, target):
        return 1
    setup = client.configure(target)
    write_files(folder_of(client), setup)
    _say(
        tell(
            "{client} is set up with {model} at {url}.",
            client=client.title, model=target.model, url=target.url,
        )
    )  # fmt: skip
    return run_program([client.program, *setup.words, *args.client_arguments], setup)


def _server(args: argparse.Namespace) -> "tuple[Models, StartedServer | None]":
    """The server that runs, once its model is loaded, or one that is started here."""
    from pagoda.cli.clients.server import StartedServer, wait_ready

    root, key = _root(args), _key(args)
    with Progress() as progress:
        models = wait_ready(root, key, None, progress.show)
        if models is not None:
            return models, None
        if args.base_url:
            raise ConfigError(_silence(root))
        started = StartedServer(_model(args), args.port, key)
        _say(
            tell(
                "Starting a server for {model} on port {port}; log: {log}",
                model=_model(args), port=started.port, log=started.log,
            )
        )  # fmt: skip
        try:
            models = wait_ready(root, key, started, progress.show)
        except BaseException:
            # Nobody has heard of it yet, and nobody waits for it any more.
            started.end()
            raise
    assert models is not None
    return models, started


def _silence(root: str) -> str:
    """Why nothing answers there, as far as it shows."""
    host = urlsplit(root).hostname or ""
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return say("The name {host!r} leads to no address here; check --base-url.", host=host)
    return say("Nothing answers at {root}; is the server running?", root=root)


def _target(client: Client, args: argparse.Namespace, models: "Models | None") -> Target:
    """`models` is None for a server that is yet to be started."""
    from pagoda.cli.clients.program import folder_of
    from pagoda.cli.clients.server import short_name

    if models is None:
        name = short_name(_model(args))
        model = f"{client.prefers}-{name}" if client.prefers else name
        return Target(_root(args), model, folder_of(client), _key(args))
    card = models.choose(args.model, client.prefers)
    length = card.get("max_model_len")
    inputs = (card.get("architecture") or {}).get("input_modalities") or ()
    return Target(
        models.root, card["id"], folder_of(client), _key(args),
        context=length if isinstance(length, int) else None,
        sees="image" in inputs,
        catalog=models.catalog,
    )  # fmt: skip


def _is_agreed(client: Client, target: Target) -> bool:
    """Says where the context is too short for the client; in a terminal, asks whether to go on: the
    client's own screen would cover the remark."""
    if target.context is None or target.context >= 2 * client.prompt_tokens:
        return True
    _say(
        tell(
            "Warning: {model} reads {context:,} tokens, and {client} sends about {instructions:,} "
            "of instructions with each request: little or no room is left for work. Take a model "
            "with a longer context (--model).",
            model=target.model, context=target.context, client=client.title,
            instructions=client.prompt_tokens,
        )
    )  # fmt: skip
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    sys.stderr.write(tell("Start {client} all the same? [y/N] ", client=client.title))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _print(client: Client, args: argparse.Namespace) -> int:
    """What `run` would do, with the variable's name in the place of a key."""
    from pagoda.cli.clients.program import KEY_VARIABLE, as_typed
    from pagoda.cli.clients.server import Models, ask

    found = ask(_root(args), _key(args))
    if isinstance(found, Models):
        state = tell("The server at {root} runs.", root=found.root)
    elif found:
        state = tell("The server at {root} is loading.", root=_root(args))
    elif args.base_url or found is not None:
        state = tell("The server at {root} does not answer.", root=_root(args))
    else:
        state = tell("No server runs; this would be started:")
        state += f"\npagoda {as_typed(_serve(args), {})}"
    print(f"# {state}")
    target = _target(client, args, found if isinstance(found, Models) else None)
    if target.api_key:
        target = dataclasses.replace(target, api_key=KEY_VARIABLE)
    setup = client.configure(target)
    for name, text in setup.files.items():
        print(f"\n# {target.folder / name}\n{text}", end="")
    words = [client.program, *setup.words, *args.client_arguments]
    print(f"\n# {tell('The command:')}\n{as_typed(words, dict(setup.environment))}")
    if client.editor is not None:
        print(f"\n# {client.editor(target)}")
    if shutil.which(client.program) is None:
        print(f"\n# {told(_missing(client))}")
    return 0


def _undo(client: Client) -> int:
    from pagoda.cli.clients.program import folder_of, undo

    removed = undo(client)
    for path in removed:
        print(tell("Removed {path}.", path=path))
    if not removed:
        print(tell("Nothing was written for {client}.", client=client.title))
    elif folder_of(client).exists():
        print(
            tell(
                "{client}'s own record of these sessions stays in {folder}.",
                client=client.title,
                folder=folder_of(client),
            )
        )
    return 0


def _missing(client: Client) -> str:
    return say(
        "{client} is not installed: there is no program `{program}`. `{install}` installs it.",
        client=client.title, program=client.program, install=client.install,
    )  # fmt: skip


def _serve(args: argparse.Namespace) -> list[str]:
    from pagoda.cli.clients.server import serve_words

    return serve_words(_model(args), args.port)


def _root(args: argparse.Namespace) -> str:
    from pagoda.cli.clients.server import root_of

    return root_of(args.base_url or f"127.0.0.1:{args.port}")


def _model(args: argparse.Namespace) -> str:
    from pagoda.config.engine import ModelConfig

    return args.model or ModelConfig().model


def _key(args: argparse.Namespace) -> str | None:
    key: str | None = args.api_key or env.get("PAGODA_API_KEY")
    return key


def _say(text: str) -> None:
    """A remark of Pagoda's own; stdout is the client's."""
    print(text, file=sys.stderr, flush=True)


class Progress:
    """What is waited for, on one line of a terminal; elsewhere each new word on its own."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._last = ""

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal and self._last:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def show(self, text: str) -> None:
        text = told(text)
        if self._terminal:
            seconds = time.monotonic() - self._started
            sys.stderr.write(f"\r\x1b[K{text} ({seconds:.0f} s)")
            sys.stderr.flush()
        elif text != self._last:
            _say(text)
        self._last = text
