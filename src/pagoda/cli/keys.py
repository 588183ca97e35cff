"""`pagoda keys`: API keys by name, for `pagoda serve --api-key-file`."""

import argparse
import sys
from pathlib import Path

from pagoda.base.errors import ConfigError
from pagoda.base.words import say, tell

USAGE = "{add,list,remove} [NAME] --file FILE [flags]"
EPILOG = "A server that has the file reads it again within a second. docs/keys.md says more."

_LIMITS = {
    "requests_per_minute": "requests in any minute",
    "tokens_per_minute": "tokens of prompts and replies in any minute",
    "tokens_per_day": "likewise in a day (UTC)",
    "parallel": "requests at a time",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("add", "list", "remove"), help="what to do")
    parser.add_argument("name", metavar="NAME", nargs="?", help="the key's name, to add or remove")
    parser.add_argument(
        "--file", metavar="FILE", type=Path, required=True, help="the server's --api-key-file"
    )
    of_add = parser.add_argument_group("of add")
    of_add.add_argument(
        "--models", metavar="MODEL", nargs="+", help="names it may ask for; by default all"
    )
    for name, text in _LIMITS.items():
        of_add.add_argument("--" + name.replace("_", "-"), metavar="N", type=_count, help=text)
    of_add.add_argument(
        "--admin", action="store_true", help="it may manage the server and sees all usage"
    )


def run(args: argparse.Namespace) -> int:
    if args.action == "list":
        if args.name is not None:
            raise ConfigError("list takes no name.")
        return _list(args.file)
    if args.name is None:
        raise ConfigError(f"Name the key: pagoda keys {args.action} NAME --file {args.file}")
    return _add(args) if args.action == "add" else _remove(args.file, args.name)


def _add(args: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    from pagoda.server.keys.file import KeyEntry, check_name, edited, new_key

    check_name(args.name)
    key, digest = new_key()
    with edited(args.file) as entries:
        if args.name in entries:
            raise ConfigError(
                f"{args.file} has a key {args.name!r}; remove it first, or edit its limits in the "
                "file."
            )
        entries[args.name] = KeyEntry(
            sha256=digest,
            created=datetime.now(UTC).date(),
            models=None if args.models is None else tuple(args.models),
            admin=args.admin,
            **{name: getattr(args, name) for name in _LIMITS},
        )
    # Alone on its line, and nowhere else: `KEY=$(pagoda keys add ...)`.
    print(key)
    said = tell(
        "The key of {name}, shown this once; clients send it as any API key.", name=args.name
    )
    print(said, file=sys.stderr)
    return 0


def _remove(path: Path, name: str) -> int:
    from pagoda.server.keys.file import edited

    with edited(path) as entries:
        if name not in entries:
            raise ConfigError(
                say(
                    "{path} has no key {name!r}; it has: {known}.",
                    path=path,
                    name=name,
                    known=", ".join(entries) or "-",
                )
            )
        del entries[name]
    print(tell("{name} is removed.", name=name))
    return 0


def _list(path: Path) -> int:
    from pagoda.base.columns import table
    from pagoda.server.keys.file import KeyEntry, read_keys
    from pagoda.server.keys.usage import Counts, Ledger, usage_file

    entries, ledger = read_keys(path), Ledger(usage_file(path))
    if not entries:
        print(
            tell("{path} has no keys; `pagoda keys add NAME --file {path}` makes one.", path=path)
        )
        return 0

    def tokens(counted: dict[str, Counts]) -> str:
        return str(sum(each.prompt_tokens + each.completion_tokens for each in counted.values()))

    def limits(entry: KeyEntry) -> str:
        held = {name: getattr(entry, name) for name in _LIMITS}
        shown = [f"{name.replace('_', '-')} {most}" for name, most in held.items() if most]
        flags = [name for name in ("admin", "disabled") if getattr(entry, name)]
        return ", ".join([*shown, *flags]) or "-"

    head = (tell("NAME"), tell("CREATED"), tell("REQUESTS"), tell("TOKENS"), tell("TODAY"),
            tell("MODELS"), tell("LIMITS"))  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for name, entry in entries.items():
        used = ledger.row(name)
        requests = sum(each.requests for each in used.total.values())
        rows.append(
            (
                name, str(entry.created), str(requests), tokens(used.total), tokens(used.today),
                ", ".join(entry.models or (tell("all"),)), limits(entry),
            )
        )  # fmt: skip
    print("\n".join(table(head, rows, texts={0, 1, 5, 6})))
    return 0


def _count(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(say("{text!r} is not a whole number above 0.", text=text))
