"""A table of `name -> "module:attribute"` whose modules load when they are asked for."""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from pagoda.base.near import nearest_of


def attribute(path: str) -> Any:
    """Import and return what `module:attribute` names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


class Registry:
    """Names mapped to lazily imported objects.

    Supporting a hundred architectures must not import a hundred modules.
    """

    def __init__(self, kind: str, entries: Mapping[str, str], *, package: str = ""):
        """`package`: where all of the modules lie."""
        self.kind = kind
        self._package = package
        self._entries = dict(entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def get(self, name: str) -> Any:
        """Import and return the object; KeyError with the nearest known names otherwise."""
        if name not in self._entries:
            raise KeyError(f"unknown {self.kind} {name!r}; {self.nearest(name)}")
        path = self._entries[name]
        return attribute(f"{self._package}.{path}" if self._package else path)

    def nearest(self, name: str) -> str:
        """A phrase for error messages: the nearest known name, and all known ones."""
        return nearest_of(name, self._entries)
