"""A model on some hardware: what is planned, what is said, what would work instead."""

import json
import shlex
from dataclasses import replace

import pytest

from pagoda.base.errors import CheckpointError, ConfigError
from pagoda.cli.main import parse_command
from pagoda.config.engine import CacheConfig, ParallelConfig, SchedulerConfig
from pagoda.config.flags import engine_config
from pagoda.doctor.answer import answer
from pagoda.doctor.command import differences, serve_command
from pagoda.doctor.hardware import elsewhere
from pagoda.doctor.model_report import as_json, lines
from pagoda.doctor.remedies import remedies
from pagoda.doctor.users import Users, parse_users
from tests.unit.doctor.models import GIB, GPT_OSS, LLAMA, QWEN3_5, QWEN3_MOE, asked, box, subject_of


def test_a_config_alone_is_enough(tmp_path):
    subject = subject_of(tmp_path, LLAMA)
    made = answer(subject, box(), asked(subject))
    assert made.fits and subject.basis == "config.json alone"
    plan = made.resolution.plan
    assert plan.weights == 2 * 1_100_048_384 + 2 * 45 * 2048  # norms are fp32 on a CPU
    assert plan.kv_bytes_per_token == 22 * 2 * 4 * 64 * 2
    text = "\n".join(lines(made, [], False, 100))
    assert "It runs here:\n    pagoda serve" in text
    assert "2.05 GiB  estimate" in text


def test_quantization_is_read_from_the_config(tmp_path):
    subject = subject_of(tmp_path, GPT_OSS)
    plan = answer(subject, box(), asked(subject)).resolution.plan
    experts = 24 * 32 * 3 * 2880 * 2880
    assert experts * 17 / 32 < plan.weights < experts * 17 / 32 + 4 * GIB


def test_what_is_asked_for_stays_and_the_rest_has_a_reason(tmp_path):
    subject = subject_of(tmp_path, LLAMA)
    config = replace(asked(subject, max_model_len=4096), scheduler=SchedulerConfig(max_num_seqs=7))
    flags = {flag.name: flag for flag in answer(subject, box(), config).flags()}
    assert (flags["max_model_len"].value, flags["max_model_len"].asked) == (4096, True)
    assert (flags["max_num_seqs"].value, flags["max_num_seqs"].why) == (7, "as you ask")
    assert not flags["threads"].asked and "quota" in flags["threads"].why
    assert all(flag.why for flag in flags.values())


@pytest.mark.parametrize(
    "words",
    [
        "--max-model-len 4096 --no-enable-prefix-caching",
        "--kv-cache-memory-bytes 1G --served-model-name a b --max-num-seqs 3",
        '--limit-mm-per-prompt {"image":2} --kv-cache-dtype int8 --quantization int4 --tp 2',
    ],
)
def test_a_command_means_what_it_was_made_from(words):
    _, args = parse_command("doctor", ["m", *shlex.split(words.replace('"', '\\"'))])
    config = engine_config(args, plan_only=True)
    command = shlex.split(serve_command("m", config))
    assert command[:3] == ["pagoda", "serve", "m"]
    again = engine_config(parse_command("doctor", command[2:])[1], plan_only=True)
    assert again == config and differences(config)


@pytest.mark.parametrize(
    ("text", "count", "tokens"),
    [
        ("20 users x 8k", 20, 8000), ("20x8K", 20, 8192), ("1 request of 100 tokens", 1, 100),
        (" 3 streams × 1M ", 3, 1 << 20), ("4 users with 4096", 4, 4096),
    ],
)  # fmt: skip
def test_users_are_read(text, count, tokens):
    assert parse_users(text) == Users(count, tokens)


@pytest.mark.parametrize("text", ["", "many", "0 users x 8k", "20 users", "2 x 0", "2 x -1", "x"])
def test_other_words_for_users_are_refused(text):
    with pytest.raises(ConfigError, match="--for"):
        parse_users(text)


@pytest.mark.parametrize("config", [LLAMA, GPT_OSS, QWEN3_5], ids=["full", "windows", "states"])
def test_users_invert_consistently(tmp_path, config):
    subject, hardware = subject_of(tmp_path, config), box(96)
    found = answer(subject, hardware, asked(subject), users=Users(4, 8192)).users
    assert found.fits and found.most_users >= 4 and found.longest >= 8192

    def fits(count: int, tokens: int) -> bool:
        made = answer(subject, hardware, asked(subject), users=Users(count, tokens))
        # A step for so many requests takes more itself; the bound is of the same step.
        return made.users.fits

    config = replace(asked(subject), scheduler=SchedulerConfig(max_num_seqs=4))
    edge = answer(subject, hardware, config, users=Users(4, 8192)).users
    for count in (edge.most_users, edge.most_users + 1):
        made = answer(subject, hardware, config, users=Users(count, 8192))
        assert made.users.fits == (count == edge.most_users)
    for tokens in (edge.longest, edge.longest + 16):
        if tokens <= subject.spec.max_position:
            made = answer(subject, hardware, config, users=Users(4, tokens))
            assert made.users.fits == (tokens == edge.longest)
    assert not fits(100_000, 8192)


