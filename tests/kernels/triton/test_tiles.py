"""Tiles of a model's experts are measured when nothing runs, once, and kept for later starts."""

import logging
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from triton.errors import TritonError

from pagoda.kernels.triton.products import experts, forms
from pagoda.kernels.triton.products.forms import Form, experts_form
from pagoda.kernels.triton.target import assuming
from pagoda.runtime.triton import kernel_notes, tiles
from pagoda.runtime.triton.tiles import tile_tuning
from tests.models import tiny


class Clock:
    """Each look at it takes a sixteenth of a second."""

    now = 0.0

    def perf_counter(self) -> float:
        self.now += 0.0625
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch, tmp_path) -> Clock:
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path))
    monkeypatch.setattr(forms, "_measured", {})
    # What products give is another test's; here they would take a minute.
    monkeypatch.setattr(experts, "_project", lambda *arguments: arguments[-1].zero_())
    clock = Clock()
    monkeypatch.setattr(tiles, "time", clock)
    return clock


@pytest.fixture
def make_tuning(tmp_path_factory, device):
    def make(family: str = "qwen3_moe", most_tokens: int = 24, dtype=torch.bfloat16, **changes):
        folder = tmp_path_factory.mktemp("model")
        sizes = {**tiny.QWEN3_MOE, "num_hidden_layers": 2} if "moe" in family else {}
        tiny.make(family, **sizes, **changes).save_pretrained(folder)
        place = SimpleNamespace(
            torch_device=torch.device(device), synchronize=lambda: None,
            facts=lambda: SimpleNamespace(name="Fake GPU/1"),
        )  # fmt: skip
        return tile_tuning(tiny.load(folder, dtype, device), place, most_tokens)

    return make


def finish(tuning) -> int:
    steps = 1
    while tuning.go_on():
        steps += 1
    assert not tuning.go_on()
    return steps


def distance(wanted: Form) -> int:
    """Of the form that is being measured."""
    now = list(forms._measured.values())[-1]
    return sum(abs(x - y) for x, y in zip(now, wanted, strict=True))


def test_each_product_is_measured_once(make_tuning, caplog, tmp_path, monkeypatch):
    """Layers are alike; experts have 16 tokens each at most in a step of so few."""
    caplog.set_level(logging.INFO, "pagoda")
    tuning = make_tuning()
    fast = Form(16, 128, 8, 4)
    monkeypatch.setattr(tuning, "_seconds", lambda work: distance(fast))
    assert finish(tuning) > 2
    found = dict(forms._measured)
    assert {(case.gated, case.tokens, case.dtype) for case in found} == {
        (True, 16, "bfloat16"), (False, 16, "bfloat16"),
    }  # fmt: skip
    assert tuning.changed and set(found.values()) == {fast}
    assert caplog.text.count("The tiles of 2 products of experts are measured") == 1

    forms._measured.clear()
    caplog.clear()
    again = make_tuning()
    assert forms._measured == found
    assert finish(again) == 1 and not again.changed
    (path,) = (tmp_path / "kernels").iterdir()
    assert path.name.startswith("Fake-GPU-1-triton-")
    assert f"The tiles of 2 products of experts are those of {path}" in caplog.text
    assert "are measured" not in caplog.text


def test_all_classes_of_large_steps(make_tuning, monkeypatch):
    monkeypatch.setattr(tiles, "group_by_expert", lambda *arguments: None)
    tuning = make_tuning(most_tokens=4096)
    finish(tuning)
    assert [case.tokens for case in forms._measured] == [128, 128, 16, 16, 64, 64, 32, 32]
    for case, cut in forms._measured.items():
        assert cut == experts_form(case, 90)  # of equals, the first
    assert not tuning.changed


def test_time_is_bounded_and_the_next_start_goes_on(make_tuning, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "pagoda")
    tuning = make_tuning()
    while not tuning._measured:
        assert tuning.go_on()
    monkeypatch.setattr(tiles, "_SECONDS", 0.0)
    assert not tuning.go_on() and not tuning.go_on()
    assert "1 products" in caplog.text and "the next start goes on" in caplog.text
    monkeypatch.setattr(tiles, "_SECONDS", 240.0)
    forms._measured.clear()
    finish(make_tuning())
    assert len(forms._measured) == 2


@pytest.mark.parametrize("error", [RuntimeError("no\nmemory"), TritonError("no")])
def test_an_error_leaves_the_defaults(error, make_tuning, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "pagoda")
    tuning = make_tuning()
    assert tuning.go_on()

    def fail(*arguments):
        raise error

    monkeypatch.setattr(experts, "_project", fail)
    assert not tuning.go_on() and not forms._measured
    assert "the others are not: no." in caplog.text


def test_other_kernels_have_notes_of_their_own(make_tuning, monkeypatch):
    finish(make_tuning())
    forms._measured.clear()
    monkeypatch.setattr(kernel_notes, "kernels_version", lambda: "other")
    make_tuning()
    assert not forms._measured


def test_notes_that_cannot_be_kept(make_tuning, tmp_path, caplog):
    caplog.set_level(logging.INFO, "pagoda")
    (tmp_path / "kernels").write_text("in the way")
    finish(make_tuning())
    assert len(forms._measured) == 2 and "could not be kept" in caplog.text


def test_nothing_to_measure(make_tuning, played_gpu):
    """Without experts; and where the library multiplies for them."""
    assert make_tuning("llama") is None
    assert finish(make_tuning(dtype=torch.float32)) == 1
    with assuming(75):
        assert finish(make_tuning(dtype=torch.float16)) == 1
    assert not forms._measured


def test_ranks_measure_the_experts_that_they_hold(make_tuning, monkeypatch):
    tuning = make_tuning()
    (layer,) = tuning._layers
    seen = []
    monkeypatch.setattr(layer, "mix_by", lambda form, x, where: seen.append(where.ids) or [])
    monkeypatch.setattr(layer, "held", slice(2, 4))
    finish(tuning)
    assert all(ids.min() >= 2 and ids.max() <= 3 for ids in seen)
