"""Runners of two ranks, as threads that meet over gloo, do the same on devices that run ahead."""

import logging
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from pagoda.core.plan import pack_column, unpack_column
from pagoda.core.ranks import RankCapture, RankStep, RankTiles
from pagoda.layers.context import Parallel
from pagoda.planner.captured import CapturedSize, captured_sizes
from pagoda.runtime.meeting import PeerLostError, meet_in
from pagoda.runtime.rank_group import RankGroup
from pagoda.runtime.ranks import FollowingRunner, LeadingRunner, OutOfStepError
from pagoda.runtime.steps import captured
from tests.runtime.conftest import POISON, VOCAB, CacheModel
from tests.runtime.test_ahead import KINDS, AheadDriver, LateDevice, play
from tests.runtime.test_captured import FakeGpu, Tiles, decode, plain
from tests.runtime.test_next_steps import script  # noqa: F401  # a fixture

SIZES = captured_sizes(8)


class LateGpu(LateDevice, FakeGpu):
    """Runs ahead, and makes graphs."""


class ShardModel(CacheModel):
    """Gives the logits of one rank's part of the vocabulary."""

    def __init__(self, parallel: Parallel):
        super().__init__()
        self._part = parallel.share_rows(VOCAB)
        self.unsteady = False
        self._calls = 0

    def partial_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        self._calls += self.unsteady
        return self.compute_logits(hidden_states)[:, self._part] * (1 + self._calls)


class Pair:
    """Rank 0's runner, and a thread in which rank 1's follows it. Both compute
    everything but the other's logits."""

    def __init__(self, make_runner: Any, path: Path, **changes: Any):
        self.gpus = [LateGpu(), LateGpu()]
        self.groups = [RankGroup(rank, 2) for rank in range(2)]
        self.models = [ShardModel(group.parallel) for group in self.groups]
        self._orders: queue.Queue[bytes] = queue.Queue()
        self.lost: list[Exception] = []
        self.follower: FollowingRunner = make_runner(
            FollowingRunner, model=self.models[1], device=self.gpus[1], group=self.groups[1],
            **changes,
        )  # fmt: skip
        self.thread = threading.Thread(target=self._follow, args=(path,), daemon=True)
        self.thread.start()
        self.groups[0].connect(torch.device("cpu"), meet_in(path, 2))
        self.leader: LeadingRunner = make_runner(
            LeadingRunner, model=self.models[0], device=self.gpus[0], group=self.groups[0],
            tell=self._tell, **changes,
        )  # fmt: skip

    def _tell(self, order: RankStep | RankCapture | RankTiles) -> None:
        # Encoded, for what it holds is changed on both sides.
        self._orders.put(msgspec.msgpack.encode(order, enc_hook=pack_column))

    def _follow(self, path: Path) -> None:
        try:
            self.groups[1].connect(torch.device("cpu"), meet_in(path, 2))
            while raw := self._orders.get():
                order = msgspec.msgpack.decode(
                    raw, type=RankStep | RankCapture | RankTiles, dec_hook=unpack_column
                )
                if isinstance(order, RankStep):
                    self.follower.follow(order)
                elif isinstance(order, RankTiles):
                    self.follower.take_tiles(order.rows)
                else:
                    self.follower.capture(CapturedSize(order.requests, order.tokens))
        except Exception as error:  # noqa: BLE001  # shown by `end`
            self.lost.append(error)
            self.groups[1]._group = None  # hangs up, or rank 0 would wait

    def end(self) -> None:
        self._orders.put(b"")
        self.thread.join(30)
        assert not self.lost and not self.thread.is_alive()


