"""Models whose layers keep different things, or others than keys and values, through the engine:
prefixes, preemption, disk."""

from pathlib import Path
from typing import Any

import pytest

from pagoda.config.engine import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from pagoda.config.engine import SchedulerConfig as Scheduling
from pagoda.core.messages import AddRequest, RequestDelta
from pagoda.core.sampling import SamplingParams
from pagoda.engine.core import EngineCore
from pagoda.engine.startup import start_engine
from pagoda.kernels import ops
from tests.engine.running import run, tokens
from tests.models import tiny

COUNT = 24
END_OF_TURN = 7
FAMILIES = {
    "qwen3_5": tiny.QWEN3_5, "gpt_oss": tiny.GPT_OSS, "gemma4": tiny.GEMMA4_MOE,
    "gemma4_e": tiny.GEMMA4_E, "llama4": tiny.LLAMA4, "deepseek_v3": tiny.DEEPSEEK_V3,
    "lfm2": tiny.LFM2, "granite4": tiny.GRANITE4_HYBRID,
}  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    """transformers' model, and the folder where it lies."""
    folder = tmp_path_factory.mktemp(request.param)
    reference = tiny.make(request.param, **FAMILIES[request.param])
    reference.save_pretrained(folder)
    return reference, folder


def start(folder: Path, slabs: int = 120, dtype: str = "float32", **cache: Any) -> EngineCore:
    config = EngineConfig(
        model=ModelConfig(str(folder), dtype=dtype, max_model_len=240),
        cache=CacheConfig(num_gpu_blocks_override=slabs, **cache),
        scheduler=Scheduling(max_num_batched_tokens=64, max_num_seqs=6),
        device=DeviceConfig("cpu", threads=1),
    )
    return start_engine(config, lambda message: None)[0]


def request(name: str, prompt: list[int], count: int = COUNT) -> AddRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    return AddRequest(
        req_id=name, prompt_token_ids=prompt, sampling=sampling, eos_token_ids=[END_OF_TURN]
    )


def cached(deltas: list[RequestDelta]) -> int:
    (found,) = [d.num_cached_tokens for d in deltas if d.num_cached_tokens is not None]
    return found


def expected(reference, prompt: list[int], count: int = COUNT) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(tiny.reference_logits(reference, ids)[-1].argmax()))
    return ids[len(prompt) :]


def test_turns_of_a_conversation_go_on_where_the_last_one_ended(model):
    """What is behind the last end of a turn is rendered anew; the rest is not computed again."""
    reference, folder = model
    core = start(folder)
    prompt = [*tiny.random_ids(70, seed=1), END_OF_TURN, *tiny.random_ids(5, seed=2)]
    found = []
    for turn in range(3):
        (deltas,) = run(core, request(f"turn {turn}", prompt)).values()
        reply = tokens(deltas)
        assert reply == expected(reference, prompt)
        found.append((cached(deltas), prompt.index(END_OF_TURN) if turn else 0))
        kept = prompt[: len(prompt) - 5]
        prompt = [*kept, *reply, END_OF_TURN, *tiny.random_ids(25, seed=turn), END_OF_TURN,
                  *tiny.random_ids(5, seed=2)]  # fmt: skip
    counts = [count for count, _ in found]
    assert counts[0] == 0 and counts[1] >= 64 and counts[2] >= 112, counts


def test_neighbours_and_a_shortage_of_memory_change_nothing(model):
    """Six requests where four fit: some are preempted, and resume from what was kept."""
    reference, folder = model
    core = start(folder, slabs=24 if "qwen" in folder.name else 60)
    prompts = {f"r{i}": tiny.random_ids(30 + 23 * i, seed=i) for i in range(6)}
    prompts["r5"] = prompts["r4"][:90]
    deltas = run(core, *(request(name, prompt) for name, prompt in prompts.items()))
    for name, prompt in prompts.items():
        assert tokens(deltas[name]) == expected(reference, prompt), name
    stats = core.stats()
    assert stats.blocks_free == stats.blocks_total


def test_prefixes_come_back_from_the_hosts_memory(model):
    """The pool has room for one prompt, and others came between."""
    reference, folder = model
    core = start(folder, slabs=24 if "qwen" in folder.name else 40, kv_offloading_size=0.05)
    prompts = [tiny.random_ids(100, seed=seed) for seed in range(5, 9)]
    for number, prompt in enumerate(prompts):
        run(core, request(f"first {number}", prompt))
    (deltas,) = run(core, request("again", prompts[0])).values()
    assert cached(deltas) == 96
    assert tokens(deltas) == expected(reference, prompts[0])


def test_prefixes_come_back_from_disk(model, tmp_path):
    reference, folder = model
    prompt = tiny.random_ids(100, seed=5)
    core = start(folder, kv_disk=str(tmp_path))
    run(core, request("first", prompt))
    core.shutdown()
    again = start(folder, kv_disk=str(tmp_path))
    (deltas,) = run(again, request("again", prompt)).values()
    assert cached(deltas) == 96
    assert tokens(deltas) == expected(reference, prompt)


@pytest.mark.skipif(not ops.can_pack("cpu"), reason="the native kernels are not built here")
def test_a_resumed_prompt_has_the_same_bits_in_packed_weights(model):
    _, folder = model
    core = start(folder, dtype="auto")
    assert core.executor.runner.replays.program is not None, "steps are replayed"
    prompt = tiny.random_ids(100, seed=3)
    first, again = (tokens(run(core, request(name, prompt))[name]) for name in ("a", "b"))
    assert first == again
