"""Flags of vLLM and llama-server: each parses and is answered with one line."""

import argparse
import functools
import itertools
from pathlib import Path

import pytest

from pagoda.base.errors import ConfigError
from pagoda.config import compat, flags
from pagoda.config.compat_table import TABLE, Compat
from pagoda.config.parser import FlagParser
from pagoda.config.server import ServerConfig

VALUES = {"-": [], "0": [], "v": ["7"], "?": ["7"], "*": ["7", "8"], "j": ['{"a": 1}']}


@functools.cache
def the_parser() -> FlagParser:
    parser = FlagParser(prog="pagoda serve")
    flags.add_engine_flags(parser)
    flags.add_flags(parser, ServerConfig)
    compat.add_compat_flags(parser)
    return parser


def parse(words: list[str]) -> argparse.Namespace:
    return the_parser().parse_args(words)


def answer(line: str) -> list[str]:
    return compat.answers(parse(line.split()))


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.flags.split()[0])
def test_every_flag_is_taken_and_answered(entry: Compat):
    for flag in entry.flags.split():
        namespace = parse(["./model", flag, *VALUES[entry.takes]])
        assert flags.engine_config(namespace).model.model == "./model"
        if "True" in entry.means and entry.takes == "-":
            assert compat.answers(namespace) == []
            continue
        if entry.effect == "refused":
            with pytest.raises(ConfigError) as error:
                compat.answers(namespace)
            lines = [str(error.value)]
        else:
            lines = compat.answers(namespace)
        assert len(lines) == 1
        assert lines[0].startswith(entry.flags.split()[0])
        assert lines[0].endswith(".")
        assert "\n" not in lines[0]


def test_no_flag_is_in_the_table_twice():
    names = list(itertools.chain.from_iterable(entry.flags.split() for entry in TABLE))
    assert len(names) == len(set(names))


def test_values_that_ask_for_what_happens_anyway_need_no_word():
    assert answer("--runner generate --cpu-offload-gb 0 -dp 1 --mode auto") == []


def test_weights_in_the_hosts_memory():
    """As vLLM and llama-server have it."""
    for words, field, value in (
        ("--cpu-offload-gb 1.5", "cpu_offload_gb", 1.5), ("-ncmoe 7", "n_cpu_moe", 7),
        ("--cpu-moe", "n_cpu_moe", "all"), ("-cmoe", "n_cpu_moe", "all"),
        ("-ngl 99", "n_gpu_layers", 99), ("--gpu-layers all", "n_gpu_layers", "all"),
        ("--n-gpu-layers auto", "n_gpu_layers", None), ("-ngl -1", "n_gpu_layers", None),
    ):  # fmt: skip
        namespace = parse(["./model", *words.split()])
        assert compat.answers(namespace) == []
        assert getattr(flags.engine_config(namespace).device, field) == value


def test_a_switch_turned_off_is_no_request():
    assert answer("--no-enable-lora --no-ui-mcp-proxy") == []
    assert answer("--no-enable-flashinfer-autotune") == [
        "--no-enable-flashinfer-autotune has no effect here: "
        "kernels are chosen by device and format."
    ]


@pytest.mark.parametrize("method", ["none", "fp8", "int8", "int4"])
def test_quantizing_at_load(method):
    namespace = parse(["-q", method])
    assert compat.answers(namespace) == []
    assert flags.engine_config(namespace).model.quantization == method


@pytest.mark.parametrize("method", ["nf4", "int8_per_channel_weight_only"])
def test_quantizing_at_load_in_other_ways_is_refused(method):
    with pytest.raises(ConfigError, match=f"--quantization {method} is not supported yet"):
        answer(f"-q {method}")


def test_quantization_that_the_checkpoint_has_is_only_repeated():
    namespace = parse(["--quantization", "awq"])
    (line,) = compat.answers(namespace)
    assert "has no effect here" in line
    assert flags.engine_config(namespace).model.quantization == "none"


def test_foreign_values_of_own_flags_are_said_and_replaced():
    namespace = parse(["--kv-cache-dtype", "fp8_inc", "--load-format", "runai_streamer"])
    lines = compat.answers(namespace)
    assert len(lines) == 2
    assert lines[0].startswith("--kv-cache-dtype fp8_inc is not supported yet: int8 is taken")
    config = flags.engine_config(namespace)
    assert config.cache.kv_cache_dtype == "int8"
    assert config.model.load_format == "auto"


def test_foreign_values_that_cannot_be_replaced_are_refused():
    with pytest.raises(ConfigError, match="--load-format pt is not supported"):
        answer("--load-format pt")


def test_json_is_checked_for_shape(capsys):
    with pytest.raises(SystemExit):
        parse(["--speculative-config", "{"])
    assert "not JSON" in capsys.readouterr().err


def test_dotted_json_flags():
    line = "--speculative-config.method mtp --speculative-config.num_speculative_tokens=3 -O2"
    namespace = parse(line.split())
    assert len(compat.answers(namespace)) == 1  # of -O2
    speculation = flags.engine_config(namespace).speculation
    assert speculation.speculative_config == {"method": "mtp", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("-hf org/name:Q4_K_M", "hf:org/name:Q4_K_M"),
        ("--hf-repo org/name --hf-file a.gguf -c 2048", "hf:org/name:a.gguf"),
        ("-hff a.gguf -hfr org/name:Q8_0", "hf:org/name:a.gguf"),
    ],
)
def test_hf_repo_of_llama_server_names_the_model(line, model):
    namespace = parse(line.split())
    assert compat.answers(namespace) == []
    assert flags.engine_config(namespace).model.model == model


