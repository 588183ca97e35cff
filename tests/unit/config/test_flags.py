"""Flags generated from the config dataclasses."""

import argparse
import dataclasses
import re

import pytest

from pagoda.base.errors import ConfigError
from pagoda.config import flags
from pagoda.config.engine import CacheConfig, EngineConfig, ModelConfig, ParallelConfig
from pagoda.config.parser import FlagParser, normalise
from pagoda.config.server import ServerConfig, configured_keys


def make_parser() -> FlagParser:
    parser = FlagParser(prog="pagoda serve", usage="pagoda serve [MODEL]")
    flags.add_engine_flags(parser)
    flags.add_flags(parser, ServerConfig)
    return parser


def parse(line: str) -> argparse.Namespace:
    return make_parser().parse_args(line.split())


def engine(line: str) -> EngineConfig:
    return flags.engine_config(parse(line))


def server(line: str) -> ServerConfig:
    return flags.from_namespace(ServerConfig, parse(line))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("2048", 2048),
        ("256K", 262_144),
        ("32k", 32_000),
        ("1M", 1_048_576),
        ("1.5k", 1500),
        ("auto", "auto"),
        ("-1", "auto"),
    ],
)
def test_lengths_are_read_as_vllm_reads_them(text, tokens):
    assert engine(f"--max-model-len {text}").model.max_model_len == tokens
    assert engine(f"--max-model-len={text}").model.max_model_len == tokens


def test_no_flag_is_the_default_config():
    assert engine("") == EngineConfig()
    assert server("") == ServerConfig()


@pytest.mark.parametrize("line", ["./m", "--model ./m", "-m ./m", "--model=./m", "./m -m ./m"])
def test_the_model_is_positional_or_a_flag(line):
    assert engine(line).model.model == "./m"


@pytest.mark.parametrize("flag", ["-mmproj", "-max-model-len", "-max_model_len", "-ctx-size"])
def test_a_long_flag_may_have_one_dash(flag):
    for words in ([flag, "9"], [f"{flag}=9"]):
        model = flags.engine_config(make_parser().parse_args(["./m", *words])).model
        assert model.model == "./m"
        assert "9" in (model.mmproj, str(model.max_model_len))


def test_a_short_flag_of_several_letters_is_no_long_one():
    assert engine("-tp 2 -mm x").parallel.tensor_parallel_size == 2


def test_a_context_of_0_is_the_models_own():
    assert engine("-c 0").model.max_model_len is None


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("-mmprj x", "unknown flag -mmprj; did you mean --mmproj?"),
        ("-m x -z hi", "unknown flag -z."),
        ("-m x -po 80", "unknown flag -po; did you mean --port?"),
        ("-mmodel.gguf", "unknown flag -mmodel.gguf"),
    ],
)
def test_no_beginning_of_a_flag_stands_for_it(line, answer, capsys):
    """argparse would take `-mmprj x` for `--model mprj`."""
    with pytest.raises(SystemExit):
        parse(line)
    assert answer in capsys.readouterr().err


def test_two_different_models_are_refused():
    with pytest.raises(ConfigError, match="Two models"):
        engine("./a --model ./b")


def test_underscores_are_dashes_but_not_in_values():
    config = engine("--max_model_len=1k --served_model_name my_model --chat_template=a_b.jinja")
    assert config.model.max_model_len == 1000
    assert config.model.served_model_name == ("my_model",)
    assert config.model.chat_template == "a_b.jinja"


def test_switches_may_be_told_their_value():
    for line in ("--enable-prefix-caching=False", "-enable_prefix_caching false ./m"):
        assert engine(line).cache.enable_prefix_caching is False
    config = engine("--enforce-eager True ./m --enable-chunked-prefill=true")
    assert config.device.enforce_eager is config.scheduler.enable_chunked_prefill is True
    assert config.model.model == "./m"


def test_switches_have_a_no_form():
    assert engine("--no-enable-prefix-caching").cache.enable_prefix_caching is False
    assert engine("--enable-prefix-caching").cache.enable_prefix_caching is True
    assert engine("--enforce-eager").device.enforce_eager is True


@pytest.mark.parametrize(
    ("text", "name"),
    [("FLASH_ATTN", "flash-attn"), ("TRITON_ATTN", "triton"), ("TORCH_SDPA", "torch")],
)
def test_attention_backends_have_the_names_of_other_engines(text, name):
    assert engine(f"--attention-backend {text}").device.attention_backend == name


