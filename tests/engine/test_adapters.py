"""Adapters in an engine: many in one batch, in its cache, its slots, its ranks and its drafts."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pagoda.base.errors import ConfigError
from pagoda.config.adapters import AdapterConfig
from pagoda.config.engine import ParallelConfig
from pagoda.core.messages import AddRequest, Utility
from pagoda.core.sampling import SamplingParams
from pagoda.engine.core import EngineCore
from pagoda.engine.startup import start_engine
from tests.engine.running import run, tokens
from tests.engine.test_ranks import config_of, expected
from tests.models import tiny, tiny_gguf
from tests.models.tiny_adapter import TinyAdapter
from tests.models.tiny_expert_adapter import TinyExpertAdapter

COUNT = 20
PROMPT = tiny.random_ids(40, seed=3)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model, three adapters, and the folders that they lie in."""
    folder = tmp_path_factory.mktemp("adapters")
    reference = tiny.make("llama")
    reference.save_pretrained(folder / "model")
    adapters = [TinyAdapter(reference, rank=4, alpha=16.0, seed=i) for i in range(3)]
    for index, adapter in enumerate(adapters):
        adapter.save_peft(folder / str(index))
    return reference, adapters, folder


def start(
    folder: Path, ranks: int = 1, model: str = "model", stages: int = 1, **adapters
) -> EngineCore:
    config = config_of(folder / model, ranks * stages)
    config = replace(config, parallel=ParallelConfig(ranks, stages))
    config = replace(config, adapters=AdapterConfig(**{"enable_lora": True, **adapters}))
    return start_engine(config, lambda message: None)[0]


def request(req_id: str, adapter: str | None, parts=(), prompt=PROMPT) -> AddRequest:
    sampling = SamplingParams(max_tokens=COUNT, temperature=0.0, ignore_eos=True)
    return AddRequest(
        req_id=req_id, prompt_token_ids=prompt, sampling=sampling, adapter=adapter,
        adapter_parts=list(parts),
    )  # fmt: skip


def call(core: EngineCore, method: str, *args: str):
    result = core.handle(Utility(1, method, list(args)))
    assert result is not None
    return result


def load(core: EngineCore, path: Path) -> str:
    result = call(core, "load_adapter", str(path))
    assert result.error is None, result.error
    identity: str = result.result["identity"]
    return identity


@pytest.mark.parametrize(("ranks", "stages"), [(1, 1), (2, 1), (1, 2)])
def test_requests_of_one_batch_have_adapters_of_their_own(ranks, stages, made):
    reference, adapters, folder = made
    core = start(folder, ranks, stages=stages)
    identities = [load(core, folder / str(index)) for index in range(2)]
    parts = [(identities[0], 0.5), (identities[1], 2.0)]
    deltas = run(
        core,
        request("plain", None), request("0", identities[0]), request("1", identities[1]),
        request("sum", "a sum", parts), request("again", identities[0], prompt=PROMPT[:30]),
    )  # fmt: skip
    first, second, _ = adapters
    both = second.merged_into(first.merged_into(reference, 0.5), 2.0)
    assert tokens(deltas["plain"]) == expected(reference, PROMPT)
    assert tokens(deltas["0"]) == expected(first.merged_into(reference), PROMPT)
    assert tokens(deltas["1"]) == expected(second.merged_into(reference), PROMPT)
    assert tokens(deltas["sum"]) == expected(both, PROMPT)
    assert tokens(deltas["again"]) == expected(first.merged_into(reference), PROMPT[:30])
    assert len({tuple(tokens(deltas[name])) for name in ("plain", "0", "1", "sum")}) == 4
    core.shutdown()


def test_prefixes_are_those_of_an_adapter(made):
    _, _, folder = made
    core = start(folder)
    first, second = (load(core, folder / str(index)) for index in range(2))
    cached = {}
    for name, adapter in (("a", first), ("b", second), ("none", None), ("c", first)):
        deltas = run(core, request(name, adapter))[name]
        cached[name] = next(d.num_cached_tokens for d in deltas if d.num_cached_tokens is not None)
    assert cached == {"a": 0, "b": 0, "none": 0, "c": 32}
    core.shutdown()


def test_slots(made):
    reference, adapters, folder = made
    core = start(folder, max_loras=2)
    first, second = (load(core, folder / str(index)) for index in range(2))
    full = call(core, "load_adapter", str(folder / "2"))
    assert "All 2 adapters of --max-loras are in use" in (full.error or "")
    # A request that is inside keeps what is unloaded; others no longer get it.
    core.handle(request("running", first))
    core.step()
    assert call(core, "unload_adapter", first).error is None
    assert "in use" in (call(core, "load_adapter", str(folder / "2")).error or "")
    core.handle(request("late", first))
    ended = {}
    while core.has_work():
        ended |= {delta.req_id: delta for delta in core.step() if delta.finish_reason}
    assert ended["running"].finish_reason == "length"
    assert ended["late"].bad_request and "is not loaded" in (ended["late"].error or "")
    third = load(core, folder / "2")
    deltas = run(core, request("third", third), request("second", second))
    assert tokens(deltas["third"]) == expected(adapters[2].merged_into(reference), PROMPT)
    assert tokens(deltas["second"]) == expected(adapters[1].merged_into(reference), PROMPT)
    assert "not loaded" in (call(core, "unload_adapter", first).error or "")
    core.shutdown()


