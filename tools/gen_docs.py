"""Writes the generated parts of docs/configuration.md, api.md and models.md; `--check` fails where
stale."""

import dataclasses
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import api_docs
import models_docs
from pagoda.base import env
from pagoda.config import engine, nodes, parallel, server
from pagoda_agent.base import env as agent_env

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- generated: {} -->", "<!-- end: {} -->"
CLASSES = (
    engine.ModelConfig,
    engine.CacheConfig,
    engine.SchedulerConfig,
    parallel.ParallelConfig,
    engine.DeviceConfig,
    engine.MediaConfig,
    engine.SpeculationConfig,
    engine.AdapterConfig,
    nodes.NodesConfig,
    server.ServerConfig,
)


def main() -> int:
    pages = {
        "configuration.md": {"flags": _flags(), "environment": _environment()},
        "api.md": api_docs.sections(),
        "models.md": models_docs.sections(),
    }
    stale = 0
    for name, sections in pages.items():
        text = (DOCS / name).read_text()
        fresh = text
        for section, lines in sections.items():
            fresh = _replace(fresh, section, lines)
        if "--check" not in sys.argv:
            (DOCS / name).write_text(fresh)
        elif fresh != text:
            print(f"{name} is stale: run `make docs`.")
            stale = 1
    return stale


def _replace(text: str, section: str, lines: Iterable[str]) -> str:
    begin, end = BEGIN.format(section), END.format(section)
    head, rest = text.split(begin, 1)
    _, tail = rest.split(end, 1)
    return head + begin + "\n" + "\n".join(lines) + "\n" + end + tail


def _flags() -> Iterator[str]:
    for cls in CLASSES:
        yield f"\n### {cls.__name__}\n"
        yield (cls.__doc__ or "").strip().splitlines()[0] + "\n" if _has_own_doc(cls) else ""
        yield "| flag | default | what it does |"
        yield "|---|---|---|"
        for item in dataclasses.fields(cls):
            if item.metadata.get("hidden"):
                continue
            names = ["--" + item.name.replace("_", "-"), *item.metadata["aliases"]]
            doc = item.metadata["doc"].replace("|", "\\|")
            if item.metadata["choices"]:
                doc += " One of " + ", ".join(f"`{x}`" for x in item.metadata["choices"]) + "."
            yield f"| {', '.join(f'`{n}`' for n in names)} | {_default(item)} | {doc} |"
    yield ""


def _has_own_doc(cls: type) -> bool:
    return not (cls.__doc__ or "").startswith(cls.__name__ + "(")


def _default(item: "dataclasses.Field[Any]") -> str:
    value = item.default
    if value is dataclasses.MISSING or value in (None, (), ""):
        return ""
    return f"`{' '.join(value)}`" if isinstance(value, tuple) else f"`{value}`"


def _environment() -> Iterator[str]:
    yield "| variable | default | what it does |"
    yield "|---|---|---|"
    for variable in env.VARIABLES.values():
        default = "" if variable.default is None else f"`{variable.default}`"
        yield f"| `{variable.name}` | {default} | {variable.doc} |"
    for name, doc in agent_env.VARIABLES.items():
        if name not in env.VARIABLES:
            yield f"| `{name}` |  | {doc} |"


if __name__ == "__main__":
    sys.exit(main())
