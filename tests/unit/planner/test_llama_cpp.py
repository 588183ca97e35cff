import pytest

from pagoda.arch.registry import spec_for
from pagoda.base.errors import ConfigError
from pagoda.planner.llama_cpp import plan_llama_cpp
from pagoda.weights.checkpoint import TensorInfo
from tests.unit.planner import published

MIB = 1 << 20


def test_the_logged_buffers_of_qwen3_vl_2b():
    spec = spec_for(published.QWEN3_VL_2B, {}, ())
    weights, cache, compute = plan_llama_cpp(spec, {}, 4096)
    assert f"{weights.bytes / MIB:.2f}" == "1743.77"
    assert f"{cache.bytes / MIB:.2f}" == "448.00"
    assert f"{compute.estimate.likely / MIB:.2f}" == "304.75"
    assert (weights.exactness, compute.exactness) == ("exact", "estimate")


def test_layers_with_a_window_keep_it_and_a_batch():
    """Logged for gpt-oss-20b's 12 layers of either kind: 1280 cells at batches of 1024."""
    spec = spec_for(published.GPT_OSS_20B, {}, ())
    _, cache, _ = plan_llama_cpp(spec, {}, 131072, "MXFP4", batch=1024)
    assert cache.bytes == 12 * (131072 + 1280) * 2 * 8 * 64 * 2


def test_headers_are_believed():
    spec = spec_for(published.QWEN3_VL_2B, {}, ())
    header = {"x": TensorInfo("x", (32,), "Q4_0", 18)}
    assert plan_llama_cpp(spec, header, 4096)[0].bytes == 18


def test_unknown_formats_are_refused():
    spec = spec_for(published.QWEN3_VL_2B, {}, ())
    with pytest.raises(ConfigError, match="Q9"):
        plan_llama_cpp(spec, {}, 4096, "Q9")