def test_a_file_of_no_repository_is_refused():
    with pytest.raises(ConfigError, match="name that with --hf-repo"):
        answer("./m --hf-file a.gguf")


def flags_of_llama_server() -> list[list[str]]:
    """Each spelling with values, from its help: `-t --threads N` is two of them."""
    lines = []
    for line in (Path(__file__).parent / "llama_server_flags.txt").read_text().splitlines():
        spellings = [word for word in line.split() if word.startswith("-")]
        values = ["1" if word == "N" else word for word in line.split() if word not in spellings]
        lines += [[flag, *values] for flag in spellings]
    return lines


def test_every_flag_of_llama_server_is_read_or_answered():
    """With one dash too, which its users often type."""
    for words in flags_of_llama_server():
        with_one = [words[0][1:], *words[1:]] if words[0].startswith("--") else words
        for typed in (words, with_one):
            namespace = parse(typed)
            try:
                lines = compat.answers(namespace)
            except ConfigError as error:
                lines = [str(error)]
            assert all(line.endswith(".") and "\n" not in line for line in lines), typed


def test_flags_that_say_what_ours_say():
    for words, section, field, value in (
        ("--temp 0.6", "model", "override_generation_config", {"temperature": 0.6}),
        ("--temp 0.6 --top-k 20 -n-predict 9", "model", "override_generation_config",
         {"temperature": 0.6, "top_k": 20, "max_tokens": 9}),
        ("--n-predict -1", "model", "override_generation_config", {}),
        ("--samplers top-k;typ_p;temperature --dry-multiplier 0.8 --mirostat-lr 0.2", "model",
         "override_generation_config",
         {"samplers": ["top_k", "typ_p", "temperature"], "dry_multiplier": 0.8,
          "mirostat_eta": 0.2}),
        ("--sampling-seq kyt --dynatemp-exp 2", "model", "override_generation_config",
         {"samplers": ["top_k", "typ_p", "temperature"], "dynatemp_exponent": 2.0}),
        ("--dry-sequence-breaker none --dry-sequence-breaker a --dry-sequence-breaker b", "model",
         "override_generation_config", {"dry_sequence_breakers": ["a", "b"]}),
        ('--hf-overrides {"classifier_from_token":["no","yes"],"is_original_qwen3_reranker":true}',
         "model", "score_tokens", "no,yes"),
        ("--repeat-penalty 1.1", "model", "override_generation_config",
         {"repetition_penalty": 1.1}),
        ("--reasoning-format none", "model", "reasoning_parser", "none"),
        ("--reasoning-budget 0", "model", "default_chat_template_kwargs",
         {"enable_thinking": False}),
        ("--reasoning off --reasoning-effort low", "model", "default_chat_template_kwargs",
         {"enable_thinking": False, "reasoning_effort": "low"}),
        ('--chat-template-kwargs {"a":1}', "model", "default_chat_template_kwargs", {"a": 1}),
        ("-ctk q8_0 -ctv q8_0", "cache", "kv_cache_dtype", "int8"),
        ("--cache-type-k q4_0 -ctv q4_0", "cache", "kv_cache_dtype", "q4_0"),
        ("-s 7", "model", "seed", 7), ("-dev none", "device", "device", "cpu"),
        ("--skip-chat-parsing", "model", "tool_call_parser", "none"),
        ("--runner pooling", "model", "task", "embed"), ("--task embed", "model", "task", "embed"),
        ("--task embedding", "model", "task", "embed"), ("--embedding", "model", "task", "embed"),
        ("--convert embed", "model", "task", "embed"), ("--reranking", "model", "task", "score"),
        ("--convert classify", "model", "task", "classify"),
        ("--pooling mean", "model", "pooling", "mean"),
        ("--runner generate", "model", "task", "generate"),
    ):  # fmt: skip
        namespace = parse(["./model", *words.split()])
        assert compat.answers(namespace) == [], words
        assert getattr(getattr(flags.engine_config(namespace), section), field) == value, words


def test_servers_flags_that_say_what_ours_say():
    for words, field, value in (
        ("-v", "log_level", "debug"), ("-lv 1", "log_level", "error"),
        ("--log-jsonl", "log_format", "json"), ("--no-webui", "webui", False),
        ("--no-ui", "webui", False), ("--path ./site", "path", "./site"),
        ("--cors-origins https://a.example,https://b.example", "allowed_origins",
         ("https://a.example", "https://b.example")),
        ("--sse-ping-interval -1", "sse_keep_alive_interval", 0.0),
    ):  # fmt: skip
        namespace = parse(words.split())
        assert compat.answers(namespace) == []
        assert getattr(flags.from_namespace(ServerConfig, namespace), field) == value, words


def test_grammars_and_schemas_may_come_from_files(tmp_path):
    (tmp_path / "g.gbnf").write_text('root ::= "a"')
    model = flags.engine_config(parse(["--grammar-file", str(tmp_path / "g.gbnf")])).model
    assert model.grammar == 'root ::= "a"'
    with pytest.raises(SystemExit):
        parse(["-jf", str(tmp_path / "none.json")])