@pytest.fixture
def pair(make_runner, tmp_path) -> Iterator[Pair]:
    made = Pair(make_runner, tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize(
    ("kinds", "waits"), [(KINDS, 0), (["penalties", "rules"], 30), (["greedy", "drawn"], 30)]
)
def test_everything_at_once(kinds, waits, pair, make_driver, make_request):
    """With drafts, chunks, preemptions and ids that come back; reports are waited for."""
    driver = AheadDriver(pair.leader)
    found = play(driver, make_request, kinds, 50)
    driver.settle()
    pair.end()
    assert set(found) == set(kinds) and found == play(make_driver(), make_request, kinds, 50)
    ours, theirs = (model.steps for model in pair.models)
    assert len(ours) == len(theirs) > 45
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.token_ids, other.token_ids)
        assert torch.equal(one.positions, other.positions)
    assert pair.follower.device.waits > waits, "it ran ahead as well"


def test_a_run_of_decode_steps(pair, make_driver, make_request):
    """Each rank waits once a step, one step late."""
    names = [f"r{i}" for i in range(4)]
    expected, driver = make_driver(), AheadDriver(pair.leader)
    for one in (expected, driver):
        one.add(*(make_request(name, 10, temperature=0.5, seed=7) for name in names))
        for _ in range(30):
            one.step(dict.fromkeys(names, 64))
    driver.settle()
    pair.end()
    assert driver.tokens == expected.tokens
    assert pair.follower._step.follows and pair.follower.device.waits == 29


@pytest.fixture
def capturing(make_runner, tmp_path, monkeypatch) -> Iterator[Pair]:
    """As `pair`, where steps are captured as soon as they are needed."""
    monkeypatch.setattr(captured, "_SHARE", 1e9)
    made = Pair(make_runner, tmp_path, max_num_reqs=8, captured_bytes=10**6, captured_sizes=SIZES)
    made.leader.record()
    yield made
    made.end()


def sizes(pair: Pair) -> list[list[int]]:
    return [plain(runner.replays.program._graphs) for runner in (pair.leader, pair.follower)]


