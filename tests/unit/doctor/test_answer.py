"""A model on some hardware: what is planned, what is said, what would work instead."""

import json
import shlex
from dataclasses import replace

import pytest

from pagoda.base.errors import CheckpointError, ConfigError
from pagoda.base.units import format_bytes, parse_size
from pagoda.cli.main import main, parse_command
from pagoda.config.engine import CacheConfig, DeviceConfig, ParallelConfig, SchedulerConfig
from pagoda.config.flags import engine_config
from pagoda.config.nodes import NodesConfig
from pagoda.doctor.answer import answer
from pagoda.doctor.command import differences, serve_command
from pagoda.doctor.machine.hardware import elsewhere
from pagoda.doctor.model_report import as_json, lines
from pagoda.doctor.remedies.search import remedies
from pagoda.doctor.streaming import streams
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
    assert "It runs here once its files are there:\n    pagoda serve" in text
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


@pytest.mark.parametrize(
    "text",
    ["", "many", "0 users x 8k", "20 users", "2 x 0", "2 x -1", "x", "1000000000000 users x 8k",
     "2 users x 9999999999999", f"{'9' * 5000} users x 8k"],
)  # fmt: skip
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
    many = answer(subject, hardware, asked(subject), users=Users(1_000_000, 8192)).users
    assert not many.fits and many.needed > edge.needed  # steps for so many take too much alone
    assert fits(min(many.most_users, edge.most_users), 8192) and many.most_users > 0


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


def test_a_pool_beyond_memory_does_not_fit(tmp_path):
    subject = subject_of(tmp_path, LLAMA)
    config = replace(asked(subject), cache=CacheConfig(kv_cache_memory_bytes=30 * GIB))
    for hardware in (box(24, 19), elsewhere("3090")):
        made = answer(subject, hardware, config)
        assert not made.fits and "30.00 GiB of KV cache" in made.problem
        advised = made.problem.partition("to at most ")[2].partition(",")[0]
        cache = CacheConfig(kv_cache_memory_bytes=parse_size(advised))
        assert answer(subject, hardware, replace(config, cache=cache)).fits


def test_a_limit_of_addresses_gets_a_command_that_lifts_it(tmp_path):
    subject = replace(subject_of(tmp_path, LLAMA), file_bytes=2 * GIB)
    config = replace(asked(subject), cache=CacheConfig(kv_cache_memory_bytes=GIB))
    total = answer(subject, box(), config).resolution.plan.total
    for space, fits in ((total + 2 * GIB, False), (total + 3 * GIB, True)):
        made = answer(subject, replace(box(), address_space=space), config)
        assert made.fits == fits
        found = remedies(made)
        assert fits or found[-1].command == f"ulimit -v unlimited && {made.command}"
        # Or fewer of them are taken.
        for remedy in found[:-1]:
            _, args = parse_command("serve", shlex.split(remedy.command)[2:])
            assert answer(subject, made.hardware, engine_config(args)).fits
        assert fits or found[0].words.startswith("a KV cache of ")


def test_too_large_for_a_cpu_is_rounded(tmp_path):
    subject = subject_of(tmp_path, QWEN3_MOE)
    made = answer(subject, box(48), asked(subject))
    assert streams(made)
    commands = [remedy.command for remedy in remedies(made)]
    assert any("--quantization int8" in command for command in commands)
    assert any("--quantization int4" in command for command in commands)
    assert "It would be all in memory with weights rounded to 8.5 bits:" in lines(
        made, remedies(made), False, 200
    )


def test_several_gpus_are_taken_as_the_heads_allow(tmp_path):
    subject = subject_of(tmp_path, QWEN3_MOE)
    for gpus, size in (("3090x4", 4), ("3090x3", 2), ("3090x2", 2), ("a100-80g", 1)):
        made = answer(subject, elsewhere(gpus), asked(subject))
        parallel = made.config.parallel
        assert parallel.tensor_parallel_size == size, gpus
    config = replace(asked(subject), parallel=ParallelConfig(tensor_parallel_size=8))
    with pytest.raises(ConfigError, match="is 8 devices, and 4 are named by --gpu.*--gpu 3090x8"):
        answer(subject, elsewhere("3090x4"), config)


