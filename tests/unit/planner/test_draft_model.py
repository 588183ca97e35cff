"""What a draft model takes beside its model."""

from dataclasses import replace

import pytest

from pagoda.base.errors import ConfigError
from pagoda.config.engine import EngineConfig
from pagoda.config.speculation import SpeculationConfig
from pagoda.core.kvcache.spec import KVLayout, kv_groups
from pagoda.planner.draft_model import DraftModel, beside, check_tokens
from pagoda.planner.memory.plan import activation_bytes
from pagoda.planner.memory.tensors import parameter_count
from pagoda.planner.resolve import resolve
from tests.unit.planner.test_attention import gpu
from tests.unit.planner.test_resolve import machine, smollm2

MODEL, SMALL = smollm2(), smollm2(layers=4)
ASKED = EngineConfig(speculation=SpeculationConfig({"model": "small"}))


@pytest.mark.parametrize("facts", [machine(), gpu(90)], ids=["cpu", "gpu"])
def test_weights_steps_and_cache(facts):
    plain = resolve(EngineConfig(), MODEL, {}, facts).plan
    made = resolve(ASKED, MODEL, {}, facts, DraftModel("small", SMALL, {}))
    plan, scheduler = made.plan, made.config.scheduler
    assert plan.draft_model == 2 * parameter_count(SMALL)
    assert plan.weights == plain.weights
    own = activation_bytes(SMALL, "bfloat16", scheduler.max_num_batched_tokens, 64)
    assert plan.activations >= plain.activations + own
    assert plan.kv_bytes_per_token == plain.kv_bytes_per_token * 34 // 30
    rows = {row["item"]: row["bytes"] for row in plan.rows()}
    assert rows["draft model"] == plan.draft_model
    assert sum(rows.values()) == plan.total
    assert "draft model" not in {row["item"] for row in plain.rows()}
    assert made.config.speculation.method == "draft"


def test_what_fits_alone_may_not_fit_with_it():
    tight = machine(1500 << 20)
    longest = [
        resolve(config, MODEL, {}, tight, draft).config.model.max_model_len
        for config, draft in ((EngineConfig(), None), (ASKED, DraftModel("small", MODEL, {})))
    ]
    assert 0 < longest[1] < longest[0]


def test_its_layers_have_caches_behind_all_others():
    other = replace(
        SMALL.layers[0], mixer=replace(SMALL.layers[0].mixer, num_kv_heads=1, head_dim=128)
    )
    small = replace(SMALL, layers=(SMALL.layers[0], other))
    groups = kv_groups(beside(MODEL, DraftModel("small", small, {})), KVLayout())
    assert [group.layers for group in groups] == [tuple(range(31)), (31,)]
    assert [group.num_kv_heads for group in groups] == [3, 1]


class Tokens:
    """A tokenizer of so many tokens, of which some are other ones."""

    def __init__(self, count: int, others: int = 0):
        self.vocab_size, self._others = count, others

    def token_bytes(self, index: int) -> bytes:
        return b"other%d" % index if index < self._others else b"%d" % index

    def token_text(self, index: int) -> str:
        return self.token_bytes(index).decode()


def test_a_few_tokens_may_be_others_and_a_few_more():
    model = Tokens(5000)
    for draft in (Tokens(5000), Tokens(5000, 5), Tokens(4600), Tokens(5400, 5)):
        check_tokens("small", model, draft)
    with pytest.raises(
        ConfigError, match="6 of its tokens are others, such as 0, which is 'other0'"
    ):
        check_tokens("small", model, Tokens(5000, 6))
    for count in (4000, 6000):
        with pytest.raises(ConfigError, match=f"has {count:,} tokens, and the model's 5,000"):
            check_tokens("small", model, Tokens(count))