def test_sums_take_slots_that_are_free_and_leave_when_one_is_needed(made):
    reference, adapters, folder = made
    core = start(folder, max_loras=2)
    first = load(core, folder / "0")
    for scale in (0.5, 2.0, -1.0):
        deltas = run(core, request("sum", f"sum {scale}", [(first, scale)]))
        merged = adapters[0].merged_into(reference, scale)
        assert tokens(deltas["sum"]) == expected(merged, PROMPT)
    load(core, folder / "1")
    refused = run(core, request("late", "another", [(first, 3.0)]))["late"][-1]
    assert refused.bad_request and "--max-loras" in (refused.error or "")
    core.shutdown()


def test_ranks_add_up_to_the_limit(made):
    core = start(made[2], max_lora_rank=6)
    first, second = (load(core, made[2] / str(index)) for index in range(2))
    refused = run(core, request("r", "sum", [(first, 1.0), (second, 1.0)]))["r"][-1]
    assert refused.bad_request and "--max-lora-rank 8" in (refused.error or "")
    core.shutdown()


def test_a_changed_file_is_not_what_was_loaded(made, tmp_path):
    core = start(made[2])
    made[1][0].save_peft(tmp_path)
    identity = load(core, tmp_path)
    made[1][1].save_peft(tmp_path)
    changed = call(core, "load_adapter", str(tmp_path), identity)
    assert "has changed since" in (changed.error or "")
    core.shutdown()


def test_flags_name_adapters(made):
    folder = made[2]
    config = replace(
        config_of(folder / "model"),
        adapters=AdapterConfig(lora_modules=(f"one={folder / '0'}",), lora=(str(folder / "1"),)),
    )
    core, ready = start_engine(config, lambda message: None)
    assert [(each.path, each.rank) for each in ready.adapters] == [
        (str(folder / "0"), 4), (str(folder / "1"), 4),
    ]  # fmt: skip
    assert ready.max_loras == 6
    row = next(row for row in ready.ledger if row["name"] == "adapters")
    assert row["predicted"] > 0
    reply = run(core, request("r", ready.adapters[0].identity))["r"]
    assert tokens(reply) == expected(made[1][0].merged_into(made[0]), PROMPT)
    core.shutdown()


def test_flags_that_do_not_go_together(made):
    folder = made[2]
    words = [f"{index}={folder / str(index)}" for index in range(3)]
    with pytest.raises(ConfigError, match="--max-loras 2 is less than the 3 adapters"):
        start(folder, lora_modules=tuple(words), max_loras=2)
    with pytest.raises(ConfigError, match="rank 4, above --max-lora-rank 3"):
        start(folder, lora_modules=tuple(words), max_lora_rank=3)


def test_without_room_a_request_is_refused(made):
    config = config_of(made[2] / "model")
    core = start_engine(config, lambda message: None)[0]
    assert run(core, request("r", "unknown"))["r"][-1].bad_request
    assert "--enable-lora" in (call(core, "load_adapter", "/x").error or "")
    core.shutdown()


@pytest.mark.parametrize("storage", ["F32", "Q4_1"])
def test_beside_native_kernels_a_recorded_step_has_them(storage, made, tmp_path):
    """The bits of a request do not depend on what shares its batch."""
    _, adapters, folder = made
    reference = tiny.make("llama")
    path = tmp_path / "model.gguf"
    tiny_gguf.write(path, reference, lambda name: tiny_gguf.Storage[storage])
    config = config_of(path, dtype="auto")
    config = replace(config, adapters=AdapterConfig(enable_lora=True))
    core = start_engine(config, lambda message: None)[0]
    identities = [load(core, folder / str(index)) for index in range(3)]
    asked = [salted(str(i), adapter) for i, adapter in enumerate([None, *identities])]
    together = run(core, *asked)
    for i, one in enumerate(asked):
        alone = run(core, salted(f"alone {i}", one.adapter))[f"alone {i}"]
        assert [d.logprobs for d in alone] == [d.logprobs for d in together[one.req_id]]
    if storage == "F32":  # others round activations, too
        replies = [tokens(together[one.req_id]) for one in asked]
        merged = [adapter.merged_into(reference) for adapter in adapters]
        assert replies == [expected(model, PROMPT) for model in (reference, *merged)]
    core.shutdown()


def salted(req_id: str, adapter: str | None) -> AddRequest:
    """It shares no prefix."""
    made = request(req_id, adapter)
    sampling = msgspec.structs.replace(made.sampling, logprobs=1)
    return msgspec.structs.replace(made, sampling=sampling, cache_salt=req_id)


@pytest.mark.parametrize("named", [False, True])
def test_experts(named, tmp_path):
    """In recorded steps; flags that name one make room, and so does --lora-experts."""
    reference = tiny.make("qwen3_moe", **tiny.QWEN3_MOE)
    reference.save_pretrained(tmp_path / "model")
    adapters = [TinyExpertAdapter(reference, seed=seed) for seed in range(2)]
    paths = [each.save_folded(tmp_path / str(i)) for i, each in enumerate(adapters)]
    flags = {"lora_modules": (f"a={paths[0]}",)} if named else {"lora_experts": True}
    config = replace(config_of(tmp_path / "model", dtype="auto"), adapters=AdapterConfig(
        **{"enable_lora": True, **flags}
    ))  # fmt: skip
    core = start_engine(config, lambda message: None)[0]
    first, second = (load(core, path) for path in paths)
    names = {"plain": None, "first": first, "second": second}
    deltas = run(core, *(request(name, adapter) for name, adapter in names.items()))
    assert tokens(deltas["plain"]) == expected(reference, PROMPT)
    assert tokens(deltas["first"]) == expected(adapters[0].merged_into(reference), PROMPT)
    assert tokens(deltas["second"]) == expected(adapters[1].merged_into(reference), PROMPT)
    assert call(core, "unload_adapter", first).error is None
    assert tokens(run(core, request("left", second))["left"]) == tokens(deltas["second"])
    core.shutdown()
