"""A model split over processes answers as it does in one, and ends with its cause."""

import gc
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagoda import LLM, SamplingParams
from pagoda.base.errors import CapacityError, ConfigError, EngineDeadError
from pagoda.base.facts import DeviceFacts
from pagoda.config.engine import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
)
from pagoda.config.engine import SchedulerConfig as Scheduling
from pagoda.core.messages import AddRequest, PoolingParams, RequestDelta, Utility
from pagoda.core.ranks import RankCall
from pagoda.engine.core import EngineCore
from pagoda.engine.ranks.executor import Ranks
from pagoda.engine.ranks.link import RankSetup
from pagoda.engine.ranks.starter import LocalStarter
from pagoda.engine.startup import start_engine
from pagoda.planner.resolved import (
    ResolvedCache,
    ResolvedConfig,
    ResolvedDevice,
    ResolvedMedia,
    ResolvedModel,
    ResolvedScheduler,
)
from tests.engine.conftest import write_byte_tokenizer
from tests.engine.running import run, tokens
from tests.models import tiny, vision
from tests.models.vision import picture

ROOT = Path(__file__).parents[2]
COUNT = 20


RESOLVED = ResolvedConfig(
    ResolvedModel("float32", "none", dummy=False, max_model_len=240, seed=0),
    ResolvedCache(16, "float32", True, None, 0),
    ResolvedScheduler(6, 64, True, 0, math.inf, math.inf, "fcfs"),
    ParallelConfig(3),
    ResolvedDevice("cpu", 3, (), enforce_eager=False, offload_gib=0.0),
    ResolvedMedia(0, 0),
)


def config_of(folder: Path, ranks: int = 1, slabs: int = 120, **model: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(str(folder), **{"dtype": "float32", "max_model_len": 240, **model}),
        cache=CacheConfig(num_gpu_blocks_override=slabs, kv_offloading_size=0.1),
        # Steps are the same however fast the machine is.
        scheduler=Scheduling(max_num_batched_tokens=64, max_num_seqs=6, max_step_ms=0),
        parallel=ParallelConfig(ranks),
        device=DeviceConfig("cpu", threads=ranks),
    )


def start(folder: Path, *args: Any, **options: Any) -> EngineCore:
    return start_engine(config_of(folder, *args, **options), lambda message: None)[0]


def processes(core: EngineCore) -> list[int]:
    return [process.pid for process in core.executor._ranks._processes.values()]


def listening(pid: int) -> set[str]:
    """Addresses (hex, as /proc has them) on which a process listens."""
    links = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    listens = "0A"
    return {
        words[1].partition(":")[0]
        for words in lines
        if words[3] == listens and f"socket:[{words[9]}]" in links
    }


def are_gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    """Delta nets beside attention, with a tokenizer; and transformers' model."""
    folder = tmp_path_factory.mktemp("hybrid")
    reference = tiny.make("qwen3_5", **{**tiny.QWEN3_5, "vocab_size": 260})
    reference.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return reference, folder


@pytest.fixture(scope="module")
def pair(hybrid) -> Iterator[EngineCore]:
    """Two ranks, with room for a few of six requests' states."""
    core = start(hybrid[1], 2, slabs=24)
    yield core
    core.shutdown()


def test_prefixes_on_disk_are_of_all_ranks(hybrid, tmp_path, caplog):
    """Another number of ranks has files of its own, and passes these over."""
    caplog.set_level(logging.INFO, "pagoda")
    prompt = [(7 * i) % 250 for i in range(130)]
    texts, cached = [], []
    for ranks in (2, 2, 1):
        config = config_of(hybrid[1], ranks)
        config = replace(config, cache=replace(config.cache, kv_disk=str(tmp_path)))
        core = start_engine(config, lambda message: None)[0]
        deltas = run(core, request("one", prompt, max_tokens=8))["one"]
        texts.append(tokens(deltas))
        cached.append(deltas[0].num_cached_tokens)
        core.shutdown()
    assert texts[0] == texts[1] == texts[2]
    assert cached[0] == cached[2] == 0 and cached[1] >= 64
    assert deltas[0].cached_tiers == (0, 0)
    assert "0 blocks of this model; 0 of them are back" in caplog.text


@pytest.fixture(scope="module")
def alone(hybrid) -> EngineCore:
    return start(hybrid[1])


def request(name: str, prompt: list[int], **sampling: Any) -> AddRequest:
    values = {"temperature": 0.0, "max_tokens": COUNT, "ignore_eos": True, **sampling}
    return AddRequest(req_id=name, prompt_token_ids=prompt, sampling=SamplingParams(**values))


