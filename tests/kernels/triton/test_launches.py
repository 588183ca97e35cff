"""How many kernels a layer launches: the time of small steps is that of starting them."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
from pagoda.core.kvcache.spec import KVLayout
from pagoda.kernels import ops, packing
from pagoda.kernels.attention import select
from pagoda.kernels.triton import attention
from pagoda.kernels.triton import ops as triton_ops
from pagoda.layers.moe import MixtureOfExperts
from pagoda.planner.attention import AttentionChoice
from tests.kernels.triton.launches import Launches
from tests.models import tiny
from tests.models.driver import Driver

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="counted on tensors of a CPU that play a GPU's"
)
FAMILIES = {
    "llama": {"num_hidden_layers": 1},
    "qwen3": {"num_hidden_layers": 1, "head_dim": 32},
    "qwen3_moe": {**tiny.QWEN3_MOE, "num_hidden_layers": 1},
    "gpt_oss": {**tiny.GPT_OSS, "num_hidden_layers": 1, "swiglu_limit": 7.0},
    "qwen3_5_moe": {
        **tiny.QWEN3_5_MOE, "num_hidden_layers": 1, "layer_types": ["full_attention"],
    },
    "llama4": {**tiny.LLAMA4, "num_hidden_layers": 1},
}  # fmt: skip


@pytest.fixture
def played(monkeypatch):
    """CPU tensors, of bfloat16 too, take Triton's forms."""
    monkeypatch.setattr(ops, "form", lambda x: triton_ops)
    monkeypatch.setattr(packing, "on_gpu", lambda operand: True)
    monkeypatch.setattr(select, "native_form", lambda device, dtype: triton_ops)


def load(family: str, folder):
    tiny.make(family, **FAMILIES[family]).save_pretrained(folder)
    attention = AttentionChoice(KVLayout("tokens"), "native")
    return tiny.load(folder, dtype=torch.bfloat16, attention=attention)


@pytest.mark.parametrize("family", ["llama"])
@pytest.mark.parametrize("tokens", [{"a": [1], "b": [3]}, {"a": [1], "b": [3, 4, 5]}], ids=len)
def test_a_layer_of_a_dense_model(family, tokens, tmp_path, played, monkeypatch):
    """Of streams, and of a prompt beside one; splits of long contexts are merged where they end."""
    monkeypatch.setattr(attention, "_MIN_SPLIT", 64)
    monkeypatch.setitem(FAMILIES[family], "num_hidden_layers", 2)
    model = load(family, tmp_path)
    model.reserve(256)
    driver = Driver(model, num_blocks=60)
    driver.step({"a": list(range(70)), "b": [1, 2]})
    whole = Launches()
    with whole:
        driver.step(tokens)
    del model.layers[1]
    first = Launches()
    with first:
        driver.step(tokens)
    layer = whole.counts - first.counts
    assert layer["attention._paged_attention"] == 1 and layer.total() <= 9, layer


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "qwen3_5_moe", "llama4"])
@pytest.mark.parametrize("tokens", [1, 40])
def test_a_layer_of_experts(family, tokens, tmp_path, played):
    """With a shared expert, which computes in three kernels, or without."""
    model = load(family, tmp_path)
    (layer,) = (part for part in model.modules() if isinstance(part, MixtureOfExperts))
    x = torch.randn(tokens, 64).bfloat16()
    launches = Launches()
    with torch.inference_mode():
        layer(x)  # makes what stays
        with launches:
            out = layer(x)
    assert out.isfinite().all()
    shared = 3 if layer.spec.shared is not None else 0
    assert launches.counts.total() == 5 + shared <= 8, launches.counts
