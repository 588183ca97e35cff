"""What would fit instead: in which order, with how little changed, and that it does fit."""

import re
import shlex
from dataclasses import replace

import pytest

from pagoda.base.errors import CapacityError
from pagoda.cli.main import parse_command
from pagoda.config.engine import CacheConfig, EngineConfig, SchedulerConfig
from pagoda.config.flags import engine_config
from pagoda.doctor.answer import Answer, answer
from pagoda.doctor.machine.hardware import elsewhere
from pagoda.doctor.model_report import lines
from pagoda.doctor.remedies.condensed import condensed
from pagoda.doctor.remedies.search import Remedy, remedies
from pagoda.doctor.users import Users
from pagoda.planner.resolve import resolve
from pagoda.weights.checkpoint import TensorInfo
from tests.unit.doctor.models import GIB, LLAMA, QWEN3_MOE, asked, box, subject_of

LLAMA_8B = {
    **LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip


def read(remedy: Remedy) -> EngineConfig:
    """As `pagoda serve` reads the command."""
    _, args = parse_command("serve", shlex.split(remedy.command)[2:])
    return engine_config(args)


def holds(remedy: Remedy, made: Answer, users: Users | None = None) -> bool:
    config = read(remedy)
    size = config.parallel.tensor_parallel_size
    hardware = replace(made.hardware, count=max(size, made.hardware.count))
    return answer(made.subject, hardware, config, users=users).fits


def test_changes_are_combined_and_users_kept(tmp_path):
    subject = subject_of(tmp_path, LLAMA_8B)
    users = Users(20, 8000)
    made = answer(subject, box(24, 19), asked(subject), users=users)
    assert not made.fits
    found = remedies(made)
    assert found and all(holds(remedy, made, users) for remedy in found)
    config = read(found[0])
    assert (config.model.quantization, config.cache.kv_cache_dtype) == ("int4", "int8")
    assert (config.scheduler.max_num_seqs, config.model.max_model_len) == (20, 8000)


def test_smaller_steps_come_before_fewer_users(tmp_path):
    subject, hardware = subject_of(tmp_path, LLAMA_8B), elsewhere("A100-80G")
    fits = answer(subject, hardware, asked(subject), users=Users(400, 1000)).users.most_users
    users = Users(fits + 1, 1000)
    made = answer(subject, hardware, asked(subject), users=users)
    assert not made.fits
    found = remedies(made)
    assert found[0].words.startswith("steps of ")
    assert read(found[0]).scheduler.max_num_batched_tokens < 2048
    for remedy in found:
        assert read(remedy).scheduler.max_num_seqs == users.count, remedy
        assert "users" not in remedy.words and holds(remedy, made, users)


def test_fewer_users_where_nothing_keeps_them(tmp_path):
    subject = subject_of(tmp_path, LLAMA_8B)
    made = answer(subject, elsewhere("H100"), asked(subject), users=Users(2000, 32000))
    first, *rest = remedies(made)
    count = read(first).scheduler.max_num_seqs
    assert first.words == f"up to {count} users of 32,000 tokens" and count > 4
    assert holds(first, made, Users(count, 32000))
    assert not answer(subject, made.hardware, asked(subject), users=Users(count + 2, 32000)).fits
    assert any(read(remedy).scheduler.max_num_seqs >= 2 * count for remedy in rest)


@pytest.mark.parametrize(
    ("section", "flags", "hardware", "words"),
    [
        ("cache", {"gpu_memory_utilization": 0.01}, box(24, 19), "--gpu-memory-utilization"),
        ("model", {"dtype": "float32"}, box(24, 19), "--dtype left out"),
        ("cache", {"kv_cache_memory_bytes": 1 << 20}, box(24, 19), "--kv-cache-memory-bytes"),
        ("scheduler", {"max_num_batched_tokens": 65536}, elsewhere("3090"), "--max-num-batched"),
        ("cache", {"num_gpu_blocks_override": 1}, box(24, 19), "--num-gpu-blocks-override"),
    ],
)  # fmt: skip
def test_the_flag_that_is_too_much_is_named(tmp_path, section, flags, hardware, words):
    subject = subject_of(tmp_path, LLAMA_8B)
    config = asked(subject)
    config = replace(config, **{section: replace(getattr(config, section), **flags)})
    made = answer(subject, hardware, config)
    assert not made.fits
    found = remedies(made)
    assert any(words in remedy.words for remedy in found)
    assert all(holds(remedy, made) for remedy in found)


def test_more_devices_come_with_steps_that_fit(tmp_path):
    subject = subject_of(tmp_path, QWEN3_MOE)
    config = replace(asked(subject), scheduler=SchedulerConfig(max_num_batched_tokens=30000))
    made = answer(subject, elsewhere("3090x2"), config)
    assert not made.fits
    four = next(r for r in remedies(made) if "4 of these devices" in r.words)
    assert holds(four, made)
    assert read(four).scheduler.max_num_batched_tokens == 30000 or "left out" in four.words


def test_a_short_context_comes_with_a_longer_one(tmp_path):
    tight = replace(elsewhere("3090"), facts=replace(elsewhere("3090").facts, free_memory=18 * GIB))
    subject = subject_of(tmp_path, LLAMA_8B)
    made = answer(subject, tight, asked(subject))
    assert made.fits
    (longer,) = remedies(made)
    again = answer(subject, tight, read(longer)).resolution.plan.max_model_len
    assert again >= 2 * made.resolution.plan.max_model_len
    assert f"{again:,} tokens" in longer.words
    assert longer.command in "\n".join(lines(made, [longer], False, 100))
    roomy = answer(subject, elsewhere("H100"), asked(subject))
    assert remedies(roomy) == []


def test_a_length_that_fits_is_none_that_the_error_forbids(tmp_path):
    """Free memory is read again after a failure, and there may be more of it then."""
    subject = subject_of(tmp_path, LLAMA_8B)
    config = asked(subject, max_model_len=131072)
    with pytest.raises(CapacityError) as error:
        resolve(config, subject.spec, subject.tensors, box(24, 19).facts)
    most = int(str(error.value).split("at most ")[1].split(", or")[0].replace(",", ""))
    made = answer(subject, box(24, 19.1), config)
    shorter = next(r for r in remedies(made) if "instead of" in r.words and "with" not in r.words)
    assert most / 2 < read(shorter).model.max_model_len <= most


def test_nothing_helps(tmp_path):
    subject = subject_of(tmp_path, {**LLAMA, "quantization_config": {
        "quant_method": "fp8", "weight_block_size": [128, 128]}})  # fmt: skip
    made = answer(subject, box(1.5), asked(subject))
    assert remedies(made) == []
    assert "No flags of this model would fit" in "\n".join(lines(made, [], False, 300))


def test_alike_experts_are_planned_as_one(tmp_path):
    subject = subject_of(tmp_path, QWEN3_MOE)
    tensors = {
        name: TensorInfo(name, (768, 2048), "BF16", 2 * 768 * 2048)
        if ".experts." in name else info
        for name, info in subject.tensors.items()
    }  # fmt: skip
    subject = replace(subject, tensors=tensors)
    few = condensed(subject)
    assert len(few.tensors) < len(tensors) / 20
    for method in ("none", "int4"):
        config = asked(subject, quantization=method)
        for hardware in (box(256), elsewhere("H100x4")):
            plan = answer(subject, hardware, config).resolution.plan
            assert answer(few, hardware, config).resolution.plan == plan


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({}, r"a KV cache of [\d.]+ MiB for contexts of [\d,]+ tokens"),
        (
            {"max_model_len": 30000},
            r"a context of [\d,]+ tokens instead of 30,000, with a KV cache",
        ),
    ],
)
def test_a_small_cache_fits_where_the_reserve_does_not(tmp_path, flags, words):
    """Half a GiB is kept free by default, not beside a cache whose size is asked for."""
    subject = subject_of(tmp_path, LLAMA)
    plain = box(packed=False)
    taken = answer(subject, plain, asked(subject, max_model_len=512)).resolution.plan
    tight = (taken.total - taken.kv_pool) / GIB + 0.25
    made = answer(subject, box(tight, packed=False), asked(subject, **flags))
    assert not made.fits
    (first, *rest) = remedies(made)
    assert re.match(words, first.words)
    assert all(holds(remedy, made) for remedy in (first, *rest))
    assert read(first).cache.kv_cache_memory_bytes >= 64 << 20
    tighter = box(tight - 0.5, packed=False)
    assert remedies(answer(subject, tighter, asked(subject, **flags))) == []


