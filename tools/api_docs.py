"""The generated parts of docs/api.md: every route and field, from the code."""

from collections.abc import Iterator
from typing import Any

import msgspec
from pydantic import AliasChoices
from pydantic.fields import FieldInfo

from api_peers import FIELDS, LLAMA, ROUTES, VLLM
from pagoda.config.server import ServerConfig
from pagoda.engine.served.fleet import Fleet
from pagoda.server.app import create_app
from pagoda.server.openapi import BODIES
from pagoda.server.protocol.common import Body
from pagoda.server.routes.unserved import UNSERVED

Operation = tuple[str, str, dict[str, Any]]
"""Method, path, and what the document says of it."""


def sections() -> dict[str, list[str]]:
    """The lines of each generated part. SystemExit names what `api_peers` does not know."""
    operations = list(_operations())
    unknown = {path for _, path, _ in operations} - ROUTES.keys()
    if unknown:
        raise SystemExit(f"tools/api_peers.py lacks the routes {', '.join(sorted(unknown))}.")
    served = [item for item in operations if f"{item[0]} {item[1]}" not in UNSERVED]
    return {
        "routes": list(_routes(served)),
        "fields": list(_fields(served)),
        "not offered": list(_unserved()),
    }


def _operations() -> Iterator[Operation]:
    document = create_app(Fleet(), ServerConfig()).openapi()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def _routes(operations: list[Operation]) -> Iterator[str]:
    yield f"| route | {VLLM} | {LLAMA} | body | |"
    yield "|---|---|---|---|---|"
    for method, path, operation in operations:
        body = _body(operation)
        name = "" if body is None else body.__name__
        # A body of any form has no table of fields.
        described = body is not None and any(_rows(body, _peers([path])))
        link = f"[{name}](#{name.lower()})" if described else name
        text = " ".join(operation.get("description", "").split())
        yield f"| `{method} {path}` | {_known(path)} | {link} | {text} |"


def _unserved() -> Iterator[str]:
    yield f"| route | {VLLM} | {LLAMA} | instead |"
    yield "|---|---|---|---|"
    for route, advice in UNSERVED.items():
        yield f"| `{route}` | {_known(route.split()[1])} | {advice} |"


def _fields(operations: list[Operation]) -> Iterator[str]:
    paths: dict[type[Body], list[str]] = {}
    for _, path, operation in operations:
        body = _body(operation)
        if body is not None:
            paths.setdefault(body, []).append(path)
    for body, served in paths.items():
        rows = list(_rows(body, _peers(served)))
        if rows:
            yield f"\n### {body.__name__}\n"
            yield "`" + "`, `".join(served) + "`\n"
            yield f"| field | Pagoda | {VLLM} | {LLAMA} | |"
            yield "|---|---|---|---|---|"
            yield from rows


def _rows(body: type[Body], peers: dict[str, set[str]]) -> Iterator[str]:
    """A row for all fields of which the same can be said."""
    named: dict[tuple[str, ...], list[str]] = {}
    for field, state, note in _states(body, set().union(*peers.values())):
        known = ("yes" if field in peers[peer] else "" for peer in (VLLM, LLAMA))
        named.setdefault((state, *known, note.replace("|", "/")), []).append(f"`{field}`")
    for said, fields in named.items():
        yield f"| {', '.join(fields)} | {' | '.join(said)} |"


def _states(body: type[Body], known: set[str]) -> Iterator[tuple[str, str, str]]:
    """Fields, what becomes of them, and a note."""
    refused, fields = body.UNSUPPORTED, body.model_fields
    honoured = {name: info for name, info in fields.items() if name not in refused}
    others = {alias: name for name, info in honoured.items() for alias in _aliases(name, info)}
    ignored = body.IGNORED.keys() - refused.keys() - fields.keys()
    for name, info in honoured.items():
        yield name, "honoured", info.description or ""
    for alias, name in others.items():
        yield alias, "honoured", f"As `{name}`."
    for name in sorted(refused):
        values = ", ".join(f"`{msgspec.json.encode(value).decode()}`" for value in refused[name])
        yield name, "refused", f"Accepted: {values}." if values else ""
    for name in sorted(ignored):
        yield name, "ignored", body.IGNORED[name]
    for name in sorted(known - fields.keys() - others.keys() - refused.keys() - ignored):
        yield name, "not known", ""


def _aliases(name: str, info: FieldInfo) -> list[str]:
    choices = info.validation_alias
    names = choices.choices if isinstance(choices, AliasChoices) else []
    return [str(choice) for choice in names if choice != name]


def _peers(paths: list[str]) -> dict[str, set[str]]:
    known = next((FIELDS[path] for path in paths if path in FIELDS), {})
    return {peer: set(known.get(peer, "").split()) for peer in (VLLM, LLAMA)}


def _body(operation: dict[str, Any]) -> type[Body] | None:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    reference = {} if content is None else content["schema"]
    return BODIES.get(reference.get("$ref", "").rpartition("/")[2])  # a list has none


def _known(path: str) -> str:
    return " | ".join("yes" if peer in ROUTES[path] else "" for peer in (VLLM, LLAMA))
