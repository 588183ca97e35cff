"""Which tensors take Triton's forms, and what is said where they do not."""

import logging
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from pagoda.core.kvcache.spec import KVLayout
from pagoda.kernels import cpu, selector
from pagoda.kernels.attention.select import AttentionBackends
from pagoda.kernels.triton import attention, target
from pagoda.kernels.triton import ops as triton_ops
from pagoda.planner.attention import AttentionChoice
from tests.kernels.triton.paged import Case


@pytest.fixture
def gpu(monkeypatch):
    """Sets the capability of a GPU that is not there; tensors on it."""

    def make(capability: tuple[int, int], dtype: torch.dtype):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
        return SimpleNamespace(is_cpu=False, device=torch.device("cuda", 0), dtype=dtype)

    selector._gpu_ops.cache_clear()
    target._capability.cache_clear()
    yield make
    selector._gpu_ops.cache_clear()
    target._capability.cache_clear()


@pytest.mark.parametrize(
    ("capability", "dtype"),
    [((7, 5), torch.float16), ((8, 0), torch.bfloat16), ((9, 0), torch.float32)],
)
def test_tensors_on_a_gpu_take_triton(gpu, capability, dtype):
    assert selector.native(gpu(capability, dtype)) is triton_ops


def test_what_is_declined_is_said_once(gpu, caplog):
    caplog.set_level(logging.INFO, "pagoda")
    x = gpu((7, 5), torch.bfloat16)
    assert selector.native(x) is selector.native(x) is None
    assert caplog.text.count("bfloat16 needs sm_80 or later") == 1


def test_without_triton_all_is_torchs(gpu, monkeypatch, caplog):
    monkeypatch.setattr(selector, "find_spec", lambda name: None)
    x = gpu((9, 0), torch.float16)
    assert selector.native(x) is selector.native(x) is None
    assert caplog.text.count("pip install triton") == 1


def test_tensors_on_a_cpu_take_its_own(monkeypatch):
    monkeypatch.setattr(cpu, "native_ops", lambda: "native")
    assert selector.native(torch.zeros(1)) == "native"
    assert selector.native(torch.zeros(1, dtype=torch.bfloat16)) is None


def test_attention_by_torch_is_a_choice(gpu):
    x = gpu((9, 0), torch.float16)
    for name, form in (("torch", None), ("triton", triton_ops)):
        choice = AttentionChoice(KVLayout("tokens", 64), name)
        backends = AttentionBackends.of(choice, x.device, x.dtype)
        assert backends.by_name[name].form is form
    assert selector.native(x) is triton_ops


@pytest.mark.parametrize(("capability", "by_torch"), [(75, True), (80, False)])
def test_prompts_are_torchs_where_triton_has_no_tensor_cores(capability, by_torch, monkeypatch):
    called = []
    monkeypatch.setattr(
        attention, "paged_attention", lambda q, *args, **how: called.append(len(q)) or q
    )
    for requests in ([(3, 5), (1, 4)], [(1, 5), (1, 4)]):
        with target.assuming(capability):
            Case(requests).run(triton_ops.paged_attention)
    assert called == ([2] if by_torch else [4, 2])
