"""A recorded step, replayed, gives the bits of the same step run op by op."""

import logging
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pagoda.kernels import cpu, ops
from pagoda.layers.batch import GroupInputs
from pagoda.runtime.block_table import BlockTable
from pagoda.runtime.steps.inputs import GroupArrays, StateArrays, StepArrays
from pagoda.runtime.steps.program import StepLimits, StepProgram
from tests.models import tiny
from tests.models.driver import Driver
from tests.models.test_transformers import MULTIPLIERS

pytestmark = pytest.mark.skipif(
    cpu.native() is None, reason="steps are recorded by the native kernels, which are not built"
)
LIMITS = StepLimits(max_tokens=40, max_reqs=5, max_samples=5, max_model_len=64)
MODELS = {
    "llama": ("llama", {}),
    "llama tied, biases": ("llama", {"tie_word_embeddings": True, "attention_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "mixtral": ("mixtral", tiny.MIXTRAL),
    "mistral 3": ("mistral3", {}),
    "ministral 3": ("ministral3", tiny.MINISTRAL3),
    "llama 4": ("llama4", {**tiny.LLAMA4, "attention_chunk_size": 7, "floor_scale": 5}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1]}),
    "phi3": ("phi3", {}),
    "granite": ("granite", MULTIPLIERS),
    "granite moe": ("granite_moe", tiny.GRANITE_MOE),
    "qwen3 moe": ("qwen3_moe", tiny.QWEN3_MOE),
    "gpt-oss": ("gpt_oss", tiny.GPT_OSS),
    "olmo 2": ("olmo2", {}),
    "olmo 3": ("olmo3", tiny.OLMO3),
    "minimax m2": ("minimax_m2", tiny.MINIMAX_M2),
    "hunyuan moe": ("hunyuan_moe", tiny.HUNYUAN_MOE),
    "ernie 4.5 moe": ("ernie4_5_moe", tiny.ERNIE4_5_MOE),
    "glm-4": ("glm4", {"head_dim": 16}),
    "glm-4.5": ("glm4_moe", tiny.GLM4_MOE),
    "deepseek v2": ("deepseek_v2", tiny.DEEPSEEK_V2),
    "deepseek v2 lite": ("deepseek_v2", tiny.V2_LITE),
    "deepseek v3": ("deepseek_v3", tiny.DEEPSEEK_V3),
    "glm-4.7-flash": ("glm4_moe_lite", tiny.GLM4_MOE_LITE),
    "deepseek v3.2": ("deepseek_v32", tiny.DEEPSEEK_V32),
    "glm-5.2": ("glm_moe_dsa", tiny.GLM_MOE_DSA),
    "command r7b": ("cohere2", tiny.COHERE2),
    "seed-oss": ("seed_oss", {"head_dim": 32}),
    "gemma 2": ("gemma2", tiny.GEMMA2),
    "gemma 3": ("gemma3", tiny.GEMMA3),
    "gemma 3n": ("gemma3n", {**tiny.GEMMA3N, "vocab_size_per_layer_input": 190}),
    "gemma 4": ("gemma4", tiny.GEMMA4),
    "gemma 4 moe": ("gemma4", tiny.GEMMA4_MOE),
    "gemma 4 e": ("gemma4_e", tiny.GEMMA4_E),
    "qwen3.5": ("qwen3_5", tiny.QWEN3_5),
    "qwen3.5 moe": ("qwen3_5_moe", tiny.QWEN3_5_MOE),
    "qwen3-next": ("qwen3_next", tiny.QWEN3_5_MOE),
    "granite 4 hybrid": ("granite4", tiny.GRANITE4_HYBRID),
    "nemotron-h": ("nemotron_h", tiny.NEMOTRON_H_MIXED),
    "lfm2": ("lfm2", tiny.LFM2),
    "lfm2 moe": ("lfm2_moe", tiny.LFM2_MOE),
}


def load(family: str, folder, **changes):
    tiny.make(family, **changes).save_pretrained(folder)
    return tiny.load(folder, packed=True)


def record(driver: Driver) -> StepProgram | None:
    driver.model.reserve(LIMITS.max_model_len)
    cache = SimpleNamespace(layers=driver.caches, layer_group=driver.layer_group)
    has_states = len(set(driver.layer_group)) > 1
    with torch.inference_mode():
        return StepProgram.record(driver.model, cache, [driver.block_size], LIMITS, has_states)


def table_of(group: GroupInputs, block_size: int) -> BlockTable:
    """The runner's table with the same entries."""
    rows, width = group.block_table.shape
    table = BlockTable(block_size, rows, width * block_size)
    table.entries[:], table.used[:] = group.block_table.numpy(), width
    return table