def test_users_get_a_pool_that_holds_them(tmp_path):
    subject = subject_of(tmp_path, LLAMA)
    made = answer(subject, box(64), asked(subject), users=Users(64, 16384))
    assert made.fits
    plan = made.resolution.plan
    assert plan.max_model_len == 16384
    assert plan.kv_tokens >= 64 * 16384
    assert made.resolution.config.scheduler.max_num_seqs == 64
    assert "--kv-cache-memory-bytes" in made.command  # more than the default on a CPU


def test_users_and_a_length_that_contradict_each_other(tmp_path):
    subject = subject_of(tmp_path, LLAMA)
    with pytest.raises(ConfigError, match="--max-model-len 4,096 allows less"):
        answer(subject, box(), asked(subject, max_model_len=4096), users=Users(2, 8000))


def test_what_does_not_fit_gets_commands_that_do(tmp_path):
    subject = subject_of(tmp_path, LLAMA)
    config = replace(
        asked(subject, max_model_len=32768), cache=CacheConfig(kv_cache_memory_bytes=GIB // 4)
    )
    made = answer(subject, box(), config)
    assert not made.fits and "lower --max-model-len" in made.problem
    found = remedies(made)
    assert found
    for remedy in found:
        _, args = parse_command("serve", shlex.split(remedy.command)[2:])
        assert answer(subject, box(), engine_config(args)).fits
    text = "\n".join(lines(made, found, False, 100))
    assert "It does not fit here." in text and found[0].command.split(" --")[0] in text


def test_too_large_for_a_cpu_is_rounded(tmp_path):
    subject = subject_of(tmp_path, QWEN3_MOE)
    made = answer(subject, box(48), asked(subject))
    assert not made.fits
    commands = [remedy.command for remedy in remedies(made)]
    assert any("--quantization int8" in command for command in commands)
    assert any("--quantization int4" in command for command in commands)


def test_several_gpus_are_taken_as_the_heads_allow(tmp_path):
    subject = subject_of(tmp_path, QWEN3_MOE)
    for gpus, size in (("3090x4", 4), ("3090x3", 2), ("3090x2", 2), ("a100-80g", 1)):
        made = answer(subject, elsewhere(gpus), asked(subject))
        parallel = made.config.parallel
        assert parallel.tensor_parallel_size == size, gpus
    config = replace(asked(subject), parallel=ParallelConfig(tensor_parallel_size=8))
    with pytest.raises(ConfigError, match="is 8 devices, and 4 are named by --gpu"):
        answer(subject, elsewhere("3090x4"), config)


def test_json_says_the_same(tmp_path):
    subject = subject_of(tmp_path, LLAMA)
    made = answer(subject, box(), asked(subject), users=Users(4, 8000))
    found = json.loads(json.dumps(as_json(made, [])))
    plan = made.resolution.plan
    assert found["fits"] is True
    assert found["memory_total"] == plan.total == sum(row["bytes"] for row in found["memory"])
    assert found["kv_tokens"] == plan.kv_tokens
    assert found["users"]["most_users"] >= 4
    assert {row["exactness"] for row in found["memory"]} == {"exact", "estimate"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hidden_size": None}, "hidden_size"), ({"hidden_size": -1}, "hidden_size"),
        ({"num_hidden_layers": 1 << 60}, "num_hidden_layers"), ({"vocab_size": "x"}, "vocab_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"rms_norm_eps": [1]}, "rms_norm_eps"), ({"architectures": []}, "architectures"),
        ({"max_position_embeddings": 1e300}, "max_position_embeddings"),
        ({"quantization_config": {"quant_method": 4}}, "quant_method"),
        ({"quantization_config": [1]}, "quantization_config"),
    ],
)  # fmt: skip
def test_a_broken_config_names_the_field(tmp_path, change, field):
    config = {key: value for key, value in (LLAMA | change).items() if value is not None}
    with pytest.raises(CheckpointError, match=field):
        subject_of(tmp_path, config)
