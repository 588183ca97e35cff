"""Keys and values in q4_0 through the engine, against transformers with a cache that the gguf
package rounds."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import DynamicCache

from pagoda.config.engine import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from pagoda.config.engine import SchedulerConfig as Scheduling
from pagoda.core.messages import AddRequest, EngineReady, RequestDelta
from pagoda.core.sampling import SamplingParams
from pagoda.engine.core import EngineCore
from pagoda.engine.startup import start_engine
from pagoda.kernels import cpu
from tests.engine.running import run, tokens
from tests.models import tiny

needs_kernels = pytest.mark.skipif(
    cpu.native() is None, reason="the native kernels are not built here"
)
COUNT = 12
BLOCK = 16
ATOL = 1e-4
DIM = 64


class RoundingCache(DynamicCache):
    """Keys and values as llama.cpp's q4_0 holds them."""

    def update(self, key_states, value_states, *args, **kwargs):
        return super().update(_rounded(key_states), _rounded(value_states), *args, **kwargs)


def _rounded(x: torch.Tensor) -> torch.Tensor:
    kind = gguf.GGMLQuantizationType.Q4_0
    stored = gguf.quantize(x.contiguous().numpy(), kind)
    return torch.from_numpy(gguf.dequantize(stored, kind)).view_as(x)


@torch.no_grad()
def logprobs_of(reference, ids: list[int], rounded: bool = True) -> torch.Tensor:
    """[tokens, vocabulary]"""
    cache = RoundingCache(config=reference.config) if rounded else None
    return reference(torch.tensor([ids]), cache=cache).logits[0].log_softmax(-1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """transformers' model, and the folder where it lies."""
    folder = tmp_path_factory.mktemp("q4-cache")
    reference = tiny.make("llama", num_hidden_layers=2, head_dim=DIM)
    reference.save_pretrained(folder)
    return reference, folder


def start(
    folder: Path, slabs: int = 120, step: int = 64, exact: bool = False, **cache: Any
) -> tuple[EngineCore, EngineReady]:
    """With Pagoda's own products, whose bits are the same whatever shares a step; `exact`: with
    torch's, of weights that are not rounded."""
    kind = {"dtype": "float32"} if exact else {"quantization": "int8"}
    config = EngineConfig(
        model=ModelConfig(str(folder), max_model_len=160, **kind),
        cache=CacheConfig(
            kv_cache_dtype="q4_0", num_gpu_blocks_override=slabs, block_size=BLOCK, **cache
        ),
        scheduler=Scheduling(max_num_batched_tokens=step, max_num_seqs=6),
        device=DeviceConfig("cpu", threads=1),
    )
    return start_engine(config, lambda message: None)


def request(name: str, prompt: list[int], count: int = COUNT) -> AddRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, logprobs=0)
    return AddRequest(req_id=name, prompt_token_ids=prompt, sampling=sampling)


def said(deltas: list[RequestDelta]) -> tuple[list[int], list[float]]:
    """Tokens, and logprobs to their last bit."""
    return tokens(deltas), [entry.logprob for delta in deltas for entry in delta.logprobs or []]


def alone(folder: Path, prompt: list[int], count: int = COUNT) -> tuple[list[int], list[float]]:
    core, _ = start(folder, step=160)
    (deltas,) = run(core, request("alone", prompt, count)).values()
    core.shutdown()
    return said(deltas)


def test_replies_are_those_of_a_cache_that_rounds(model):
    reference, folder = model
    core, ready = start(folder, exact=True)
    assert ready.kv_cache_dtype == "q4_0"
    pairs = core.executor.runner.cache.layers
    # Two KV heads, each a byte for two dimensions and a scale of two bytes for 32 of them.
    assert sum(part[0].nbytes for pair in pairs for part in pair) == 2 * 2 * 2 * BLOCK * (32 + 4)
    prompt = tiny.random_ids(30)
    (deltas,) = run(core, request("a", prompt)).values()
    reply, logprobs = said(deltas)
    ids = [*prompt, *reply]
    expected = logprobs_of(reference, ids)
    chosen = expected[len(prompt) - 1 : -1].gather(1, torch.tensor(reply)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(logprobs), chosen, rtol=0, atol=ATOL)
    # The test tells: without rounding, probabilities are others.
    assert (expected - logprobs_of(reference, ids, rounded=False)).abs().max() > 100 * ATOL
    core.shutdown()


@needs_kernels
def test_chunks_neighbours_and_a_shortage_of_memory_change_no_bit(model):
    """Six requests where three fit to their ends, in steps that cut prompts: some are preempted,
    and computed again."""
    _, folder = model
    core, _ = start(folder, slabs=14, step=17)
    prompts = {f"r{i}": tiny.random_ids(20 + i, seed=i) for i in range(6)}
    deltas = run(core, *(request(name, prompt, 40) for name, prompt in prompts.items()))
    assert core.stats().num_preemptions > 0
    for name, prompt in prompts.items():
        assert said(deltas[name]) == alone(folder, prompt, 40), name
    assert core.stats().blocks_free == core.stats().blocks_total
    core.shutdown()


@needs_kernels
@pytest.mark.parametrize("kept", ["the pool", "the host's memory", "disk"])
def test_prefixes_come_back_as_they_were(kept, model, tmp_path):
    _, folder = model
    cache = {
        "the pool": {},
        "the host's memory": {"slabs": 12, "kv_offloading_size": 0.05},
        "disk": {"kv_disk": str(tmp_path / "kept")},
    }[kept]
    core, _ = start(folder, **cache)
    prompts = [tiny.random_ids(100, seed=seed) for seed in range(5, 8)]
    for number, prompt in enumerate(prompts):
        run(core, request(f"first {number}", prompt))
    if kept == "disk":
        core.shutdown()
        core, _ = start(folder, **cache)
    (deltas,) = run(core, request("again", prompts[0])).values()
    assert [d.num_cached_tokens for d in deltas if d.num_cached_tokens is not None] == [96]
    assert said(deltas) == alone(folder, prompts[0])
    core.shutdown()
