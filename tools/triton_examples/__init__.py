"""Calls of ops in Triton, for `tools/triton_table.py`: a module per file of kernels.

A module's `examples` yields each op in every form and type that it offers; to add kernels is to
add a module here.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Example(NamedTuple):
    """A call, whose launches are compiled."""

    label: str
    """The form, as `head 128, keys int8`."""
    dtype: str
    """Of activations."""
    call: Callable[[], object]
    """With CPU tensors, which are never read."""
    declined: Callable[[int], str | None]
    """Why a capability (as 90) is not offered this, or None."""


def files() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def examples(names: list[str]) -> Iterator[tuple[str, Example]]:
    """(file, example) of those files of kernels, or of all."""
    for name in names or files():
        for example in importlib.import_module(f"{__name__}.{name}").examples():
            yield name, example
