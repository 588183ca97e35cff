"""Llama 4 and Ministral 3 past their chunks and trained lengths, in any steps and precision."""

from copy import deepcopy

import pytest
import torch
from transformers import Llama4Config, Llama4ForConditionalGeneration

from pagoda.kernels import cpu
from tests.models import tiny
from tests.models.driver import Driver

FAMILIES = {"llama4": tiny.LLAMA4, "ministral3": tiny.MINISTRAL3}
VISION = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128,
    "vision_output_dim": 32, "image_size": 28, "patch_size": 14, "projector_input_dim": 32,
    "projector_output_dim": 32,
}  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def made(request, tmp_path_factory):
    """transformers' model, and the folder where it lies."""
    folder = tmp_path_factory.mktemp(request.param)
    reference = tiny.make(request.param, **FAMILIES[request.param])
    reference.save_pretrained(folder)
    return reference, folder


@pytest.mark.parametrize("chunk", [1, 7, 37, 80])
def test_steps_of_any_length(made, chunk):
    reference, folder = made
    ids = tiny.random_ids(80)
    logits = Driver(tiny.load(folder)).run(ids, chunk)
    torch.testing.assert_close(logits, tiny.reference_logits(reference, ids), rtol=0, atol=1e-4)


def test_requests_share_steps(made):
    reference, folder = made
    driver = Driver(tiny.load(folder), num_blocks=128)
    prompts = {f"r{i}": tiny.random_ids(length, seed=i) for i, length in enumerate([90, 37, 50])}
    found = {req: [] for req in prompts}
    for begin, end in ((0, 30), (30, 37), (37, 38), (38, 90)):
        step = {req: ids[begin:end] for req, ids in prompts.items() if ids[begin:end]}
        for req, logits in driver.step(step).items():
            found[req].append(logits)
    for req, ids in prompts.items():
        expected = tiny.reference_logits(reference, ids)
        torch.testing.assert_close(torch.cat(found[req]), expected, rtol=0, atol=1e-4)


@pytest.mark.skipif(cpu.native() is None, reason="the native kernels are not built")
def test_packed_weights_say_nearly_the_same_and_the_same_bits_in_any_chunks(made):
    reference, folder = made
    model = tiny.load(folder, packed=True)
    ids = tiny.random_ids(100)
    whole = Driver(model).run(ids, 100)
    expected = tiny.reference_logits(reference, ids)
    assert (whole - expected).abs().mean() < 0.02 * expected.std()
    for chunk in (1, 7, 37):
        assert torch.equal(Driver(model).run(ids, chunk), whole)


def test_half_precision_stays_close(made):
    """The distance to fp32 is no more than transformers' own in bf16, and within 2%."""
    reference, folder = made
    ids = tiny.random_ids(60)
    exact = tiny.reference_logits(reference, ids)
    half = deepcopy(reference).to(torch.bfloat16)
    theirs = (tiny.reference_logits(half, ids).float() - exact).norm()
    ours = (Driver(tiny.load(folder, torch.bfloat16)).run(ids, 60) - exact).norm()
    assert ours < max(1.2 * theirs, 0.02 * exact.norm())


def test_beside_a_vision_tower_it_reads_text(tmp_path):
    text = tiny.make("llama4", **tiny.LLAMA4)
    torch.manual_seed(1)
    config = Llama4Config(text_config=text.config.to_dict(), vision_config=VISION)
    reference = Llama4ForConditionalGeneration(config).eval()
    reference.language_model.load_state_dict(text.state_dict())
    reference.save_pretrained(tmp_path)
    ids = tiny.random_ids(60)
    logits = Driver(tiny.load(tmp_path)).run(ids, 25)
    torch.testing.assert_close(logits, tiny.reference_logits(text, ids), rtol=0, atol=1e-4)
