"""Tiles that are measured once and kept."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
from triton.runtime.errors import OutOfResources

from pagoda.kernels.triton import forms, gemm
from pagoda.kernels.triton.forms import Form, candidates, case, form, keep, restore, tune
from tests.kernels.triton.quantized import packed, random_raw


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch):
    monkeypatch.setattr(forms, "_measured", {})


def a_case(tokens: int = 5, kind: str = "linear"):
    matrix = packed("Q4_K", random_raw("Q4_K", 16, 256), 256, "cpu")
    return matrix, case(kind, matrix.layout, torch.float16, 16, 256, tokens)


def test_the_fastest_form_is_used(monkeypatch, tmp_path, device):
    matrix, what = a_case()
    matrix = packed("Q4_K", random_raw("Q4_K", 16, 256), 256, device)
    x, used = torch.randn(5, 256, device=device).half(), []
    launch = gemm._launch
    monkeypatch.setattr(gemm, "_launch", lambda cut, *rest: (used.append(cut), launch(cut, *rest)))
    usual = gemm.matmul(x, [matrix])
    assert used == [form(what, 90)]

    def seconds(call):
        call()
        if used[-1].stages == 4:
            raise OutOfResources(300, 200, "shared memory")
        return abs(used[-1].rows - 64) + used[-1].stages

    best = tune(what, 90, lambda: gemm.matmul(x, [matrix]), seconds)
    assert (best.rows, best.stages) == (64, 2) and used[1] == used[0]
    torch.testing.assert_close(gemm.matmul(x, [matrix]), usual)
    assert used[-1] == best == form(what, 90)
    assert form(what._replace(tokens=64), 90) != best
    keep(tmp_path / "new" / "tiles.json")
    forms._measured.clear()
    assert restore(tmp_path / "new" / "tiles.json") == 1 and form(what, 90) == best


def test_no_form_fits():
    def seconds(call):
        raise OutOfResources(300, 200, "shared memory")

    _, what = a_case()
    usual = form(what, 75)
    assert tune(what, 75, lambda: None, seconds) == usual and not forms._measured


@pytest.mark.parametrize("text", [None, "", "[[1, 2", '[["linear", 2]]', "7", '{"a": 1}'])
def test_files_that_are_not_whole(text, tmp_path):
    path = tmp_path / "tiles.json"
    if text is not None:
        path.write_text(text)
    assert restore(path) == 0 and not forms._measured


@pytest.mark.parametrize("kind", ["linear", "experts"])
@pytest.mark.parametrize("tokens", [1, 16, 100, 4096])
@pytest.mark.parametrize("target", [80, 90])
def test_candidates(kind, tokens, target):
    _, what = a_case(tokens, kind)
    found = list(candidates(what, target))
    assert found[0] == form(what, target) and Form(16, 32, 4, 2) in found
    sums = 2 if kind == "experts" else 1
    assert all(sums * cut.tokens * cut.rows / (32 * cut.warps) <= 128 for cut in found)
