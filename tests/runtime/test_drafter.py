"""A head that guesses behind each step: it reads along, and what it says is verified."""

import random

import pytest
import torch

from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.kvcache.spec import KVGroupSpec
from pagoda.core.scheduler import Scheduler, SchedulerLimits
from pagoda.core.speculation.drafted import DraftedProposer
from pagoda.core.speculation.speculator import SpeculationLimits, Speculator
from pagoda.planner.captured import captured_sizes
from pagoda.runtime.steps import captured
from tests.runtime.conftest import VOCAB, CacheModel
from tests.runtime.test_captured import FakeGpu

BLOCKS = 120


class KnowingHead:
    """`CacheModel` with one layer forgets a tenth per token, so that its next hidden state follows
    from the last one and the token: this head is never wrong, unless it is told to be.

    It sees to it that it reads each text from its beginning, and each token once it is certain.
    """

    def __init__(self, model: CacheModel, wrong: float = 0.0):
        self.model = model
        self.hidden_size, self.dtype = 32, torch.float64
        self.calls: list[int] = []
        self._chance = random.Random(3)
        self._wrong = wrong
        self.failing = False

    def reserve(self, num_tokens):
        pass

    def read(self, hidden_states):
        return hidden_states

    def forward(self, batch, token_ids, hidden_states):
        if self.failing:
            raise ValueError("broken")
        assert len(token_ids) == len(hidden_states) == len(batch.positions)
        self.calls.append(len(token_ids))
        read = batch.kv_caches[0][1]  # the model's own place of each token: they must be the same
        size = read.shape[2]
        slots = batch.groups[0].slot_mapping
        assert (slots >= 0).all() and (slots // size < BLOCKS).all()
        embedded = self.model.embeddings[0][token_ids]
        return 0.9 * hidden_states + 0.3 * embedded

    def compute_logits(self, hidden_states):
        logits = self.model.compute_logits(hidden_states)
        for row in logits:
            if self._chance.random() < self._wrong:
                row[self._chance.randrange(VOCAB - 1)] += 1e4
        return logits


class Engine:
    """Schedules, computes and commits."""

    def __init__(self, make_runner, head: KnowingHead | None, most: int = 3, device=None, **limits):
        groups = [KVGroupSpec("full", (0,), 1, 1, 16, kv_dtype="float32")]
        on_gpu = {}
        if device is not None:
            on_gpu = {
                "device": device,
                "captured_bytes": 10**9,
                "captured_sizes": captured_sizes(4, most, 4 * most),
            }
        self.runner = make_runner(groups=groups, num_slabs=BLOCKS, draft_head=head, **on_gpu)
        if device is not None:
            self.runner.record()
        values = {
            "max_num_reqs": 4, "max_num_batched_tokens": 64, "max_model_len": 256, **limits,
        }  # fmt: skip
        speculator = None
        if head is not None:
            speculator = Speculator(DraftedProposer(), SpeculationLimits(most))
        kv = KVCacheManager(groups, BLOCKS, enable_prefix_caching=True)
        self.scheduler = Scheduler(SchedulerLimits(**values), kv, speculator)
        self.num_steps = 0
        self.draft_seconds = 0.0
        self.row_seconds = 1e-5
        """Little beside the weights, as on many devices."""

    def run(self, *requests):
        tokens = {request.req_id: [] for request in requests}
        for request in requests:
            self.scheduler.add(request)
        while self.scheduler.has_work():
            plan = self.scheduler.schedule()
            rows = len(plan.rows) + sum(map(len, plan.drafts.values()))
            result = self.runner.execute(plan)
            assert (result.draft_seconds > 0) >= bool(result.drafts)
            self.draft_seconds += result.draft_seconds
            # By a clock of its own, as the step.
            result.draft_seconds = 1e-5 * plan.num_drafts
            seconds = 1e-3 + self.row_seconds * rows + result.draft_seconds
            for delta in self.scheduler.commit(plan, result, seconds):
                assert delta.error is None
                tokens[delta.req_id] += delta.token_ids
            self.scheduler.check_integrity()
            self.num_steps += 1
        return tokens


@pytest.fixture
def one_layer() -> CacheModel:
    model = CacheModel()
    model.embeddings[1] = 0
    return model


@pytest.fixture
def engine(make_runner, one_layer):
    def make(head: KnowingHead | None = None, **limits) -> Engine:
        return Engine(lambda **changes: make_runner(model=one_layer, **changes), head, **limits)

    return make


def requests(make_request, **sampling):
    return [
        make_request(f"r{i}", length, max_tokens=40 + i, **sampling)
        for i, length in enumerate((20, 33, 7))
    ]


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0}, {"temperature": 1.0}, {"temperature": 0.8, "top_k": 20, "seed": 5}],
)
def test_what_a_knowing_head_says_comes_true(engine, one_layer, make_request, sampling):
    head = KnowingHead(one_layer)
    plain, drafting = engine(), engine(head)
    expected = plain.run(*requests(make_request, **sampling))
    assert drafting.run(*requests(make_request, **sampling)) == expected
    stats = drafting.scheduler.stats()
    assert stats.spec_draft_tokens > 40
    # The last guesses of a reply stand behind its end.
    assert stats.spec_accepted_tokens >= stats.spec_draft_tokens - 3
    assert drafting.num_steps < 0.6 * plain.num_steps
    assert drafting.draft_seconds > 0 == plain.draft_seconds


