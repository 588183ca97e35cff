"""Whoever follows the events knows what the cache holds: which blocks, of which texts."""

import random

import pytest

from pagoda.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from pagoda.core.kvcache.block_hash import BlockHashes
from pagoda.core.messages import AddRequest, MediaItem
from pagoda.core.scheduler import Scheduler

from .fake_runner import Digests, FakeRunner, add_request, make_scheduler, run_all, run_step

SIZE = 4
TEXTS = [[(5 * text + 3 * i + i * i // 3) % 24 for i in range(40)] for text in range(6)]


class Router:
    """What it makes of the events: the tokens of each block, by memory, group and hash."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[str, int], dict[int, list[int]]] = {}
        self.parents: dict[int, int | None] = {}
        self.kinds: list[str] = []

    def hear(self, events: list[Event]) -> None:
        for event in events:
            self.kinds.append(type(event).__name__)
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
                continue
            held = self.blocks.setdefault((event.medium, event.group_idx), {})
            hashes = event.block_hashes
            if isinstance(event, BlockRemoved):
                for block_hash in hashes:
                    del held[block_hash]  # it was told of before
                continue
            assert len(event.token_ids) == SIZE * len(hashes) and event.block_size == SIZE
            assert len(event.extra_keys) == len(hashes)
            for place, block_hash in enumerate(hashes):
                assert block_hash not in held
                held[block_hash] = event.token_ids[SIZE * place : SIZE * place + SIZE]
                before = hashes[place - 1] if place else event.parent_block_hash
                assert self.parents.setdefault(block_hash, before) == before

    def text(self, block_hash: int | None) -> list[int]:
        """All tokens up to a block's last, of whatever was heard."""
        if block_hash is None:
            return []
        tokens = next(held[block_hash] for held in self.blocks.values() if block_hash in held)
        return self.text(self.parents[block_hash]) + tokens

    def held(self) -> dict[tuple[str, int], set[int]]:
        return {place: set(held) for place, held in self.blocks.items() if held}


def short(block_hash: bytes) -> int:
    """As vLLM has it: the hash as a number, of that the last 64 bits."""
    return int.from_bytes(block_hash, "big") & ((1 << 64) - 1)


def cached(scheduler: Scheduler) -> dict[tuple[str, int], set[int]]:
    found: dict[tuple[str, int], set[int]] = {}
    for medium, cache in (("GPU", scheduler.kv._cache), ("CPU", scheduler.kv.host._cache)):
        for group, hash_of in enumerate(cache.hash_of):
            if hash_of:
                found[medium, group] = set(map(short, hash_of.values()))
    return found


@pytest.mark.parametrize(
    "shape",
    [
        {"num_blocks": 30},
        {"num_blocks": 16, "num_host_blocks": 40},
        {"num_blocks": 24, "windows": (None, 6), "num_layers": (1, 5), "num_host_blocks": 9},
        {"num_blocks": 24, "windows": (None,), "num_states": 2},
    ],
)
def test_events_add_up_to_what_is_cached(shape):
    scheduler, runner = make_scheduler(max_model_len=64, **shape)
    events, router = scheduler.watch_cache(), Router()
    chance = random.Random(3)
    texts: dict[int, list[int]] = {}
    for turn in range(40):
        text = chance.choice(TEXTS)[: chance.randrange(5, 40)]
        add_request(scheduler, f"r{turn}", text, max_tokens=chance.randrange(1, 20))
        request = scheduler._requests[f"r{turn}"]
        for _ in range(chance.randrange(1, 8)):
            if scheduler.has_work():
                run_step(scheduler, runner)
        if chance.random() < 0.05:
            scheduler.reset_prefix_cache()
        router.hear(events.take())
        assert router.held() == cached(scheduler)
        tokens = request.token_ids
        names = BlockHashes(SIZE).extend(tokens, len(tokens) // SIZE)
        texts |= {short(name): tokens[: SIZE * end + SIZE] for end, name in enumerate(names)}
    run_all(scheduler, runner)
    router.hear(events.take())
    assert router.held() == cached(scheduler)
    assert {"CPU" in place for place in router.held()} == {False, "num_host_blocks" in shape}
    # Nothing is remembered of what is gone.
    assert events._places.keys() == set().union(
        *(hash_of.values() for hash_of in scheduler.kv._cache.hash_of),
        *(hash_of.values() for hash_of in scheduler.kv.host._cache.hash_of),
    )
    assert {"BlockStored", "BlockRemoved"} <= set(router.kinds)
    # Of a group that keeps all, each block leads back to the start of its text.
    whole = [
        name for name in router.blocks["GPU", 0]
        if name in texts and _is_there(router, router.parents[name])
    ]  # fmt: skip
    assert len(whole) > 3
    for name in whole:
        assert router.text(name) == texts[name]


def _is_there(router: Router, name: int | None) -> bool:
    while name is not None:
        if not any(name in held for held in router.blocks.values()):
            return False
        name = router.parents[name]
    return True


def ask(scheduler: Scheduler, runner: FakeRunner, name: str, **fields: object) -> None:
    add_request(scheduler, name, TEXTS[0][:13], max_tokens=1, **fields)
    run_all(scheduler, runner)


def test_a_prompt_is_one_event_and_told_once():
    scheduler, runner = make_scheduler()
    events = scheduler.watch_cache()
    assert events.take() == [AllBlocksCleared()]  # whatever an engine before this one had
    ask(scheduler, runner, "a")
    names = [short(name) for name in BlockHashes(SIZE).extend(TEXTS[0], 3)]
    assert events.take() == [
        BlockStored(
            names, None, TEXTS[0][:12], SIZE, None, "GPU", None, [None] * 3, 0, "full_attention"
        )
    ]
    ask(scheduler, runner, "b")
    assert events.take() == []


def test_what_is_needed_to_tell_blocks_apart_is_said():
    scheduler, runner = make_scheduler(windows=(None, 9))
    events = scheduler.watch_cache()
    events.take()
    item = MediaItem("picture", start=3, length=5, payload="")
    told = {}
    for name, fields in {
        "adapter": {"adapter": "digest", "adapter_name": "sql"},
        "nameless": {"adapter": "other"},
        "salt": {"cache_salt": "pepper"},
        "media": {"media": [item]},
    }.items():
        ask(scheduler, runner, name, **fields)
        told[name] = events.take()
    assert {event.group_idx for event in told["salt"]} == {0, 1}
    assert told["adapter"][0].lora_name == "sql" and told["adapter"][0].lora_id >= 0
    assert told["nameless"][0].lora_name == "other"
    assert told["salt"][0].extra_keys == [["pepper"], None, None]
    assert told["media"][0].extra_keys == [[("picture", 3)], [("picture", -1)], None]
    kinds = {
        event.group_idx: (event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window)
        for event in told["media"]
    }
    assert kinds == {0: ("full_attention", None), 1: ("sliding_window", 9)}


def test_a_reset_is_one_event_unless_blocks_are_in_use():
    scheduler, runner = make_scheduler()
    events, router = scheduler.watch_cache(), Router()
    ask(scheduler, runner, "a")
    add_request(scheduler, "b", TEXTS[1], max_tokens=9)
    run_step(scheduler, runner)
    router.hear(events.take())
    assert not scheduler.reset_prefix_cache()
    told = events.take()
    router.hear(told)
    assert [type(event) for event in told] == [BlockRemoved] and router.held() == cached(scheduler)
    run_all(scheduler, runner)
    assert scheduler.reset_prefix_cache()
    assert events.take() == [AllBlocksCleared()]
    ask(scheduler, runner, "c")
    (told,) = events.take()
    assert isinstance(told, BlockStored) and len(told.block_hashes) == 3


def test_blocks_from_disk_are_told_of_when_their_text_is_known():
    scheduler, runner = make_scheduler()
    events = scheduler.watch_cache()
    events.take()
    names = BlockHashes(SIZE).extend(TEXTS[0], 4)
    for name in names:
        assert scheduler.kv.adopt(0, name, b"") is not None
    assert events.take() == []
    request = list(TEXTS[0][:13])
    for index, name in enumerate(names[:3]):
        block = scheduler.kv._cache.block_of(0, name)
        for offset in range(SIZE):  # what the runner expects to find there
            runner.kv[0, block, offset] = _digest(request, index * SIZE + offset)
    ask(scheduler, runner, "a")
    (told,) = events.take()
    assert told.block_hashes == [short(name) for name in names[:3]]
    assert told.parent_block_hash is None and told.token_ids == request[:12]
    # The one that nobody asked for goes unheard.
    assert scheduler.reset_prefix_cache() and events.take() == [AllBlocksCleared()]


def _digest(tokens: list[int], position: int) -> bytes:
    return Digests(AddRequest(req_id="", prompt_token_ids=tokens)).of(tokens)[position]


def test_a_cache_that_nobody_watches_remembers_nothing():
    scheduler, runner = make_scheduler()
    ask(scheduler, runner, "a")
    assert scheduler.kv.watcher is None and scheduler.kv._cache.watcher is None