def test_lists_take_several_values_and_may_be_repeated_or_json():
    assert server("--api-key a b").api_key == ("a", "b")
    assert server("--api-key a --api-key b").api_key == ("a", "b")
    assert server('--allowed-origins ["*"]').allowed_origins == ("*",)
    assert engine("./m --served-model-name a b --dtype half").model.served_model_name == ("a", "b")


def test_media_come_from_named_hosts_or_from_none():
    config = engine("./m --allowed-media-domains a.example b.example")
    assert config.media.allowed_media_domains == ("a.example", "b.example")
    assert engine("./m --allowed-media-domains none").media.allowed_media_domains == ("none",)
    with pytest.raises(ConfigError, match="give none alone"):
        engine("./m --allowed-media-domains none a.example")


def test_json_flags_merge_with_their_dotted_keys():
    line = '--override-generation-config {"top_k":5} --override-generation-config.temperature 0.5'
    config = engine(line + " --override-generation-config.extra.note=hi")
    assert config.model.override_generation_config == {
        "top_k": 5,
        "temperature": 0.5,
        "extra": {"note": "hi"},
    }


def test_a_dotted_flag_needs_a_value():
    with pytest.raises(ConfigError, match="needs a value"):
        parse("--override-generation-config.top_k")


@pytest.mark.parametrize(
    ("words", "plain"),
    [
        (["-O3"], ["--optimization-level", "3"]),
        (["-cc.mode=3"], ["-cc", '{"mode": 3}']),
        (["--a_b.c_d", "x"], ["--a-b", '{"c_d": "x"}']),
        (["--a.b", "--c"], ["--a", '{"b": "--c"}']),
        (["--x", "-1.5"], ["--x", "-1.5"]),
        (["./a_b.c"], ["./a_b.c"]),
        (["--", "--a_b"], ["--", "--a_b"]),
    ],
)
def test_spellings(words, plain):
    assert normalise(words, {"-cc"}) == plain


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--max-model-len 4x", "not a size"),
        ("--dtype int3", "invalid choice"),
        ("--kv-cache-dtype int9", "did you mean 'int8'?"),
        ("--max-len 4", "did you mean --max-model-len?"),
        ("--port x", "'x' is not a whole number."),
        ("--gpu-memory-utilization x", "not a number"),
        ("--override-generation-config {", "single quotes"),
        ("--override-generation-config [1]", "not understood (write a JSON object)"),
        ("--gpu-memory-utilisation 0.9", "did you mean --gpu-memory-utilization?"),
        ("--max-model", "did you mean --max-model-len?"),
        ("--blck-size 16", "did you mean --block-size?"),
        ("--tempfoo", "unknown flag --tempfoo.\n"),
        ("./a ./b", "unexpected argument './b'"),
        ('--api-key ["a"', "not a JSON list"),
    ],
)
def test_usage_errors_are_one_line_and_status_2(line, words, capsys):
    with pytest.raises(SystemExit) as exit_info:
        parse(line)
    error = capsys.readouterr().err
    assert exit_info.value.code == 2
    assert words in error
    assert len(error.splitlines()) == 2  # the error, and where help is


@pytest.mark.parametrize(
    "line",
    [
        "--gpu-memory-utilization 1.5",
        "--gpu-memory-utilization nan",
        "--gpu-memory-utilization 0",
        "--block-size 0",
        "--max-num-seqs 0",
        "--port 70000",
        "--startup-timeout -1",
    ],
)
def test_values_out_of_range_name_their_flag(line):
    with pytest.raises(ConfigError, match=line.split()[0]):
        namespace = parse(line)
        flags.engine_config(namespace)
        flags.from_namespace(ServerConfig, namespace)


def test_ranges_and_choices_hold_without_a_command_line():
    with pytest.raises(ConfigError, match="--gpu-memory-utilization"):
        CacheConfig(gpu_memory_utilization=2)
    with pytest.raises(ConfigError, match="one of"):
        ModelConfig(dtype="int3")


@pytest.mark.parametrize("flag", ["-tp", "--tp", "--tensor-parallel-size"])
def test_several_devices(flag):
    assert engine(f"{flag} 2").parallel == ParallelConfig(tensor_parallel_size=2)


@pytest.mark.parametrize("flag", ["-pp", "--pipeline-parallel-size"])
def test_pipelines(flag):
    parallel = engine(f"{flag} 2 -tp 3").parallel
    assert parallel == ParallelConfig(3, 2)
    assert (parallel.num_ranks, parallel.num_devices) == (6, 6)