@pytest.mark.parametrize("wrong", [0.1, 0.6, 1.0])
def test_wrong_guesses_change_nothing(engine, one_layer, make_request, wrong):
    expected = engine().run(*requests(make_request, temperature=1.0))
    drafting = engine(KnowingHead(one_layer, wrong))
    assert drafting.run(*requests(make_request, temperature=1.0)) == expected
    stats = drafting.scheduler.stats()
    assert stats.spec_accepted_tokens < stats.spec_draft_tokens


def test_prompts_in_chunks_and_prefixes_from_the_cache_are_read_along(
    engine, one_layer, make_request
):
    long = [make_request(name, 120, max_tokens=25, temperature=0) for name in "ab"]
    long[1].prompt_token_ids[:100] = long[0].prompt_token_ids[:100]
    expected = [engine().run(request) for request in long]
    drafting = engine(KnowingHead(one_layer), max_num_batched_tokens=24)
    assert [drafting.run(request) for request in long] == expected
    stats = drafting.scheduler.stats()
    assert stats.prefix_hits > 0 and stats.spec_accepted_tokens > 10


def test_guesses_end_with_the_context(engine, one_layer, make_request):
    request = make_request("r", 20, temperature=0)
    limits = {"max_model_len": 64}
    expected = engine(**limits).run(request)
    assert len(expected["r"]) == 44
    assert engine(KnowingHead(one_layer), **limits).run(request) == expected


def test_a_head_that_fails_is_left_out_and_said_once(engine, one_layer, make_request, caplog):
    head = KnowingHead(one_layer)
    drafting = engine(head)
    expected = engine().run(*requests(make_request, temperature=0))
    head.failing = True
    assert drafting.run(*requests(make_request, temperature=0)) == expected
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert not head.calls and not drafting.scheduler.stats().spec_drafts


def test_where_guesses_do_not_pay_the_head_rests(engine, one_layer, make_request):
    """It reads prompts, and is asked for guesses less and less."""
    head = KnowingHead(one_layer, wrong=1.0)
    drafting = engine(head)
    drafting.row_seconds = 5e-4
    drafting.run(make_request("r", 20, temperature=0, max_tokens=200))
    assert drafting.num_steps > 150
    assert len(head.calls) < 60


def test_the_models_own_rows_are_never_written(engine, one_layer, make_request):
    """Guesses lie behind a request's tokens, in rows that the next plan overwrites."""
    drafting = engine(KnowingHead(one_layer, wrong=0.5))
    request = make_request("r", 20, temperature=0, max_tokens=30)
    tokens = drafting.run(request)["r"]
    logits = one_layer.logits([*request.prompt_token_ids, *tokens])
    assert torch.equal(logits[19:-1].argmax(-1), torch.tensor(tokens))


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 3}])
def test_captured_passes_guess_what_others_do(sampling, engine, one_layer, make_request):
    """Guesses are made and verified by graphs, which are captured as they are needed; the rest is
    captured while nobody waits."""
    expected = engine().run(*requests(make_request, **sampling))
    eager = engine(KnowingHead(one_layer))
    assert eager.run(*requests(make_request, **sampling)) == expected
    gpu = FakeGpu()
    drafting = engine(KnowingHead(one_layer), device=gpu)
    while drafting.runner.work_ahead():
        pass
    steps, passes = drafting.runner.replays.captured
    assert set(steps._graphs) == set(passes._graphs) == set(steps.sizes)
    before, calls = gpu.replays, len(drafting.runner.draft_head.calls)
    assert drafting.run(*requests(make_request, **sampling)) == expected
    stats, others = drafting.scheduler.stats(), eager.scheduler.stats()
    assert stats.spec_accepted_tokens == others.spec_accepted_tokens > 30
    assert drafting.num_steps == eager.num_steps
    # Each step with a guess takes the step itself, a pass over it, and one for each guess but one.
    assert gpu.replays - before > 3 * drafting.num_steps
    assert len(drafting.runner.draft_head.calls) - calls >= gpu.replays - before - stats.num_steps
    drafting.runner.replays.drop()
    assert not steps._graphs and not passes._graphs and steps.budget.spent == 0


def test_passes_are_captured_behind_the_steps_that_need_them(
    engine, one_layer, make_request, monkeypatch
):
    monkeypatch.setattr(captured, "_SHARE", 1e9)
    drafting = engine(KnowingHead(one_layer), device=FakeGpu())
    drafting.run(*requests(make_request, temperature=0.0))
    steps, passes = drafting.runner.replays.captured
    assert steps._graphs and passes._graphs
    assert steps.budget is passes.budget


def test_passes_of_a_head_that_failed_are_captured_no_more(engine, one_layer, make_request):
    expected = engine().run(*requests(make_request, temperature=0.0))
    drafting = engine(KnowingHead(one_layer), device=FakeGpu())
    steps, passes = drafting.runner.replays.captured
    drafting.runner.draft_head.failing = True
    assert drafting.run(*requests(make_request, temperature=0.0)) == expected
    while drafting.runner.work_ahead():
        pass
    assert drafting.runner.replays.captured == [steps] and steps._graphs and not passes._graphs
