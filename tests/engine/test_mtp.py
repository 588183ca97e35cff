"""A draft head guesses behind each step, and changes no bit of what its model says."""

import pytest

from pagoda.config.engine import DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig
from pagoda.config.speculation import SpeculationConfig
from pagoda.core.sampling import SamplingParams
from pagoda.core.speculation.suffix import SuffixProposer
from pagoda.core.step_time import StepCost, StepTimes
from pagoda.engine.startup import start_engine
from pagoda.kernels import ops
from tests.engine import running
from tests.models import tiny, tiny_mtp

FAMILIES = {
    "qwen3_5": tiny.QWEN3_5,
    "qwen3_next": {**tiny.QWEN3_5_MOE, "shared_expert_intermediate_size": 32},
}
LENGTHS = (5, 40, 90, 17)

pytestmark = pytest.mark.skipif(
    not ops.can_pack("cpu"), reason="the native kernels are not built here"
)


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    """The head is random, and so is most of what it says."""
    folder = tmp_path_factory.mktemp(request.param)
    model = tiny.make(request.param, **FAMILIES[request.param])
    tiny_mtp.save(folder, model, tiny_mtp.make(model).tensors())
    return folder


@pytest.fixture
def guesses_are_cheap(monkeypatch):
    """They are made and verified, however long that takes here."""
    cost = StepCost(per_token=1e-9, base=1.0)
    monkeypatch.setattr(StepTimes, "cost", lambda self, decodes=False: cost)


def replies(core, sampling: list[SamplingParams]):
    return running.replies(core, sampling, LENGTHS)


def start(folder, method: str):
    config = EngineConfig(
        model=ModelConfig(str(folder), max_model_len=256),
        scheduler=SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=3),
        device=DeviceConfig("cpu", threads=1),
        speculation=SpeculationConfig({"method": method, "num_speculative_tokens": 3}),
    )
    return start_engine(config, lambda message: None)[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_replies_are_those_without_it(folder, guesses_are_cheap, temperature):
    """Several at once, prompts in chunks, and again with all prefixes cached."""
    sampling = [
        SamplingParams(
            temperature=temperature, seed=i, max_tokens=30 + i, ignore_eos=True, logprobs=2,
            allowed_token_ids=[20, 21, 22, 23],  # so that some guesses come true by chance
        )
        for i in range(len(LENGTHS))
    ]  # fmt: skip
    plain, drafting = start(folder, "none"), start(folder, "mtp")
    expected = replies(plain, sampling)
    assert replies(drafting, sampling) == expected
    assert replies(drafting, sampling) == expected
    stats = drafting.stats()
    assert stats.prefix_hits and stats.spec_draft_tokens > 100
    assert 0 < stats.spec_accepted_tokens < stats.spec_draft_tokens


def test_where_there_is_no_head_another_method_takes_its_place(tmp_path):
    model = tiny.make("qwen3_5", **tiny.QWEN3_5)
    model.save_pretrained(tmp_path)
    assert isinstance(start(tmp_path, "mtp").scheduler.speculator.proposer, SuffixProposer)
