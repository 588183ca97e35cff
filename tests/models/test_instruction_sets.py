"""A model says the same on every instruction set that this CPU runs, and with torch alone."""

import logging

import pytest
import torch

from pagoda.kernels import cpu
from tests.models import tiny, tiny_gguf
from tests.models.driver import Driver
from tests.models.tiny_gguf import Storage

ISAS = () if cpu._native is None else cpu._native.INSTRUCTION_SETS
PROMPT = tiny.random_ids(30)


@pytest.fixture(scope="module", params=["Q8_0", "F16"])
def checkpoint(request, tmp_path_factory):
    """A GGUF file, and transformers' model of the weights in it."""
    path = tmp_path_factory.mktemp("model") / f"{request.param}.gguf"
    reference = tiny.make("llama")
    tiny_gguf.write(path, reference, lambda name: Storage[request.param])
    return path, reference


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """The process's kernels are chosen anew."""
    monkeypatch.setattr(cpu, "_cached", {})
    monkeypatch.setattr(logging.getLogger("pagoda"), "propagate", True)


def continued(path, count: int = 24) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens after the prompt, and the logits that chose them."""
    driver, ids, rows = Driver(tiny.load(path, packed=True)), PROMPT, []
    tokens: list[int] = []
    for _ in range(count):
        rows.append(driver.step({"r": ids})["r"][-1])
        ids = [int(rows[-1].argmax())]
        tokens += ids
    return tokens, torch.stack(rows)


@pytest.mark.parametrize("isa", [*ISAS, "none"])
def test_same_tokens_and_logits(checkpoint, isa, monkeypatch):
    path, reference = checkpoint
    monkeypatch.setenv("PAGODA_CPU_ISA", isa)
    tokens, logits = continued(path)
    native = cpu.native()
    assert (native.isa if native is not None else "none") == isa
    expected = tiny.reference_logits(reference, PROMPT + tokens)[len(PROMPT) - 1 : -1]
    assert tokens == expected.argmax(-1).tolist()
    # Activations are rounded to 8 bits where the weights are quantized, to nothing for F16.
    rounds = isa != "none" and path.stem == "Q8_0"
    torch.testing.assert_close(logits, expected, rtol=0, atol=0.2 if rounds else 1e-4)


def test_without_kernels_torch_computes_and_says_so_once(checkpoint, monkeypatch, caplog):
    path, reference = checkpoint
    monkeypatch.delenv("PAGODA_CPU_ISA", raising=False)
    monkeypatch.setattr(cpu, "_native", None)
    with caplog.at_level(logging.WARNING):
        tokens, _ = continued(path, 6)
        cpu.set_num_threads(2)
    expected = tiny.reference_logits(reference, PROMPT + tokens)[len(PROMPT) - 1 : -1]
    assert tokens == expected.argmax(-1).tolist()
    assert [record.message.count("native kernels") for record in caplog.records] == [1]
