"""Every op has a form in Triton, with the same parameters, or docs/gpu.md says why not."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.kernels import ops
from pagoda.kernels.protocol import Ops
from pagoda.kernels.triton.target import offers

PAGE = Path(__file__).resolve().parents[3] / "docs" / "gpu.md"
ROWS = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
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
    file = re.match(r"`triton/([\w/]+)\.py`", PLACES[name])
    if file is None:
        return
    module = importlib.import_module(f"pagoda.kernels.triton.{file[1].replace('/', '.')}")
    ours, theirs = (
        [
            (x.name, x.kind, x.default)
            for x in inspect.signature(op).parameters.values()
            if x.name != "self"
        ]
        for op in (getattr(module, name), getattr(Ops, name, OPS[name]))
    )
    assert ours == theirs


@pytest.mark.parametrize(
    ("target", "dtype", "reason"),
    [
        (61, torch.float16, "sm_61 is older than sm_70"),
        (75, torch.bfloat16, "bfloat16 needs sm_80 or later"),
        (90, torch.float64, "torch.float64 is no type of activations"),
        (75, torch.float16, None),
        (121, torch.bfloat16, None),
    ],
)
def test_what_is_declined_has_its_reason(target, dtype, reason):
    assert offers(target, dtype) == reason
