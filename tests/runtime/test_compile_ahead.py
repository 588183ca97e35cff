"""Kernels of products are compiled by several threads, each product once."""

import logging
import threading
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.layers.linear import Linear
from pagoda.layers.moe import MixtureOfExperts
from pagoda.runtime.device import CpuDevice
from pagoda.runtime.triton import compile_ahead as module
from pagoda.runtime.triton.compile_ahead import compile_ahead, products
from tests.models import tiny


class Gpu(CpuDevice):
    def __init__(self):
        super().__init__()
        self.used: set[int] = set()

    def use(self) -> None:
        self.used.add(threading.get_ident())


@pytest.fixture
def model(tmp_path):
    reference = tiny.make("qwen3_moe", **{**tiny.QWEN3_MOE, "num_hidden_layers": 3})
    reference.save_pretrained(tmp_path)
    return tiny.load(tmp_path, device="cpu")


def test_each_product_of_a_model_once(model):
    """Of three equal layers one; with each number of tokens from which kernels are others."""
    work = list(products(model, Gpu(), 64))
    layers = [one for one in model.modules() if isinstance(one, Linear | MixtureOfExperts)]
    kinds = {module._likeness(layer) for layer in layers}
    assert len(work) == 4 * len(kinds) and len(kinds) < len(layers)
    with torch.inference_mode():
        for one in work:
            one()


def test_threads_meet(model, monkeypatch, caplog):
    """None goes on before another has begun; what fails costs itself."""
    caplog.set_level(logging.DEBUG, "pagoda")
    monkeypatch.setattr(module, "usable_threads", lambda: 3)
    gpu, together = Gpu(), threading.Barrier(3)

    def fail():
        together.wait(60)
        raise RuntimeError("no such register")

    def meet():
        assert torch.is_inference_mode_enabled()
        together.wait(60)

    monkeypatch.setattr(module, "products", lambda *given: iter([meet, fail, meet]))
    compile_ahead(model, gpu, 64)
    assert len(gpu.used) == 3
    assert "The kernels of 2 products are there" in caplog.text
    assert "no such register" in caplog.text


def test_one_core_compiles_in_the_first_steps(model, monkeypatch):
    monkeypatch.setattr(module, "usable_threads", lambda: 1)
    monkeypatch.setattr(module, "products", lambda *given: iter([lambda: pytest.fail("run")] * 3))
    compile_ahead(model, Gpu(), 64)


def test_models_without_layers_of_ours_have_none():
    assert list(products(SimpleNamespace(), Gpu(), 64)) == []
