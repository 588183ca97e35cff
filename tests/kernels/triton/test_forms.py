"""Tiles that are measured once and kept."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
from triton.runtime.errors import OutOfResources

from pagoda.kernels import ops
from pagoda.kernels.triton.products import experts, forms
from pagoda.kernels.triton.products.forms import (
    Case,
    Form,
    class_of,
    experts_form,
    form,
    measured,
    take,
)
from tests.kernels.triton.test_experts import packed_experts, routed

WHAT = Case(True, "Q4_K_4_8_32", "float16", 64, 256, 64)
USUAL = experts_form(WHAT, 90)


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch):
    monkeypatch.setattr(forms, "_measured", {})


def tune(seconds, compute=lambda: torch.ones(3), what=WHAT) -> list[Form]:
    """The forms that were measured."""

    def timed(call):
        assert call is compute
        return seconds(forms.form(what, 90))

    tried = []
    for cut in forms.tune(what, 90, compute, timed):
        tried.append(cut)
        assert form(what, 90) == USUAL  # others compute in between
    return tried


def test_the_fastest_form_is_used_from_the_end_on():
    tried = tune(lambda cut: abs(cut.rows - 128) + abs(cut.tokens - 32) + cut.stages - cut.warps)
    assert tried[0] == USUAL and len(set(tried)) == len(tried) < 12
    assert form(WHAT, 90) == Form(32, 128, 8, 2)
    assert form(WHAT._replace(gated=False), 90) == USUAL
    assert form(WHAT._replace(tokens=16), 90) == experts_form(WHAT._replace(tokens=16), 90)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tokens", forms.CLASSES)
@pytest.mark.parametrize("target", [80, 90])
def test_forms_fit(gated, tokens, target):
    """Sums are in registers, and a warp has rows enough."""
    what = WHAT._replace(gated=gated, tokens=tokens)
    usual = experts_form(what, target)
    found = list(forms.tune(what, target, lambda: torch.ones(1), lambda call: 1.0))
    assert found[0] == usual and {cut.stages for cut in found} == {2, 3, 4}
    for cut in found:
        assert (1 + gated) * cut.tokens * cut.rows / (32 * cut.warps) <= 128
        assert cut.rows >= 16 * cut.warps and cut.tokens <= tokens


def test_what_does_not_fit_the_device_is_passed_over():
    def seconds(cut):
        if cut.rows > 64:
            raise OutOfResources(300, 200, "shared memory")
        return cut.stages + cut.tokens

    tune(seconds)
    assert form(WHAT, 90) == Form(32, 64, 4, 2)
    forms._measured.clear()

    def never(cut):
        raise OutOfResources(300, 200, "shared memory")

    tune(never)
    assert form(WHAT, 90) == USUAL


def test_a_form_that_computes_something_else_is_not_used(caplog):
    expected = torch.tensor([1.0, torch.inf, torch.nan, 100.0])

    def compute():
        wrong = form(WHAT, 90).rows == 64
        return expected + (torch.tensor([0, 0, 0, 5.0]) if wrong else 0.5)

    tune(lambda cut: cut.rows, compute)
    assert form(WHAT, 90).rows == 128
    assert "other results" in caplog.text


def test_what_was_measured_is_taken_by_another_process():
    tune(lambda cut: cut.rows)
    rows = measured()
    mine, theirs = dict(forms._measured), WHAT._replace(tokens=16)
    forms._measured.clear()
    assert take(rows) == 1 and forms._measured == mine
    other = [*theirs, 16, 64, 4, 2]
    changed = [*rows[0][:-4], 64, 128, 8, 4]
    assert measured([other, changed]) == [other, rows[0]]


@pytest.mark.parametrize(
    "rows",
    [None, 7, {"a": 1}, [["linear", 2]], [[*WHAT, 64, 64, 8]], [[*WHAT, 64, 48, 8, 2]],
     [[*WHAT, 64, 64, 8, True]], [[1, *WHAT[1:], 64, 64, 8, 2]]],
)  # fmt: skip
def test_what_is_not_whole_is_not_taken(rows):
    assert take(rows) == 0 and measured(rows) == []


@pytest.mark.parametrize(("up", "count"), [(("INT4", "INT4"), 2), (("Q8_0", "Q4_0"), 3)])
def test_products_are_those_of_the_mixture(up, count, monkeypatch, device):
    """With experts' own cases, and each computed in the form that is being measured."""
    columns = 64
    gating, dtype = ops.Gating(), torch.float16
    packed_up, _ = packed_experts(up, 3, 32, columns, dtype, device, bias=True)
    packed_down, _ = packed_experts(("Q8_0",), 3, columns, 32, dtype, device, bias=True)
    x = torch.randn(7, columns, device=device).to(dtype) / 8
    where = routed(7, 3, 1, device)
    asked = []
    monkeypatch.setattr(experts, "form", lambda what, target: asked.append(what) or USUAL)
    whole = experts.mix(x, where, packed_up, packed_down, gating)
    cases = asked.copy()
    products = experts.products_of_tiles(x, where, packed_up, packed_down, gating)
    asked.clear()
    down = products[0].compute()
    assert asked == [products[0].case]
    assert len(products) == count and {product.case for product in products} == set(cases)
    torch.testing.assert_close((down * where.weights).to(dtype), whole, rtol=0, atol=2e-3)
    sizes = [product.compute().shape[1] for product in products]
    assert sizes == [columns] + [32] * (count - 1)


def test_classes():
    assert [class_of(tokens) for tokens in (1, 16, 17, 64, 100, 5000)] == [16, 16, 32, 64, 128, 128]


def test_the_version_is_that_of_the_sources(monkeypatch, tmp_path):
    forms.kernels_version.cache_clear()
    monkeypatch.setattr(forms, "__file__", str(tmp_path / "forms.py"))
    (tmp_path / "a.py").write_text("1")
    first = forms.kernels_version()
    forms.kernels_version.cache_clear()
    (tmp_path / "a.py").write_text("2")
    assert forms.kernels_version() != first
    forms.kernels_version.cache_clear()
