"""The default model on a machine with two memories, emulated: the same replies."""

import pytest

from pagoda.base import machine
from pagoda.base.facts import MemoryNode
from pagoda.core.sampling import SamplingParams
from pagoda.engine.llm import LLM
from pagoda.kernels import cpu

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROMPTS = ["The capital of France is", "def add(a, b):\n    return", "Il était une fois"]
SAMPLING = [
    SamplingParams(temperature=0, max_tokens=32, logprobs=2),
    SamplingParams(temperature=1.0, seed=7, max_tokens=32, logprobs=2),
]


def test_replies_are_those_of_one_memory(monkeypatch):
    pytest.importorskip("pagoda.kernels.cpu._native", reason="the native kernels are not built")
    two = tuple(MemoryNode(0, ((cpu_number,),)) for cpu_number in (0, 1))
    monkeypatch.setattr(machine, "memory_nodes", lambda sys, cpus: two)
    found = []
    for numa, count in (("off", 1), ("auto", 2)):
        llm = LLM("smollm2", numa=numa, threads=3)
        assert cpu.native().num_nodes == count
        outputs = [llm.generate(PROMPTS, sampling) for sampling in SAMPLING]
        found.append([one.outputs[0] for output in outputs for one in output])
    for alone, divided in zip(*found, strict=True):
        assert (alone.token_ids, alone.logprobs) == (divided.token_ids, divided.logprobs)
