"""Two models of one process whose attention differs, in backend and in layout, at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pagoda.core.kvcache.spec import KVLayout
from pagoda.kernels import cpu
from pagoda.kernels.ref import attention as reference
from pagoda.planner.attention import AttentionChoice
from tests.models import tiny
from tests.models.driver import Driver


@pytest.mark.skipif(cpu.native() is None, reason="the native kernels are not built here")
@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_each_keeps_its_own(family, tmp_path, monkeypatch):
    tiny.make(family).save_pretrained(tmp_path)
    choices = AttentionChoice(), AttentionChoice(KVLayout("tokens", 64), "torch")
    drivers = [Driver(tiny.load(tmp_path, attention=choice)) for choice in choices]
    strides, attend = [], reference.paged_attention

    def noted(q, k_cache, *args, **how):
        strides.append(k_cache.stride(3))
        return attend(q, k_cache, *args, **how)

    monkeypatch.setattr(reference, "paged_attention", noted)
    ids = tiny.random_ids(20)
    with ThreadPoolExecutor(2) as pool:
        native, torchs = pool.map(lambda driver: driver.run(ids, 3), drivers)
    torch.testing.assert_close(native, torchs, rtol=0, atol=1e-4)
    # All of the second's calls, and none of the first's.
    assert strides == [1] * (7 * len(drivers[0].caches))
