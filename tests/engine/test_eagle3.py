"""An EAGLE-3 head guesses behind each step, and changes no bit of what its model says."""

import pytest

from pagoda.base.errors import CheckpointError
from pagoda.config.engine import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from pagoda.config.speculation import SpeculationConfig
from pagoda.core.messages import AddRequest
from pagoda.core.sampling import SamplingParams
from pagoda.core.speculation.drafted import DraftedProposer
from pagoda.core.step_time import StepCost, StepTimes
from pagoda.engine.startup import start_engine
from pagoda.kernels import ops
from tests.engine import running
from tests.models import tiny, tiny_eagle3, tiny_gguf

LENGTHS = (5, 40, 90, 17)
FAMILIES = {"llama": {}, "qwen3": {"head_dim": 16}}

pytestmark = pytest.mark.skipif(
    not ops.can_pack("cpu"), reason="the native kernels are not built here"
)


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    """The head is random, and so is most of what it says."""
    folder = tmp_path_factory.mktemp(request.param)
    model = tiny.make(request.param, **FAMILIES[request.param])
    model.save_pretrained(folder)
    tiny_eagle3.save(folder / "head", tiny_eagle3.make(model))
    return folder


@pytest.fixture
def guesses_are_cheap(monkeypatch):
    """They are made and verified, however long that takes here."""
    cost = StepCost(per_token=1e-9, base=1.0)
    monkeypatch.setattr(StepTimes, "cost", lambda self, decodes=False: cost)


def start(folder, method, head=None, model=None, report=lambda message: None, **options):
    """`options` are of the model, the cache and the device."""
    cache = {
        name: options.pop(name)
        for name in ("num_gpu_blocks_override", "kv_disk")
        if name in options
    }
    eager = options.pop("enforce_eager", False)
    config = EngineConfig(
        model=ModelConfig(str(model or folder), max_model_len=144, **options),
        scheduler=SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=3),
        cache=CacheConfig(**cache),
        device=DeviceConfig("cpu", threads=1, enforce_eager=eager),
        speculation=SpeculationConfig(
            {"method": method, "model": str(head or folder / "head"), "num_speculative_tokens": 3}
        ),
    )
    return start_engine(config, report)[0]


def replies(core, sampling: list[SamplingParams]):
    return running.replies(core, sampling, LENGTHS)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_a_head_says_that_knows_its_model_comes_true(tmp_path, guesses_are_cheap, temperature):
    """At any temperature, for a guess is drawn with the noise of its token's place."""
    model = tiny.make("llama")
    head = tiny_eagle3.make_knowing(model)
    model.save_pretrained(tmp_path)
    tiny_eagle3.save(tmp_path / "head", head)
    known = head.t2d.nonzero().flatten().tolist()
    sampling = [
        SamplingParams(
            temperature=temperature, seed=i, max_tokens=40, ignore_eos=True, allowed_token_ids=known
        )
        for i in range(len(LENGTHS))
    ]  # fmt: skip
    expected = replies(start(tmp_path, "none"), sampling)
    drafting = start(tmp_path, "eagle3")
    assert replies(drafting, sampling) == expected
    stats = drafting.stats()
    assert stats.spec_draft_tokens > 50
    # The last guesses of a reply stand behind its end.
    assert stats.spec_accepted_tokens > 0.9 * stats.spec_draft_tokens


def few_tokens(folder, temperature: float, **more) -> list[SamplingParams]:
    """So few that some guesses come true by chance; the head knows most of them."""
    known = tiny_eagle3.tensors_of(tiny_eagle3.make(tiny.make("llama")))["t2d"].nonzero()
    allowed = known.flatten()[:4].tolist()
    return [
        SamplingParams(
            temperature=temperature, seed=i, max_tokens=30 + i, ignore_eos=True,
            allowed_token_ids=allowed, **more,
        )
        for i in range(len(LENGTHS))
    ]  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_replies_are_those_without_it(folder, guesses_are_cheap, temperature):
    """Several at once, prompts in chunks, and again with all prefixes cached."""
    sampling = few_tokens(folder, temperature, logprobs=2)
    plain, drafting = start(folder, "none"), start(folder, "eagle3")
    expected = replies(plain, sampling)
    assert replies(drafting, sampling) == expected
    assert replies(drafting, sampling) == expected
    stats = drafting.stats()
    assert stats.prefix_hits and stats.spec_draft_tokens > 100
    assert 0 < stats.spec_accepted_tokens < stats.spec_draft_tokens


