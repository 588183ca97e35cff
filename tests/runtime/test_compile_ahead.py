"""Kernels of a model's steps are found without running them, and compiled by several threads."""

import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.core.kvcache.spec import kv_groups
from pagoda.layers.context import Parallel
from pagoda.models.base import Model
from pagoda.runtime.device import CpuDevice
from pagoda.runtime.sleep import tensors_of
from pagoda.runtime.steps.program import StepLimits
from pagoda.runtime.triton import compile_ahead as module
from pagoda.runtime.triton.compile_ahead import compile_ahead
from pagoda.runtime.triton.weightless import weightless
from tests.models import tiny
from tests.runtime.needed_kernels import FAMILIES

LIMITS = StepLimits(64, 4, 4, 64)


class Gpu(CpuDevice):
    def __init__(self):
        super().__init__()
        self.used: set[int] = set()

    def use(self) -> None:
        self.used.add(threading.get_ident())


@pytest.fixture
def model(tmp_path) -> Model:
    reference = tiny.make("qwen3_moe", **{**tiny.QWEN3_MOE, "num_hidden_layers": 3})
    reference.save_pretrained(tmp_path)
    return tiny.load(tmp_path, device="cpu")


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, list[str]]]:
    """What `needed_kernels` prints: it runs by itself, for where tests run kernels are
    interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.needed_kernels"],
        env=environment, capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_steps_launch_was_found_ahead(found, family):
    """Steps on a CPU's tensors, which have places in memory, are the reference."""
    launched, ahead = found[family]["launched"], found[family]["ahead"]
    assert len(launched) >= 8 and set(launched) <= set(ahead)
    kernels = {name.partition(" ")[0] for name in ahead}
    assert {"draw.draw", "sampling.mask_logits", "norm.rms_norm"} <= kernels
    assert ("experts.alone" in kernels) == (family != "llama")
    assert ("delta_net.by_token" in kernels) == (family == "qwen3_5_moe")


def test_each_is_found_once(found):
    for family in FAMILIES:
        ahead = found[family]["ahead"]
        assert len(set(ahead)) == len(ahead)


def test_weightless(model):
    """Nothing of the model's is in it or changed, and it has places that are aligned alike."""
    layer = model.layers[0].attention.qkv
    layer.odd = torch.empty(9, dtype=torch.float16)[1:]
    before = [tensor.data_ptr() for tensor in tensors_of(model)]
    twin = weightless(model)
    assert {tensor.device.type for tensor in tensors_of(twin)} == {"meta"}
    assert before == [tensor.data_ptr() for tensor in tensors_of(model)] and len(model.layers) == 3
    assert len(twin.layers) == 2  # the third is like the second
    odd = twin.layers[0].attention.qkv.odd
    assert (odd.shape, odd.data_ptr() % 16) == ((8,), layer.odd.data_ptr() % 16)
    assert layer.odd.data_ptr() % 16 == 2
    assert twin.spec.layers == model.spec.layers


def test_a_rank_alone_exchanges_nothing(model):
    def fail(*_):
        pytest.fail("exchanged")

    parallel = model.context.parallel
    parallel.size, parallel.reduce, parallel.gather = 2, fail, fail
    twin = weightless(model).context.parallel
    assert isinstance(twin, Parallel) and twin is not parallel
    x = torch.empty(3, 5, device="meta")
    assert twin.summed(x) is x and twin.gathered(x, 10).shape == (3, 10)


def test_threads_meet(model, monkeypatch, caplog):
    """None goes on before another has begun; what fails costs itself."""
    caplog.set_level(logging.DEBUG, "pagoda")
    monkeypatch.setattr(module, "usable_threads", lambda: 3)
    gpu, together, loaded = Gpu(), threading.Barrier(3), []

    class Compiled:
        @property
        def run(self):
            loaded.append(self)

    def fail():
        together.wait(60)
        raise RuntimeError("no such register")

    def meet():
        together.wait(60)
        return Compiled()

    work = [SimpleNamespace(compile=one) for one in (meet, fail, meet)]
    monkeypatch.setattr(module, "needed", lambda *given: work)
    compile_ahead(model, gpu, [], LIMITS)
    assert len(gpu.used) == 3 and len(loaded) == 2
    assert "2 kernels of this model's steps are there" in caplog.text
    assert "no such register" in caplog.text


def test_what_cannot_be_found_is_left_to_steps(model, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "pagoda")
    monkeypatch.setattr(module, "usable_threads", lambda: 2)

    def fail(*_):
        raise NotImplementedError("no such operator")

    monkeypatch.setattr(module, "weightless", fail)
    compile_ahead(model, Gpu(), kv_groups(model.spec, model.context.attention.layout), LIMITS)
    assert "Kernels are compiled by the first steps: no such operator" in caplog.text


def test_one_core_compiles_in_the_first_steps(model, monkeypatch):
    monkeypatch.setattr(module, "usable_threads", lambda: 1)
    monkeypatch.setattr(module, "needed", lambda *given: pytest.fail("looked for"))
    compile_ahead(model, Gpu(), [], LIMITS)


def test_models_without_layers_of_ours_have_none(monkeypatch):
    monkeypatch.setattr(module, "usable_threads", lambda: 2)
    compile_ahead(SimpleNamespace(), Gpu(), [], LIMITS)
