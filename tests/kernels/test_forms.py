"""Every form of the ops has the protocol's signatures, and leaves to torch what it can't take."""

import inspect
from types import FunctionType

import pytest
import torch

from pagoda.kernels import ops
from pagoda.kernels.cpu.ops import CpuOps
from pagoda.kernels.protocol import Ops
from pagoda.kernels.ref import ops as reference

triton_ops = pytest.importorskip("pagoda.kernels.triton.ops", reason="needs the package triton")

NAMES = sorted(
    name for name, op in vars(Ops).items() if isinstance(op, FunctionType) and name[0] != "_"
)


def parameters(function: object) -> list[tuple[str, object, object]]:
    found = inspect.signature(function).parameters.values()  # type: ignore[arg-type]  # a function
    return [(one.name, one.kind, one.default) for one in found if one.name != "self"]


@pytest.mark.parametrize("name", NAMES)
def test_forms_have_the_same_signatures(name: str) -> None:
    expected = parameters(getattr(Ops, name))
    for form in (CpuOps, reference, triton_ops):
        assert parameters(getattr(form, name)) == expected, form
    assert callable(getattr(ops, name))


def test_shapes_that_a_kernel_does_not_take_are_computed_all_the_same() -> None:
    x = torch.randn(2, 3, 8)
    weight = torch.ones(8)
    for apart in (x[None], x.transpose(0, 1)):
        expected = reference.rms_norm(apart, weight, 1e-5)
        assert torch.equal(ops.rms_norm(apart, weight, 1e-5), expected)
    assert torch.equal(ops.scale(x, 0.5), x * 0.5)
    assert torch.equal(ops.soft_cap(x, 3.0), reference.soft_cap(x, 3.0))
    for kind in ("relu", "silu"):
        assert torch.equal(ops.activate(x[0], kind), reference.activate(x[0], kind))
    for kind in ("relu", "gelu"):
        found, expected = ops.activate_and_mul(x[0], kind), reference.activate_and_mul(x[0], kind)
        assert torch.equal(found, expected)
        found = ops.activate_mul(x[0], x[1], kind)
        assert torch.equal(found, reference.activate_mul(x[0], x[1], kind))
    values, ids = ops.top_tokens(x[0], 100)
    assert values.shape == ids.shape == (3, 8)
