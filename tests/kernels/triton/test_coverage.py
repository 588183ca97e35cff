"""Every op has a form in Triton, with the same parameters, or docs/gpu.md says why not."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.kernels import ops

PAGE = Path(__file__).resolve().parents[3] / "docs" / "gpu.md"
ROWS = re.findall(r"^\| (`.+`) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
PLACES = {name: place for names, place in ROWS for name in re.findall(r"`(\w+)`", names)}
OPS = {
    name: op
    for name, op in vars(ops).items()
    if inspect.isfunction(op) and op.__module__ == ops.__name__ and not name.startswith("_")
}


def test_the_page_lists_every_op():
    assert PLACES.keys() == OPS.keys()


@pytest.mark.parametrize("name", OPS)
def test_same_parameters(name):
    file = re.match(r"`triton/(\w+)\.py`", PLACES[name])
    if file is None:
        return
    form = getattr(importlib.import_module(f"pagoda.kernels.triton.{file[1]}"), name)
    ours, theirs = (
        [(x.name, x.kind, x.default) for x in inspect.signature(op).parameters.values()]
        for op in (form, OPS[name])
    )
    assert ours == theirs
