"""Writes the generated parts of docs/configuration.md; `--check` fails when they are stale."""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pagoda.base import env
from pagoda.config import engine, server

TARGET = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
BEGIN, END = "<!-- generated: {} -->", "<!-- end: {} -->"
CLASSES = (
    engine.ModelConfig,
    engine.CacheConfig,
    engine.SchedulerConfig,
    engine.ParallelConfig,
    engine.DeviceConfig,
    server.ServerConfig,
)


def main() -> int:
    text = TARGET.read_text()
    fresh = _replace(_replace(text, "flags", _flags()), "environment", _environment())
    if "--check" in sys.argv:
        if fresh != text:
            print(f"{TARGET.name} is stale: run `make docs`.")
            return 1
        return 0
    TARGET.write_text(fresh)
    return 0


def _replace(text: str, section: str, lines: Iterator[str]) -> str:
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


if __name__ == "__main__":
    sys.exit(main())
