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


def examples() -> Iterator[Example]:
    for module in sorted(found.name for found in pkgutil.iter_modules(__path__)):
        yield from importlib.import_module(f"{__name__}.{module}").examples()
