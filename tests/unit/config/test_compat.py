"""Flags of vLLM and llama-server: each parses and is answered with one line."""

import argparse
import itertools

import pytest

from pagoda.base.errors import ConfigError
from pagoda.config import compat, flags
from pagoda.config.compat_table import TABLE, Compat
from pagoda.config.parser import FlagParser
from pagoda.config.server import ServerConfig

VALUES = {"-": [], "v": ["7"], "?": ["7"], "*": ["7", "8"], "j": ['{"a": 1}']}


def parse(words: list[str]) -> argparse.Namespace:
    parser = FlagParser(prog="pagoda serve")
    flags.add_engine_flags(parser)
    flags.add_flags(parser, ServerConfig)
    compat.add_compat_flags(parser)
    return parser.parse_args(words)


def answer(line: str) -> list[str]:
    return compat.answers(parse(line.split()))


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.flags.split()[0])
def test_every_flag_is_taken_and_answered(entry: Compat):
    for flag in entry.flags.split():
        namespace = parse(["./model", flag, *VALUES[entry.takes]])
        assert flags.engine_config(namespace).model.model == "./model"
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
    assert answer("--no-enable-lora --no-webui") == []
    assert answer("--no-enable-flashinfer-autotune") == [
        "--no-enable-flashinfer-autotune has no effect here: "
        "kernels are chosen by device and format."
    ]


@pytest.mark.parametrize("method", ["none", "fp8", "int8", "int4"])
def test_quantizing_at_load(method):
    namespace = parse(["-q", method])
    assert compat.answers(namespace) == []
    assert flags.engine_config(namespace).model.quantization == method


@pytest.mark.parametrize("method", ["bitsandbytes", "nf4", "int8_per_channel_weight_only"])
def test_quantizing_at_load_in_other_ways_is_refused(method):
    with pytest.raises(ConfigError, match=f"--quantization {method} is not supported yet"):
        answer(f"-q {method}")


def test_quantization_that_the_checkpoint_has_is_only_repeated():
    namespace = parse(["--quantization", "awq"])
    (line,) = compat.answers(namespace)
    assert "has no effect here" in line
    assert flags.engine_config(namespace).model.quantization == "none"


def test_foreign_values_of_own_flags_are_said_and_replaced():
    namespace = parse(["--kv-cache-dtype", "fp8_e5m2", "--load-format", "runai_streamer"])
    lines = compat.answers(namespace)
    assert len(lines) == 2
    assert lines[0].startswith("--kv-cache-dtype fp8_e5m2 is not supported yet")
    config = flags.engine_config(namespace)
    assert config.cache.kv_cache_dtype == "auto"
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
    assert len(answer(line)) == 2


def test_hf_repo_of_llama_server_names_the_model():
    namespace = parse(["-hf", "org/name:Q4_K_M"])
    assert flags.engine_config(namespace).model.model == "hf:org/name:Q4_K_M"
