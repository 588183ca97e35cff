from dataclasses import replace

import pytest

from pagoda.arch.registry import spec_for
from pagoda.base.errors import CapacityError, ConfigError
from pagoda.planner.memory.tensors import parameter_count
from pagoda.planner.resolve import Resolution, resolve
from tests.unit.arch.test_sentence import CLASSIFIER, MINILM
from tests.unit.planner.test_resolve import GIB, configure, machine

SPEC = replace(spec_for(MINILM, {}, ()), max_position=256)


def resolved(**sections) -> Resolution:
    return resolve(configure(**sections), SPEC, {}, machine())


def test_known_sizes():
    # As transformers counts them: 22,713,216, of which BertModel's pooler has 147,840.
    assert parameter_count(SPEC) == 22_713_216 - 147_840
    classifier = spec_for({**CLASSIFIER, "id2label": {"0": "x"}}, {}, ())
    assert parameter_count(classifier) == 22_713_216 + 385


def test_positions_that_turn_have_no_end():
    spec = spec_for({**MINILM, "architectures": ["NomicBertModel"]}, {}, ())
    resolution = resolve(configure(model={"max_model_len": 4096}), spec, {}, machine())
    assert resolution.config.model.max_model_len == 4096


def test_an_encoder_has_no_kv_and_takes_texts_whole():
    resolution = resolved()
    config, plan = resolution.config, resolution.plan
    assert (plan.kv_pool, plan.kv_tokens) == (0, 0)
    assert "KV pool" not in {row["item"] for row in plan.rows()}
    assert config.model.max_model_len == 256
    assert config.model.dtype == "float32"
    assert config.scheduler.max_num_batched_tokens == 512
    assert not config.scheduler.enable_chunked_prefill
    assert not {"kv_cache_memory_bytes", "kv_cache_dtype"} & {r.field for r in resolution.reasons}


def test_a_step_has_room_for_the_longest_text():
    resolution = resolve(configure(), replace(SPEC, max_position=512), {}, machine())
    assert int(resolution.config.scheduler.max_num_batched_tokens) >= 512
    raised = resolved(scheduler={"max_num_batched_tokens": 128, "max_num_seqs": 8})
    assert raised.config.scheduler.max_num_batched_tokens == 256
    why = {reason.field: reason.why for reason in raised.reasons}
    assert why["max_num_batched_tokens"] == "not 128: an encoder computes each text in one step"


def test_learned_positions_end():
    assert resolved(model={"max_model_len": 512}).config.model.max_model_len == 512
    with pytest.raises(ConfigError, match="between 1 and 512"):
        resolved(model={"max_model_len": 513})


def test_dtypes():
    gpu = replace(machine(), device="cuda")
    assert resolve(configure(), SPEC, {}, gpu).config.model.dtype == "float16"
    half = replace(SPEC, dtype="bfloat16")
    assert resolve(configure(), half, {}, machine()).config.model.dtype == "bfloat16"


def test_weights_must_fit():
    with pytest.raises(CapacityError, match="for weights"):
        resolve(configure(), SPEC, {}, machine(GIB // 2))