def test_a_gpu_without_a_number_is_as_many_as_are_asked_for(tmp_path, capsys):
    subject_of(tmp_path, QWEN3_MOE)
    words = ["doctor", str(tmp_path), "--json", "--tp", "2", "--max-model-len", "4096"]
    assert main([*words, "--gpu", "a100-80g"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["hardware"]["count"] == 2 and "--tensor-parallel-size 2" in said["command"]
    assert not said["findings"] or "idle" not in str(said["findings"])


def test_processes_share_a_cpu(tmp_path):
    subject = subject_of(tmp_path, LLAMA)
    config = replace(asked(subject), parallel=ParallelConfig(tensor_parallel_size=4))
    shared, alone = answer(subject, box(24), config), answer(subject, box(6), asked(subject))
    assert shared.fits and "--tensor-parallel-size 4" in shared.command
    plan = shared.resolution.plan
    assert plan.total <= 6 * GIB and plan.weights < alone.resolution.plan.weights / 2
    assert any("4 processes share" in note.text for note in shared.findings)
    assert not answer(subject, box(4), config).fits  # a GiB for each


def test_one_of_several_machines_is_planned(tmp_path):
    subject = subject_of(tmp_path, LLAMA)
    config = replace(asked(subject), parallel=ParallelConfig(tensor_parallel_size=4))
    one, config = config, replace(config, nodes=NodesConfig(2))
    made, same = answer(subject, box(12), config), answer(subject, box(24), one)
    assert made.fits and "--nnodes 2" in made.command
    assert made.resolution.plan.total == same.resolution.plan.total
    assert not answer(subject, box(2), config).fits  # a GiB for each
    (note,) = (note for note in made.findings if note.topic == "nodes")
    assert note.text == "planned for 2 machines with this memory each" and "--gpu" in note.fix
    assert not [note for note in same.findings if note.topic == "nodes"]
    with pytest.raises(ConfigError, match="2 devices on each of 2 machines, and 1 are named"):
        answer(subject, elsewhere("3090"), config)


def test_engines_share_a_cpu_and_each_has_all_weights(tmp_path):
    subject = subject_of(tmp_path, LLAMA)
    config = replace(asked(subject), parallel=ParallelConfig(data_parallel_size=4))
    shared, alone = answer(subject, box(24), config), answer(subject, box(6), asked(subject))
    assert shared.fits and "--data-parallel-size 4" in shared.command
    plan = shared.resolution.plan
    assert plan.total <= 6 * GIB and plan.weights == alone.resolution.plan.weights
    assert shared.resolution.config.device.threads == alone.resolution.config.device.threads // 4
    (note,) = (note for note in shared.findings if note.topic == "devices")
    assert "4 processes share" in note.text and "own copy of the weights" in note.text
    assert not answer(subject, box(4), config).fits  # a GiB for each
    said = lines(shared, (), False, 100)
    assert "memory per engine" in said and any("room in each engine" in line for line in said)
    assert f"  4 engines     {format_bytes(4 * plan.total):>12}" in said


def test_users_are_dealt_out_among_engines(tmp_path):
    subject = subject_of(tmp_path, LLAMA)
    config = replace(asked(subject), parallel=ParallelConfig(data_parallel_size=2))
    one = answer(subject, box(6), asked(subject), Users(5, 4096)).users
    two = answer(subject, box(12), config, Users(9, 4096)).users
    assert two.fits and two.users.count == 9
    assert (two.needed, two.most_users) == (2 * one.needed, 2 * one.most_users)
    assert two.longest == one.longest


def test_engines_have_gpus_of_their_own(tmp_path):
    subject = subject_of(tmp_path, LLAMA)

    def on(gpus, size, ranks=1):
        parallel = ParallelConfig(ranks, data_parallel_size=size)
        return answer(subject, elsewhere(gpus), replace(asked(subject), parallel=parallel))

    made, alone = on("3090x4", 2), answer(subject, elsewhere("3090"), asked(subject))
    assert made.resolution.plan.total == alone.resolution.plan.total
    (note,) = (note for note in made.findings if note.topic == "devices")
    assert note.text.startswith("2 of 4 GPUs stay idle") and "-size 4 uses more" in note.fix
    (note,) = (n for n in on("3090x5", 2, ranks=2).findings if n.topic == "devices")
    assert "too few for another engine" in note.fix
    with pytest.raises(ConfigError, match="--data-parallel-size 3 times .* is 6 devices, and 4"):
        on("3090x4", 3, ranks=2)


def test_layers_are_spread_over_stages(tmp_path, capsys):
    subject_of(tmp_path, LLAMA)
    words, plans = ["doctor", str(tmp_path), "--json"], []
    for stages in (1, 2):
        gpus = f"3090x{stages}"
        assert main([*words, "--gpu", gpus, "--pipeline-parallel-size", str(stages)]) == 0
        plans.append(json.loads(capsys.readouterr().out))
    weights = [
        next(row["bytes"] for row in plan["memory"] if row["item"] == "weights") for plan in plans
    ]
    assert weights[0] / 2 <= weights[1] < 0.7 * weights[0]
    assert main([*words, "--gpu", "3090x2", "--pipeline-parallel-size", "3"]) == 1
    assert "is 3 devices, and 2 are named" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpus", "size", "words"),
    [
        ("3090x3", 1, "1 of 3 GPUs stays idle: The model's heads and experts can be split over 2"),
        ("h100x4", 2, "2 of 4 GPUs stay idle: --tensor-parallel-size 4 uses 4 of them."),
        ("3090x4", 1, ""),
        ("h100x4", 1, ""),
    ],
)
def test_gpus_that_stay_idle_are_named(tmp_path, gpus, size, words):
    assert_idle(subject_of(tmp_path, QWEN3_MOE), gpus, size, words)


def test_a_second_gpu_that_would_be_slower_stays_idle(tmp_path):
    words = "1 of 2 GPUs stays idle: More of them would be slower"
    assert_idle(subject_of(tmp_path, LLAMA), "h100x2", 1, words)


def assert_idle(subject, gpus, size, words):
    config = replace(asked(subject), parallel=ParallelConfig(tensor_parallel_size=size))
    said = [
        f"{note.text}: {note.fix}" for note in answer(subject, elsewhere(gpus), config).findings
    ]
    assert [line for line in said if "idle" in line and words in line] == [
        line for line in said if "idle" in line
    ]
    assert any("idle" in line for line in said) == bool(words)


def test_threads_beyond_the_cores_are_said(tmp_path):
    subject = subject_of(tmp_path, LLAMA)
    for threads, said in ((64, True), (8, False)):
        config = replace(asked(subject), device=DeviceConfig(threads=threads))
        notes = [note.text for note in answer(subject, box(), config).findings]
        assert any(f"--threads {threads} on 8" in text for text in notes) == said


def test_a_length_beyond_the_model_is_said(tmp_path):
    subject = subject_of(tmp_path, LLAMA)  # 32,768 tokens
    for made in (
        answer(subject, box(), asked(subject, max_model_len=40_000)),
        answer(subject, box(96), asked(subject), users=Users(2, 40_000)),
    ):
        assert made.fits
        assert any("40,000 tokens are beyond the 32,768" in note.text for note in made.findings)
        assert [flag.name for flag in made.flags()].count("max_model_len") == 1
    assert made.users.longest >= 40_000
    made = answer(subject, box(96), asked(subject), users=Users(2, 8000))
    assert made.users.longest == 32_768  # no further than the model


def test_what_is_not_here_yet_is_said(tmp_path):
    def missing() -> str:
        subject = subject_of(tmp_path, LLAMA)
        return " ".join(note.text for note in answer(subject, box(), asked(subject)).findings)

    assert "the weights and tokenizer.json" in missing()
    shards = {"a": "model-00002-of-00002.safetensors", "b": "model-00001-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert "model-00001-of-00002.safetensors" in missing()
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "tokenizer" not in missing()


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