def expected(reference, prompt: list[int]) -> list[int]:
    ids = list(prompt)
    for _ in range(COUNT):
        ids.append(int(tiny.reference_logits(reference, ids)[-1].argmax()))
    return ids[len(prompt) :]


def cached(deltas: list[RequestDelta]) -> int:
    return next(d.num_cached_tokens for d in deltas if d.num_cached_tokens is not None)


def test_chunks_and_prefix_hits(hybrid, pair):
    reference, _ = hybrid
    prompts = {f"r{i}": tiny.random_ids(30 + 23 * i, seed=i) for i in range(6)}
    replies = {name: expected(reference, prompt) for name, prompt in prompts.items()}
    deltas = run(pair, *(request(name, prompt) for name, prompt in prompts.items()))
    assert {name: tokens(deltas[name]) for name in prompts} == replies
    (again,) = run(pair, request("again", prompts["r5"])).values()
    assert cached(again) >= 96 and tokens(again) == replies["r5"]


def test_prefixes_come_back_from_the_hosts_memory(hybrid, pair):
    """The pool has room for one of these prompts, on each rank its part."""
    prompts = [tiny.random_ids(100, seed=seed) for seed in range(30, 34)]
    for number, prompt in enumerate(prompts):
        run(pair, request(f"first {number}", prompt))
    (again,) = run(pair, request("from the host", prompts[0])).values()
    assert cached(again) == 96 and tokens(again) == expected(hybrid[0], prompts[0])


def test_sampling_as_on_one_rank(pair, alone):
    """Each step's tokens are drawn on rank 0 and known to the other before the next."""
    choices: dict[str, dict[str, Any]] = {
        "seeded": {"temperature": 0.9, "seed": 5, "top_p": 0.95},
        "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
        "biased": {"logit_bias": {7: 4.0}, "allowed_token_ids": list(range(100))},
        "logprobs": {"logprobs": 3, "prompt_logprobs": 2},
        "stopping": {"temperature": 1.0, "seed": 1, "stop_token_ids": list(range(0, 260, 9))},
    }
    requests = [
        request(name, tiny.random_ids(40, seed=i), **how)
        for i, (name, how) in enumerate(choices.items())
    ]
    requests.append(request("grammar", tiny.random_ids(9), max_tokens=60, ignore_eos=False))
    requests[-1].grammar = '%llguidance {}\nstart: /[a-f]{3,5}/ "-" /[0-9]{4}/'
    requests[-1].eos_token_ids = [259]
    split, whole = (run(core, *requests) for core in (pair, alone))
    for req in requests:
        ours, theirs = split[req.req_id], whole[req.req_id]
        assert [d.token_ids for d in ours if d.token_ids] == [
            d.token_ids for d in theirs if d.token_ids
        ], req.req_id
        assert ours[-1].finish_reason == theirs[-1].finish_reason
        assert ours[-1].error is None
    ours, theirs = split["logprobs"], whole["logprobs"]
    for field in ("logprobs", "prompt_logprobs"):
        found = [entry for d in ours for entry in getattr(d, field) or []]
        wanted = [entry for d in theirs for entry in getattr(d, field) or []]
        assert len(found) == len(wanted) > 0
        for one, other in zip(found, wanted, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_a_request_that_fails_fails_alone(pair):
    """What only rank 0 can know parts nobody: a structure that cannot be followed."""
    bad = request("bad", [1, 2, 3], allowed_token_ids=[5])
    bad.sampling.bad_words, bad.bad_word_ids = ["x"], [[5]]
    good = request("good", tiny.random_ids(20))
    deltas = run(pair, bad, good)
    assert deltas["bad"][-1].finish_reason == "error"
    assert len(tokens(deltas["good"])) == COUNT
    assert len(tokens(run(pair, request("next", tiny.random_ids(20)))["next"])) == COUNT


def test_sleep_and_what_comes_behind_it(hybrid, pair):
    """Requests end in any state; behind it nothing of what was known is believed."""
    reference, _ = hybrid
    prompt = tiny.random_ids(70, seed=77)
    first = run(pair, request("before", prompt))["before"]
    for number in range(7):  # more than run at once
        pair.handle(request(f"r{number}", prompt))
    for _ in range(4):
        pair.step()
    assert pair.handle(Utility(1, "sleep")).error is None
    assert {d.finish_reason for d in pair.step() if d.finish_reason} == {"abort"}
    assert "sleeps" in (run(pair, request("asleep", prompt))["asleep"][-1].error or "")
    for number in (2, 3):
        assert pair.handle(Utility(number, "wake_up")).error is None
    again = run(pair, request("after", prompt))["after"]
    assert tokens(again) == tokens(first) == expected(reference, prompt)
    assert cached(again) == 0


@pytest.mark.slow
def test_four_ranks_and_a_killed_one(tmp_path):
    """Two KV heads for four ranks, and too few blocks; then one of them dies between steps."""
    reference = tiny.make("llama")
    reference.save_pretrained(tmp_path)
    # Each prompt has three blocks of 16, and its reply reaches into a fourth.
    core = start(tmp_path, 4, slabs=20)
    prompts = {f"r{i}": tiny.random_ids(40, seed=i) for i in range(5)}
    deltas = run(core, *(request(name, prompt) for name, prompt in prompts.items()))
    for name, prompt in prompts.items():
        assert tokens(deltas[name]) == expected(reference, prompt), name
    assert any(deltas[name][-1].num_preemptions for name in prompts)
    pids, folder = processes(core), core.executor._ranks._starter.folder
    if Path("/proc/net/tcp").exists():
        assert [listening(pid) for pid in pids] == [{"0100007F"}] * 3, "127.0.0.1 and no other"
    assert len(pids) == 3 and oct(folder.stat().st_mode)[-3:] == "700"
    core.handle(request("killed", prompts["r0"]))
    core.step()
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="The process of rank 2 was ended by SIGKILL"):
        run(core)
        while True:
            core.step()
    assert are_gone(pids) and not folder.exists()
    with pytest.raises(EngineDeadError, match="rank 2 was ended by SIGKILL"):
        core.executor.check()


