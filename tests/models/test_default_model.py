"""The real default model against transformers on the weights that the gguf package decodes."""

from pathlib import Path

import pytest
import torch

from pagoda.kernels import cpu
from tests.golden.reference import load_reference
from tests.models import tiny
from tests.models.driver import Driver


@pytest.fixture(scope="module")
def reference(smollm2_gguf: Path):
    return load_reference(smollm2_gguf)


@pytest.fixture(scope="module")
def model(smollm2_gguf: Path):
    return tiny.load(smollm2_gguf)


def test_logits_equal_in_fp32(reference, model):
    driver = Driver(model, num_blocks=64, block_size=16)
    for prompt in range(2):
        ids = tiny.random_ids(20 + 41 * prompt, vocab_size=49152, seed=prompt)
        logits = driver.run(ids, chunk=48, req=str(prompt))
        expected = tiny.reference_logits(reference, ids)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-3)


# The start of an English text about yoga, sampled from the model itself: on random ids, which no
# text resembles, every distribution is flat and rounding moves it more.
TEXT = [
    46117, 16619, 44940, 5192, 260, 800, 2624, 282, 12039, 28, 1285, 624, 1645, 335, 2898, 284,
    4122, 876, 29, 4709, 30, 198, 198, 504, 2624, 282, 12039, 359, 800, 28, 284, 502, 4341, 429,
    1055, 288, 1055, 30, 1423, 28, 665, 359, 787, 827, 5882, 282, 260, 13269, 338, 12039, 3362,
    30, 20414, 314, 2232, 2408, 2430, 30, 20414, 2433, 5360, 288, 1029, 506,
]  # fmt: skip


def _divergence(model, rough) -> float:
    """Mean KL to fp32, in nats per token."""
    exact = Driver(model, block_size=16).run(TEXT, 64).log_softmax(-1)
    other = Driver(rough, block_size=16).run(TEXT, 64).log_softmax(-1)
    return (exact.exp() * (exact - other)).sum(-1).mean().item()


def test_bf16_says_nearly_the_same(model, smollm2_gguf: Path):
    half = tiny.load(smollm2_gguf, torch.bfloat16)
    assert _divergence(model, half) < 1e-3
    assert half.nbytes < 0.51 * model.nbytes


@pytest.mark.skipif(cpu.native() is None, reason="the native kernels are not built here")
def test_packed_says_nearly_the_same(model, smollm2_gguf: Path):
    """With activations in 8 bits, in the file's own bits."""
    packed = tiny.load(smollm2_gguf, torch.bfloat16, packed=True)
    assert _divergence(model, packed) < 4e-3
    assert packed.nbytes < 1.05 * smollm2_gguf.stat().st_size