def test_every_field_is_documented_and_named_once():
    seen = set()
    classes = [field.default_factory for field in dataclasses.fields(EngineConfig)]
    for cls in [*classes, ServerConfig]:
        for field in dataclasses.fields(cls):
            assert field.metadata["doc"].endswith("."), field.name
            assert field.name not in seen, f"{field.name} would be one flag for two fields"
            seen.add(field.name)


def test_help_names_every_flag_once():
    text = make_parser().format_help()
    for field in dataclasses.fields(CacheConfig):
        if field.type is not bool:
            flag = "--" + field.name.replace("_", "-")
            assert len(re.findall(rf"^  .*{flag}(?![\w-])", text, re.MULTILINE)) == 1


def test_config_file_gives_flags_that_the_command_line_overrides(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "model: ./from-file\nmax-model-len: 8k\nenable_prefix_caching: false\n"
        "served-model-name: [a, b]\nport: 9000\noverride-generation-config: {top_k: 3}\n"
        "revision: null\n"
    )
    words = ["./mine", "--config", str(file), "--max_model_len", "4k"]
    namespace = make_parser().parse_args(flags.with_config_file(words))
    config = flags.engine_config(namespace)
    assert config.model.model == "./mine"
    assert config.model.max_model_len == 4000
    assert config.model.served_model_name == ("a", "b")
    assert config.model.override_generation_config == {"top_k": 3}
    assert config.cache.enable_prefix_caching is False
    assert flags.from_namespace(ServerConfig, namespace).port == 9000


@pytest.mark.parametrize("content", ["- a\n- b\n", "a: [", None])
def test_a_config_file_that_cannot_be_used(tmp_path, content):
    file = tmp_path / "config.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match="config file"):
        flags.with_config_file([f"--config={file}"])


@pytest.mark.parametrize(
    ("text", "bound"),
    [("auto", "auto"), ("0", 0.0), ("12.5", 12.5), ("2x", "2x"), ("1.50x", "1.5x")],
)
def test_a_bound_on_steps(text, bound):
    assert engine(f"--max-step-ms {text}").scheduler.max_step_ms == bound


@pytest.mark.parametrize("text", ["1x", "-3", "nan", "infx", "fast"])
def test_a_bound_on_steps_that_makes_no_sense(text, capsys):
    with pytest.raises((ConfigError, SystemExit)) as refusal:
        engine(f"--max-step-ms {text}")
    assert "--max-step-ms" in f"{refusal.value}{capsys.readouterr().err}"


def test_a_flag_with_one_dash_wins_over_a_config_file(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("max-model-len: 9000\n")
    words = flags.with_config_file(["./m", "-max-model-len", "4000", "--config", str(file)])
    assert flags.engine_config(make_parser().parse_args(words)).model.max_model_len == 4000


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("", "is empty; name a key, or leave it out"),
        (" secret", "begins or ends with a space"),
        ("secret\n", "begins or ends with a space or a line break"),
        ("schlüssel", "ASCII"),
        ("se\ncret", "ASCII"),
    ],
)
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(key, why, monkeypatch):
    flag = make_parser().parse_args(["--api-key", "good", key])
    with pytest.raises(
        ConfigError, match=f"^--api-key {why}" if "ASCII" not in why else why
    ) as said:
        flags.from_namespace(ServerConfig, flag)
    assert not key or key.strip() not in str(said.value)
    monkeypatch.setenv("PAGODA_API_KEY", key)
    if not key:
        assert configured_keys(ServerConfig()) == ()  # an empty variable is one that is not set
        return
    with pytest.raises(ConfigError, match="^PAGODA_API_KEY "):
        configured_keys(ServerConfig())


def test_several_keys_are_written_as_for_vllm(monkeypatch):
    assert server("--api-key a,b").api_key == ("a,b",)
    assert server("--api-key a b --api-key c").api_key == ("a", "b", "c")
    assert server('--api-key ["a","b"]').api_key == ("a", "b")
    monkeypatch.setenv("PAGODA_API_KEY", "d")
    assert configured_keys(ServerConfig(api_key=("a",))) == ("a",)
    assert configured_keys(ServerConfig()) == ("d",)


@pytest.mark.parametrize(
    ("text", "numa"),
    [("auto", "auto"), ("off", "off"), ("distribute", "auto"), ("numactl", "auto")],
)
def test_numa_as_llama_server_has_it(text, numa):
    assert engine(f"--numa {text}").device.numa == numa


def test_numa_isolate_names_what_does_it(capsys):
    with pytest.raises((SystemExit, ConfigError)) as told:
        engine("--numa isolate")
    assert "numactl" in capsys.readouterr().err + str(told.value)