@pytest.mark.slow
def test_pictures_are_encoded_once_for_all(tmp_path):
    reference = vision.make()
    vision.save(reference, tmp_path)
    sizes = [("gradient", 64, 64), ("noise", 97, 203)]
    images = vision.processed(tmp_path, [picture(*size) for size in sizes])
    words = [token % 200 for token in tiny.random_ids(12)]
    pieces = [words, [200], images[0], [202], words, [200], images[1], [202], words]
    given = vision.prompt_of(pieces, tmp_path)
    gone = vision.prompt_of([words, [200], images[1], [202], words[:5]], tmp_path)
    core = start(tmp_path, 2, slabs=80)
    try:
        seeing, text = request("seeing", given.ids), request("text", words)
        seeing.media = given.items
        blind = request("blind", gone.ids)
        for item in gone.items:
            item.payload, item.content_hash = str(tmp_path / "gone.npy"), "gone"
        blind.media = gone.items
        deltas = run(core, seeing, text, blind)
        assert "could not be encoded" in (deltas["blind"][-1].error or "")
        assert len(tokens(deltas["text"])) == COUNT
        ids = list(given.ids)
        for _ in range(COUNT):
            logits = vision.reference_logits(reference, ids, [picture(*size) for size in sizes])
            ids.append(int(logits[-1].argmax()))
        assert tokens(deltas["seeing"]) == ids[len(given.ids) :]
    finally:
        core.shutdown()


def test_embeddings(pair, alone):
    pooled = AddRequest(
        req_id="r", prompt_token_ids=tiny.random_ids(90), kind="pool", pooling=PoolingParams()
    )
    ours, theirs = (
        memoryview(run(core, pooled)["r"][-1].embedding).cast("f").tolist()
        for core in (pair, alone)
    )
    assert ours == pytest.approx(theirs, abs=1e-4)


@pytest.mark.slow
def test_llm_takes_ranks_and_leaves_nothing(hybrid):
    _, folder = hybrid
    options = {"dtype": "float32", "device": "cpu", "num_gpu_blocks_override": 60, "threads": 1}
    sampling = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    texts = []
    for ranks in (1, 2):
        llm = LLM(str(folder), tensor_parallel_size=ranks, max_model_len=200, **options)
        texts.append(llm.generate("Once", sampling)[0].outputs[0].text)
    assert texts[0] == texts[1]
    pids = processes(llm._core)
    del llm
    gc.collect()
    assert are_gone(pids)


# How start-up and a hanging engine end, with processes that only talk like ranks.


def raising(error: Exception) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    made: list[Ranks] = []

    def make(behaviour: str, **options: Any) -> Ranks:
        made.append(
            Ranks(
                config_of(tmp_path, 3),
                Path(behaviour),
                starter=LocalStarter(3, "tests.engine.fake_rank"),
                **options,
            )  # fmt: skip
        )
        return made[-1]

    yield make
    for ranks in made:
        ranks.close()