def test_preempted_requests_say_the_same(folder, guesses_are_cheap):
    """Three requests at once need more blocks than there are."""
    sampling = few_tokens(folder, 1.0)
    expected = replies(start(folder, "none"), sampling)
    drafting = start(folder, "eagle3", num_gpu_blocks_override=10)
    assert replies(drafting, sampling) == expected
    stats = drafting.stats()
    assert stats.num_preemptions and stats.spec_draft_tokens > 50


def test_recorded_steps_keep_what_the_head_reads(folder, guesses_are_cheap):
    """The same guesses come of steps that are recorded and of steps that run op by op."""
    sampling = few_tokens(folder, 1.0)
    counts = []
    for eager in (False, True):
        core = start(folder, "eagle3", enforce_eager=eager)
        assert (core.executor.runner.replays.program is None) == eager
        said, stats = replies(core, sampling), core.stats()
        counts.append((said, stats.spec_draft_tokens, stats.spec_accepted_tokens))
    assert counts[0] == counts[1]


def test_its_method_is_its_own(folder):
    core = start(folder, "eagle3")
    assert isinstance(core.scheduler.speculator.proposer, DraftedProposer)


def test_a_head_of_another_model_is_refused_before_weights_are_loaded(folder, tmp_path):
    config = {"hidden_size": 32, "num_attention_heads": 4}
    tiny_eagle3.save(tmp_path / "head", tiny_eagle3.make(tiny.make("llama", **config)))
    phases = []
    with pytest.raises(CheckpointError, match="fc.weight has the shape"):
        start(folder, "eagle3", head=tmp_path / "head", report=phases.append)
    assert phases and not any("weights" in str(phase) for phase in phases)


def test_rounded_weights_and_their_head(folder, guesses_are_cheap):
    sampling = few_tokens(folder, 1.0)
    expected = replies(start(folder, "none", quantization="int8"), sampling)
    drafting = start(folder, "eagle3", quantization="int8")
    assert replies(drafting, sampling) == expected
    assert drafting.stats().spec_draft_tokens > 50


def test_ggufs_of_model_and_head(tmp_path, guesses_are_cheap):
    reference = tiny.make("llama")
    head = tiny_eagle3.make(reference)
    model, head_path = tmp_path / "model.gguf", tmp_path / "head" / "head.gguf"
    head_path.parent.mkdir()
    tiny_gguf.write(model, reference, lambda name: tiny_gguf.Storage.Q8_0)
    tiny_eagle3.write_gguf(head_path, head, storage=tiny_gguf.Storage.F16)
    sampling = few_tokens(tmp_path, 1.0)
    expected = replies(start(tmp_path, "none", model=model), sampling)
    drafting = start(tmp_path, "eagle3", model=model)
    assert replies(drafting, sampling) == expected
    assert drafting.stats().spec_draft_tokens > 50


def test_kept_prefixes_are_those_of_the_same_head(folder, tmp_path):
    """What a head wrote to the cache means nothing to another."""
    files = set()
    for head in (folder / "head", tmp_path / "other"):
        if not head.exists():
            changed = tiny_eagle3.make(tiny.make("llama"))
            changed.fc.weight.data *= 2
            tiny_eagle3.save(head, changed)
        core = start(folder, "eagle3", head=head, kv_disk=str(tmp_path / "kept"))
        core.handle(AddRequest(req_id="r", prompt_token_ids=tiny.random_ids(90)))
        while core.has_work():
            core.step()
        core.shutdown()
        files |= {path.name for path in (tmp_path / "kept").iterdir()}
    assert len(files) == 2