def assert_same_caches(pair: Pair) -> None:
    """In which the model keeps every token of every step."""
    layers = (runner.cache.layers for runner in (pair.leader, pair.follower))
    for one, other in zip(*layers, strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_ranks_capture_the_same(capturing, make_driver, script):  # noqa: F811  # the fixture
    driver = AheadDriver(capturing.leader)
    script(driver)
    driver.settle()
    for _ in range(2):
        capturing.leader.work_ahead()
    capturing.end()
    assert driver.tokens == script(make_driver(max_num_reqs=8))[0]
    ours, theirs = sizes(capturing)
    assert ours == theirs and set(ours) == {1, 2, 4, 8}
    assert capturing.gpus[0].replays == capturing.gpus[1].replays > 30
    assert_same_caches(capturing)


def test_a_size_captured_in_the_middle_of_a_run(capturing, make_driver, make_request):
    """It takes the memory in which each rank's run lies."""
    driver, plain = AheadDriver(capturing.leader), make_driver(max_num_reqs=8)
    every = dict.fromkeys("abc", 64)
    for each in (driver, plain):
        each.add(*(make_request(name, 9, temperature=0.0) for name in every))
        for shares in [every] * 4 + [{"a": 64}] + [every] * 4:  # the last a run where graphs read
            each.step(shares)
        capturing.leader.replays.program._needed[CapturedSize(8, 8)] = None
        for _ in range(5):
            each.step(every)
    driver.settle()
    capturing.end()
    assert sizes(capturing) == [[4, 1, 8]] * 2
    assert driver.tokens == plain.tokens
    assert_same_caches(capturing)


@pytest.mark.parametrize("changed", [False, True])
def test_ranks_take_the_tiles_that_rank_0_measured(changed, capturing, make_driver, make_request):
    """And capture their steps again, if these are others."""
    ours, theirs = capturing.gpus
    capturing.leader.replays.tiles = tiles = Tiles(3, changed)
    driver, plainly = AheadDriver(capturing.leader), make_driver(max_num_reqs=8)
    decode(driver, make_request, 3)
    driver.settle()
    while capturing.leader.work_ahead():
        pass
    assert tiles.left == 0 and ours.made == len(SIZES) * (1 + changed)
    for each in (driver, plainly):
        each.add(make_request("next", 9, temperature=0.0))
        for _ in range(5):
            each.step({"next": 64})
    driver.settle()
    capturing.end()
    assert theirs.made == ours.made and theirs.taken == (tiles.rows if changed else [])
    assert ours.taken == [] and sizes(capturing)[0] == sizes(capturing)[1]
    assert driver.tokens["next"][:5] == plainly.tokens["next"]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("error", [RuntimeError("not permitted"), torch.OutOfMemoryError("no")])
def test_what_one_rank_cannot_capture_none_does(rank, error, capturing, make_request, caplog):
    caplog.set_level(logging.INFO, "pagoda")
    capturing.gpus[rank].refuses = error
    driver = AheadDriver(capturing.leader)
    names = decode(driver, make_request, 2, 6)
    driver.settle()
    while capturing.leader.work_ahead():  # each size for itself
        pass
    capturing.end()
    assert [len(driver.tokens[name]) for name in names] == [7, 7], "six, and one that was under way"
    assert sizes(capturing) == [[], []] and not capturing.leader.work_ahead()
    assert sum(gpu.replays for gpu in capturing.gpus) == 0
    assert caplog.text.count("another rank could not") == len(SIZES)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_replay_that_differs_on_one_rank_is_used_by_none(rank, capturing, make_request):
    driver = AheadDriver(capturing.leader)
    decode(driver, make_request, 1)
    capturing.models[rank].unsteady = True  # a replay gives other logits, and exchanges them
    decode(driver, make_request, 2)
    capturing.end()
    assert sizes(capturing) == [[], []] and not capturing.leader.work_ahead()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_where_others_wait_ends_and_they_lose_it(rank, capturing, monkeypatch):
    def fail(batch, samples):
        raise torch.OutOfMemoryError("no room")

    programs = capturing.leader.replays.program, capturing.follower.replays.program
    monkeypatch.setattr(programs[rank], "compute", fail)
    with pytest.raises(PeerLostError if rank else OutOfStepError) as raised:
        programs[0].capture(CapturedSize(1, 1))
    capturing.groups[0]._group = None  # as its process does when it ends
    capturing.thread.join(30)
    found = [raised.value, *capturing.lost]
    assert isinstance(found[rank], OutOfStepError) and "no room" in str(found[rank])
    assert isinstance(found[1 - rank], PeerLostError)
    capturing.lost.clear()


def test_logits_are_gathered_for_rows_that_need_them(pair, make_driver, make_request):
    """Greedy rows take a value and an id of each rank."""
    sent, gather = [], pair.groups[0].gather

    def counted(part: torch.Tensor, columns: int) -> torch.Tensor:
        sent.append(part.nbytes)
        return gather(part, columns)

    pair.groups[0].parallel.gather = counted
    names = ["a", "b", "c", "drawn"]
    driver, plain = AheadDriver(pair.leader), make_driver()
    for each in (driver, plain):
        each.add(*(make_request(name, 9, temperature=0.0) for name in names[:3]))
        for _ in range(6):
            each.step(dict.fromkeys(names[:3], 64))
        if each is driver:
            assert set(sent) == {3 * 8}, "of three rows"
        each.add(make_request("drawn", 9, temperature=0.9, seed=3))
        for _ in range(6):
            each.step(dict.fromkeys(names, 64))
    driver.settle()
    pair.end()
    assert driver.tokens == plain.tokens
    assert set(sent) == {3 * 8, 4 * 8, VOCAB // 2 * 4}, "and the logits of one row"


def test_a_fault_of_one_request_parts_nobody(pair, make_driver, make_request):
    driver, plain = AheadDriver(pair.leader), make_driver()
    for each in (driver, plain):
        each.add(make_request("good", temperature=0.0))
        each.add(make_request("bad", prompt_token_ids=[1, POISON, 2], temperature=0.0))
        for _ in range(4):
            each.step({"good": 64, "bad": 64})
        each.free("bad")
        each.add(make_request("bad", temperature=0.0))
        for _ in range(3):
            each.step({"good": 64, "bad": 64})
    driver.settle()
    pair.end()
    assert driver.tokens == plain.tokens
    assert_same_caches(pair)