@pytest.mark.parametrize(
    ("behaviour", "error", "words"),
    [
        ("dies", EngineDeadError, "^Rank 2: the weights are gone"),
        ("out of memory", CapacityError, "^Rank 2: no room"),
        ("exits", EngineDeadError, "The process of rank 2 ended with exit status 3"),
        ("crashes", EngineDeadError, "The process of rank 2 was ended by SIGSEGV"),
    ],
)
def test_a_rank_that_fails_at_start(fakes, behaviour, error, words):
    """The others, which lose it, are not to blame."""
    ranks = fakes(behaviour)
    ranks.load(RankSetup(RESOLVED, False))
    pids = [process.pid for process in ranks._processes.values()]
    with pytest.raises(error, match=words):
        ranks._wait(lambda: False)
    assert are_gone(pids) and not ranks._starter.folder.exists()


def test_an_engine_that_waits_for_a_lost_rank_is_ended(fakes, monkeypatch):
    monkeypatch.setattr("pagoda.engine.ranks.executor._NOTICE_SECONDS", 0.1)
    causes: list[str] = []
    ranks = fakes("exits", give_up=causes.append)
    ranks.load(RankSetup(RESOLVED, False))
    deadline = time.monotonic() + 30
    while not causes and time.monotonic() < deadline:
        time.sleep(0.05)
    assert causes == ["The process of rank 2 ended with exit status 3; its log says why."]


def test_a_step_that_fails_on_rank_0_ends_all(fakes):
    ranks = fakes("waits")
    pids = [process.pid for process in ranks._processes.values()]
    with pytest.raises(EngineDeadError, match="failed on rank 0: ValueError: odd"), ranks.in_step():
        raise ValueError("odd")
    assert are_gone(pids)
    with pytest.raises(EngineDeadError, match="odd"), ranks.in_step():
        raise AssertionError("nothing may run any more")


def test_all_ranks_sleep_and_a_call_that_fails_on_one_may_be_repeated(fakes):
    ranks, own = fakes("sleeps"), []
    ranks.load(RankSetup(RESOLVED, False))
    ranks.call(RankCall("sleep"), lambda: own.append("sleep"))
    for _ in range(2):
        with pytest.raises(CapacityError, match="^Rank 2: no room"):
            ranks.call(RankCall("wake_up"), lambda: own.append("wake_up"))
    with pytest.raises(MemoryError, match="ours"):
        ranks.call(RankCall("sleep"), raising(MemoryError("ours")))
    ranks.check()
    assert own == ["sleep", "wake_up", "wake_up"]


def test_a_rank_that_dies_asleep(fakes):
    ranks = fakes("sleeps")
    pids = [process.pid for process in ranks._processes.values()]
    ranks.load(RankSetup(RESOLVED, False))
    ranks.call(RankCall("sleep"), lambda: None)
    os.kill(pids[1], signal.SIGKILL)
    ranks._processes[2]._process.wait(30)
    for look in (ranks.check, lambda: ranks.call(RankCall("wake_up"), lambda: None)):
        with pytest.raises(EngineDeadError, match="rank 2 was ended by SIGKILL"):
            look()
    assert are_gone(pids)


def test_gpus_are_counted_and_the_fullest_one_decides(fakes, caplog):
    """The fakes have a byte each."""
    ranks = fakes("waits")
    facts = DeviceFacts("cuda", total_memory=8 << 30, free_memory=7 << 30, num_threads=8)
    with pytest.raises(ConfigError, match="needs 3 GPUs and torch finds 2.*CUDA_VISIBLE_DEVICES"):
        ranks.share(config_of(ROOT, 3), facts, 2)
    config, least = ranks.share(config_of(ROOT, 3), facts, 3)
    assert config == config_of(ROOT, 3)
    assert (least.free_memory, least.total_memory, least.num_threads) == (1, 1, 8)
    assert "Rank 1 has 1 B of memory free and rank 0 7.00 GiB" in caplog.text
    second = replace(config_of(ROOT, 3), parallel=ParallelConfig(3, data_parallel_size=2))
    with pytest.raises(ConfigError, match="-size 3 with --data-parallel-size 2 needs 6 GPUs"):
        ranks.share(second, facts, 5, 3)
    assert ranks.share(second, facts, 6, 3)[0] == second


def test_a_cpu_is_shared(fakes, caplog):
    ranks = fakes("waits")
    facts = DeviceFacts("cpu", total_memory=9 << 30, free_memory=6 << 30, num_threads=8)
    config = replace(config_of(ROOT, 3), device=DeviceConfig("cpu", threads=7))
    config, part = ranks.share(config, facts, 1)
    assert (part.free_memory, part.total_memory, part.num_threads) == (2 << 30, 3 << 30, 2)
    assert config.device.threads == 2
    assert "3 processes share its cores and memory" in caplog.text