def replay(
    program: StepProgram,
    driver: Driver,
    tokens: dict[str, list[int]],
    sampled: dict[str, int] | None = None,
):
    """(logits, greedy ids) of each request's last token, or of so many of its last ones."""
    batch = driver._batch(tokens)
    group, *states = batch.groups
    assert isinstance(group, GroupInputs)
    slots = group.slot_mapping.numpy()
    arrays = StepArrays(
        batch.token_ids.numpy(),
        batch.positions.numpy(),
        batch.query_start.numpy(),
        batch.kv_lens.numpy(),
        batch.max_query_len,
        [GroupArrays(table_of(group, driver.block_size), np.arange(len(tokens)), slots)],
        StateArrays(states[0].read.numpy(), states[0].write.numpy()) if states else None,
    )
    ends = np.cumsum([len(ids) for ids in tokens.values()])
    counts = [(sampled or {}).get(req, 1) for req in tokens]
    samples = np.concatenate(
        [np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]
    )
    with torch.inference_mode():
        computed = program.run(arrays, samples)
    return computed.logits, computed.greedy.ids


@pytest.mark.parametrize("case", MODELS)
def test_replays_equal_steps_run_op_by_op(case, tmp_path):
    family, changes = MODELS[case]
    model = load(family, tmp_path, **changes)
    eager, replayed = Driver(model), Driver(model)
    program = record(replayed)
    assert program is not None
    chance = random.Random(3)
    lengths = [0] * LIMITS.max_reqs
    for _ in range(30):
        step = {}
        for req in chance.sample(range(LIMITS.max_reqs), chance.randint(1, LIMITS.max_reqs)):
            count = chance.choice([1, 1, 2, 8])
            if lengths[req] + count <= 30:
                lengths[req] += count
                step[f"r{req}"] = chance.choices(range(211), k=count)
        if not step:
            continue
        expected = torch.stack([logits[-1] for logits in eager.step(step).values()])
        logits, greedy = replay(program, replayed, step)
        assert torch.equal(logits, expected)
        assert greedy.tolist() == expected.argmax(-1).tolist()
    assert max(lengths) > 20


def test_limits(tmp_path):
    program = record(Driver(load("llama", tmp_path)))
    assert program.fits(40, 5, 5)
    assert not program.fits(41, 5, 5)
    assert not program.fits(40, 6, 5)
    assert not program.fits(40, 5, 6)


def test_a_model_with_an_op_of_torch_runs_op_by_op(tmp_path, monkeypatch, caplog):
    driver = Driver(load("llama", tmp_path))
    forward = driver.model.forward
    monkeypatch.setattr(driver.model, "forward", lambda batch: forward(batch) * 2)
    with caplog.at_level(logging.INFO, "pagoda"):
        assert record(driver) is None
    assert "Steps run op by op: mul cannot be replayed" in caplog.text


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("add_", lambda x: x.add_(1)),
        ("__setitem__", lambda x: x.__setitem__(0, 0.0)),
        ("item", lambda x: x[0, 0].item()),
        ("cat", lambda x: torch.cat((x, x))),
    ],
)
def test_what_a_replay_would_leave_out_is_noticed(name, change):
    recording = ops.recording("cpu", (8,))
    x, weight = torch.randn(3, 64), torch.ones(64)
    with recording.rows(0, 3):
        change(ops.rms_norm(x, weight, 1e-5).view(3, 64))
    assert recording.foreign == {name}


def test_a_replay_that_differs_is_not_used(tmp_path, monkeypatch, caplog):
    """A value that Python computed while recording is frozen in the replay."""
    driver = Driver(load("llama", tmp_path))
    forward = driver.model.forward
    given = torch.ones(1, 64)

    def impure(batch):
        hidden_states = forward(batch)
        ops.add_rms_norm(given.expand(3, -1).contiguous(), hidden_states, torch.ones(64), 1e-5)
        given.fill_(float(given[0, 0]) + 1)
        return hidden_states

    monkeypatch.setattr(driver.model, "forward", impure)
    monkeypatch.setattr("pagoda.kernels.cpu.recording._Watch.__torch_function__", _pass_on)
    assert record(driver) is None
    assert "differs from its recording" in caplog.text


def _pass_on(self, func, types, args=(), kwargs=None):
    return func(*args, **(kwargs or {}))


def test_plain_weights_run_op_by_op(tmp_path):
    tiny.make("llama").save_pretrained(tmp_path)
    assert record(Driver(tiny.load(tmp_path, torch.bfloat16))) is None


def test_a_step_of_other_rows_is_refused():
    recording = ops.recording("cpu", (8,))
    x, weight = torch.randn(3, 64), torch.ones(64)
    with recording.rows(0, 3):
        ops.rms_norm(x, weight, 1e-5)
    with pytest.raises(ValueError, match="more rows"):
        recording.replay((9,))
    with pytest.raises(ValueError, match="rows of its own number"), recording.rows(0, 2):
        ops.rms_norm(x, weight, 1e-5)
    ops.rms_norm(x, weight, 1e-5)  # recording has ended all the same
    assert recording.num_ops == 1


def test_a_profile_computes_the_last_step_again(tmp_path):
    driver = Driver(load("llama", tmp_path))
    program = record(driver)
    logits = replay(program, driver, {"a": [1, 2, 3]})[0].clone()
    times = program.profile()
    assert len(times) == program._recording.num_ops
    assert {name for name, _ in times} > {"matmul", "paged_attention", "rms_norm", "argmax"}
    assert all(seconds >= 0 for _, seconds in times)
    assert torch.equal(program._computed(3, 1).logits, logits)
