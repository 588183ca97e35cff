"""Caches in 8-bit floats through the engine, on a GPU that a CPU plays, against transformers with a
cache that rounds."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DynamicCache

from pagoda.config.engine import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from pagoda.config.engine import SchedulerConfig as Scheduling
from pagoda.core.messages import AddRequest, EngineReady, RequestDelta
from pagoda.core.sampling import SamplingParams
from pagoda.engine.core import EngineCore
from pagoda.engine.startup import start_engine
from pagoda.runtime import device as devices
from tests.engine.running import run, tokens
from tests.engine.test_measured import FakeGpu
from tests.engine.test_startup import rows_of
from tests.models import published, tiny

COUNT = 16
BLOCK = 16
K_SCALES, V_SCALES = torch.tensor([0.02, 0.05]), torch.tensor([0.01, 0.005])
"""Of two KV heads."""
KINDS = {"fp8": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
ATOL = 2e-3
"""A number that is half-way between two of the cache's may be rounded to either."""


class RoundingCache(DynamicCache):
    """Keys and values as the format holds them, times their head's scale."""

    def __init__(self, config, kind: torch.dtype):
        super().__init__(config=config)
        self._kind = kind

    def update(self, key_states, value_states, *args, **kwargs):
        return super().update(
            self._rounded(key_states, K_SCALES), self._rounded(value_states, V_SCALES),
            *args, **kwargs,
        )  # fmt: skip

    def _rounded(self, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        each = scales.view(1, -1, 1, 1) if self._kind is torch.float8_e4m3fn else 1.0
        largest = torch.finfo(self._kind).max
        return (x / each).clamp(-largest, largest).to(self._kind).float() * each


@torch.no_grad()
def logprobs_of(reference, ids: list[int], kind: torch.dtype | None) -> torch.Tensor:
    """[tokens, vocabulary]"""
    cache = None if kind is None else RoundingCache(reference.config, kind)
    logits = reference(torch.tensor([ids]), cache=cache).logits[0]
    return logits.log_softmax(-1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """transformers' model, and the folder where it lies with scales of its cache."""
    folder = tmp_path_factory.mktemp("fp8-cache")
    reference = tiny.make("llama", num_hidden_layers=2)
    published.save(folder, reference, {}, {"quant_method": "fp8"})
    scales = {
        f"model.layers.{layer}.self_attn.{part}_scale": values.clone()
        for layer in range(2)
        for part, values in (("k", K_SCALES), ("v", V_SCALES))
    }
    save_file(load_file(folder / "model.safetensors") | scales, folder / "model.safetensors")
    return reference, folder


@pytest.fixture(autouse=True)
def gpu(monkeypatch, tmp_path) -> FakeGpu:
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))
    gpu = FakeGpu()
    monkeypatch.setattr(devices, "make_device", lambda name, index: gpu)
    return gpu


def start(
    folder: Path, kind: str, slabs: int = 120, **cache: Any
) -> tuple[EngineCore, EngineReady]:
    config = EngineConfig(
        model=ModelConfig(str(folder), dtype="float32", max_model_len=128),
        cache=CacheConfig(
            kv_cache_dtype=kind, num_gpu_blocks_override=slabs, block_size=BLOCK, **cache
        ),
        scheduler=Scheduling(max_num_batched_tokens=64, max_num_seqs=6),
        device=DeviceConfig("cuda", threads=1),
    )
    return start_engine(config, lambda message: None)


def request(name: str, prompt: list[int], count: int = COUNT) -> AddRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, logprobs=0)
    return AddRequest(req_id=name, prompt_token_ids=prompt, sampling=sampling)


def check(reference, prompt: list[int], deltas: list[RequestDelta], kind: str) -> None:
    """Each token is the likeliest behind those before it, and as likely as the reference says."""
    reply = tokens(deltas)
    said = torch.tensor([entry.logprob for delta in deltas for entry in delta.logprobs or []])
    expected = logprobs_of(reference, [*prompt, *reply], KINDS[kind])[len(prompt) - 1 : -1]
    chosen = expected.gather(1, torch.tensor(reply)[:, None])[:, 0]
    torch.testing.assert_close(said, chosen, rtol=0, atol=ATOL)
    assert (expected.amax(1) - chosen).max() <= 2 * ATOL


@pytest.mark.parametrize("kind", KINDS)
def test_replies_are_those_of_a_cache_that_rounds(kind, model, caplog):
    caplog.set_level(logging.INFO, "pagoda")
    reference, folder = model
    core, ready = start(folder, kind)
    kept = "fp8_e4m3" if kind == "fp8" else kind
    assert rows_of(ready, "choice")["kv_cache_dtype"]["value"] == ready.kv_cache_dtype == kept
    pairs = core.executor.runner.cache.layers
    assert {part.dtype for pair in pairs for part in pair} == {KINDS[kind]}
    with_scales = "Scales of the fp8 KV cache: 4 of 4 are the checkpoint's" in caplog.text
    assert with_scales == (kind == "fp8")
    prompt = tiny.random_ids(50)
    (deltas,) = run(core, request("a", prompt)).values()
    check(reference, prompt, deltas, kind)
    # The test tells: without rounding, probabilities are others.
    ids = [*prompt, *tokens(deltas)]
    apart = logprobs_of(reference, ids, KINDS[kind]) - logprobs_of(reference, ids, None)
    assert apart.abs().max() > 10 * ATOL
    core.shutdown()


@pytest.mark.parametrize("kind", KINDS)
def test_a_shortage_of_memory_changes_nothing(kind, model):
    """Six requests where three fit to their ends: some are preempted, and computed again."""
    reference, folder = model
    core, _ = start(folder, kind, slabs=14)
    prompts = {f"r{i}": tiny.random_ids(20 + i, seed=i) for i in range(6)}
    deltas = run(core, *(request(name, prompt, 40) for name, prompt in prompts.items()))
    assert core.stats().num_preemptions > 0
    for name, prompt in prompts.items():
        check(reference, prompt, deltas[name], kind)
    assert core.stats().blocks_free == core.stats().blocks_total
    core.shutdown()


@pytest.mark.parametrize("kind", KINDS)
def test_prefixes_come_back_from_the_hosts_memory(kind, model):
    """The pool has room for one prompt, and others came between."""
    reference, folder = model
    core, _ = start(folder, kind, slabs=12, kv_offloading_size=0.05)
    prompts = [tiny.random_ids(100, seed=seed) for seed in range(5, 9)]
    for number, prompt in enumerate(prompts):
        run(core, request(f"first {number}", prompt))
    (deltas,) = run(core, request("again", prompts[0])).values()
    (found,) = [d.num_cached_tokens for d in deltas if d.num_cached_tokens is not None]
    assert found == 96
    check(reference, prompts[0], deltas, kind)
    core.shutdown()


def test_prefixes_on_disk_are_those_of_one_type(model, tmp_path):
    reference, folder = model
    prompt = tiny.random_ids(100, seed=5)
    counts = []
    for kind in ("fp8", "fp8_e5m2", "fp8"):
        core, _ = start(folder, kind, kv_disk=str(tmp_path / "kept"))
        (deltas,) = run(core, request("a", prompt)).values()
        counts += [d.num_cached_tokens for d in deltas if d.num_cached_tokens is not None]
        check(reference, prompt, deltas, kind)
        core.shutdown()
    assert counts == [0, 0, 96]