def test_a_small_cache_holds_fewer_users(tmp_path):
    subject, users = subject_of(tmp_path, LLAMA), Users(50, 2048)
    made = answer(subject, box(2.9, packed=False), asked(subject), users=users)
    assert not made.fits
    first = remedies(made)[0]
    count = read(first).scheduler.max_num_seqs
    assert 1 <= count < 50 and holds(first, made, Users(count, 2048))


@pytest.mark.parametrize(
    ("section", "flags", "hardware"),
    [
        ("scheduler", {"max_num_seqs": 10_000_000}, box(24, 19)),
        ("scheduler", {"max_num_seqs": 10_000_000}, elsewhere("3090")),
        ("scheduler", {"max_num_seqs": 9_000_000, "max_num_batched_tokens": 9_000_000}, box(24)),
        ("cache", {"block_size": 1024, "kv_cache_memory_bytes": 1 << 20}, box(24)),
        ("parallel", {"tensor_parallel_size": 16}, box(8)),
    ],
)  # fmt: skip
def test_any_flag_is_left_out_that_is_too_much(tmp_path, section, flags, hardware):
    subject = subject_of(tmp_path, LLAMA)
    config = asked(subject)
    made = answer(subject, hardware, replace(config, **{section: replace(
        getattr(config, section), **flags)}))  # fmt: skip
    assert not made.fits
    found = remedies(made)
    assert any("left out" in remedy.words for remedy in found)
    assert all(holds(remedy, made) for remedy in found)


def test_a_flag_that_takes_little_stays(tmp_path):
    subject = subject_of(tmp_path, LLAMA)
    scheduler = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=8)
    cache = CacheConfig(kv_cache_memory_bytes=1 << 16)
    made = answer(subject, box(), replace(asked(subject), scheduler=scheduler, cache=cache))
    assert not made.fits
    for remedy in remedies(made):
        assert read(remedy).scheduler == scheduler
