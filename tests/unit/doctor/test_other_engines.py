"""With `--engine` all that is said is of that engine, the exit status and the command too."""

import argparse
import json
import shlex
from dataclasses import replace

import pytest

from pagoda.cli.main import main, parse_command
from pagoda.config.flags import engine_config
from pagoda.doctor.answer import answer
from pagoda.doctor.machine.hardware import elsewhere
from pagoda.doctor.others.engines import other_engine
from pagoda.doctor.users import Users
from pagoda.planner.devices.gpus import find_gpus
from pagoda.planner.vllm.plan import plan_vllm
from pagoda.planner.vllm.setup import VllmSetup
from tests.unit.doctor.models import GIB, LLAMA, QWEN3_5, QWEN3_MOE, asked, subject_of

# Of `vllm serve` (0.19 and later), as its own reference lists them, and what each takes.
_VALUES = """
    host port uds root-path api-key ssl-certfile ssl-keyfile ssl-ca-certs ssl-cert-reqs
    tokenizer served-model-name dtype quantization max-model-len load-format chat-template
    chat-template-content-format reasoning-parser tool-call-parser generation-config
    override-generation-config seed max-logprobs revision download-dir block-size kv-cache-dtype
    kv-cache-memory-bytes gpu-memory-utilization num-gpu-blocks-override max-num-seqs
    max-num-batched-tokens scheduling-policy long-prefill-token-threshold tensor-parallel-size
    pipeline-parallel-size cpu-offload-gb allowed-media-domains limit-mm-per-prompt
    mamba-cache-mode speculative-config
"""
_SWITCHES = "enable-prefix-caching enable-chunked-prefill enforce-eager enable-auto-tool-choice"


def vllm_serve(command: str) -> argparse.Namespace:
    """As vLLM reads it: no flag that it does not have."""
    parser = argparse.ArgumentParser("vllm serve", allow_abbrev=False, exit_on_error=False)
    parser.add_argument("model")
    for name in _VALUES.split():
        parser.add_argument(f"--{name}")
    for name in _SWITCHES.split():
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction)
    program, verb, *words = shlex.split(command)
    assert (program, verb) == ("vllm", "serve")
    return parser.parse_args(words)


def said(tmp_path, capsys, config, *words) -> tuple[dict, int]:
    (tmp_path / "config.json").write_text(json.dumps(config))
    status = main(["doctor", str(tmp_path), "--json", *words])
    return json.loads(capsys.readouterr().out), status


def planned(tmp_path, config, gpu: str, typed: argparse.Namespace, version: str):
    """What the command makes vLLM do, by its own rules."""
    subject, (card, _) = subject_of(tmp_path, config), find_gpus(gpu)
    flags = {
        "max_model_len": int, "max_num_seqs": int, "kv_cache_memory_bytes": int,
        "gpu_memory_utilization": float, "kv_cache_dtype": str, "quantization": str,
    }  # fmt: skip
    given = {n: kind(v) for n, kind in flags.items() if (v := getattr(typed, n)) is not None}
    setup = VllmSetup(
        version, card.memory, card.capability,
        tensor_parallel=int(typed.tensor_parallel_size or 1),
        enforce_eager=bool(typed.enforce_eager), **given,
    )  # fmt: skip
    return plan_vllm(subject.spec, {}, setup, subject.config)


def test_verdict_numbers_and_command_are_of_that_engine(tmp_path, capsys):
    words = ["--gpu", "3090x4", "--engine", "vllm-0.19", "--max-model-len", "16384", "--port", "9"]
    found, status = said(tmp_path, capsys, QWEN3_MOE, *words, "--threads", "3")
    assert status == 0 and found["fits"] is True and found["engine"] == "vllm-0.19"
    typed = vllm_serve(found["command"])
    assert (typed.tensor_parallel_size, typed.max_model_len, typed.port) == ("4", "16384", "9")
    plan = planned(tmp_path, QWEN3_MOE, "3090", typed, "0.19")
    assert plan.fits and plan.requested <= plan.run.total - plan.beyond
    assert float(typed.gpu_memory_utilization) == found["gpu_memory_utilization"]
    assert found["kv_tokens"] == plan.pool.context_tokens
    assert found["memory_total"] == sum(row.estimate.likely for row in plan.rows())
    assert {flag["flag"] for flag in found["flags"]} == {
        "--max-model-len", "--tensor-parallel-size", "--gpu-memory-utilization"}  # fmt: skip
    assert any("left out: --threads" in line for line in found["log"])


def test_another_engine_spreads_layers_too(tmp_path, capsys):
    words = ["--gpu", "3090x2", "--pipeline-parallel-size", "2"]
    found, status = said(tmp_path, capsys, LLAMA, *words, "--engine", "vllm-0.21")
    assert status == 0 and found["problem"] is None
    assert vllm_serve(found["command"]).pipeline_parallel_size == "2"


def test_one_that_does_not_start_gets_commands_that_do(tmp_path, capsys):
    words = ["--gpu", "3090x2", "--engine", "vllm-0.21"]
    large = {**LLAMA, "hidden_size": 8192, "intermediate_size": 22016, "num_hidden_layers": 50}
    found, status = said(tmp_path, capsys, large, *words)
    assert status == 1 and found["command"] is None and "vLLM will not start" in found["problem"]
    assert found["remedies"]
    for remedy in found["remedies"]:
        plan = planned(tmp_path, large, "3090", vllm_serve(remedy["command"]), "0.21")
        assert plan.fits, remedy
    assert main(["doctor", str(tmp_path), *words]) == 1
    out = capsys.readouterr().out
    assert "vllm-0.21: it does not start on 2 x 3090." in out and "pagoda serve" not in out


@pytest.mark.parametrize("version", ["0.7", "0.19"])
def test_the_size_of_the_cache_counts(tmp_path, capsys, version):
    words = ["--gpu", "A100-80G", "--engine", f"vllm-{version}", "--kv-cache-memory-bytes"]
    found, status = said(tmp_path, capsys, LLAMA, *words, "9G")
    pool = next(row for row in found["memory"] if row["item"] == "KV pool")
    assert status == 0 and pool["bytes"] == 9 * GIB
    assert found["kv_tokens"] == 9 * GIB // (16 * 22 * 2 * 4 * 64 * 2) * 16
    typed = vllm_serve(found["command"])
    if version == "0.19":
        assert typed.kv_cache_memory_bytes == str(9 * GIB)
    else:  # which has no such flag: a utilization that grants as much
        assert typed.kv_cache_memory_bytes is None
        plan = planned(tmp_path, LLAMA, "A100-80G", typed, version)
        assert 9 * GIB <= plan.available.likely < 9.1 * GIB
    found, status = said(tmp_path, capsys, LLAMA, *words, "90G")
    assert status == 1 and "--kv-cache-memory-bytes" in found["problem"]
    assert found["remedies"][0]["what"] == "--kv-cache-memory-bytes left out"


def test_what_others_use_of_a_gpu_is_not_granted(tmp_path):
    subject, gpu = subject_of(tmp_path, LLAMA), elsewhere("3090")
    half = replace(
        gpu, here=True, facts=replace(gpu.facts, free_memory=gpu.facts.total_memory // 2)
    )
    found = other_engine("vllm-0.21", answer(subject, half, asked(subject)))
    assert found.fits and float(vllm_serve(found.command).gpu_memory_utilization) <= 0.5
    config = asked(subject)
    config = replace(config, cache=replace(config.cache, gpu_memory_utilization=0.8))
    found = other_engine("vllm-0.21", answer(subject, half, config))
    assert not found.fits and "are free on the GPU" in found.problem
    assert found.remedies[0].words == "--gpu-memory-utilization left out"


def test_users_are_held_or_counted(tmp_path):
    subject = subject_of(tmp_path, QWEN3_MOE)
    for count, fits in ((4, True), (4000, False)):
        made = answer(subject, elsewhere("H100"), asked(subject), users=Users(count, 8192))
        found = other_engine("vllm-0.21", made)
        assert found.fits is fits
        command = found.command if fits else found.remedies[0].command
        typed = vllm_serve(command)
        plan = planned(tmp_path, QWEN3_MOE, "H100", typed, "0.21")
        assert plan.pool.concurrency >= int(typed.max_num_seqs)
        assert typed.max_model_len == "8192"


def test_a_drafting_model_with_states(tmp_path):
    subject = subject_of(tmp_path, QWEN3_5)
    made = answer(subject, elsewhere("A100-80G"), asked(subject, max_model_len=4096))
    typed = vllm_serve(other_engine("vllm-0.19", made).command)
    assert json.loads(typed.speculative_config) == {"method": "mtp", "num_speculative_tokens": 3}
    assert (typed.mamba_cache_mode, typed.enable_prefix_caching) == ("align", True)


@pytest.mark.parametrize(
    "words",
    [
        "--kv-cache-dtype int8 --dtype half --served-model-name a b --no-enable-prefix-caching",
        "--tool-call-parser hermes --max-num-seqs 3 --enforce-eager --quantization fp8",
        "--gpu-memory-utilization 0.5 --max-num-batched-tokens 512 --max-model-len auto",
    ],
)
def test_flags_are_vllms_own(tmp_path, words):
    subject = subject_of(tmp_path, LLAMA)
    _, args = parse_command("doctor", [str(tmp_path), *words.split()])
    made = answer(subject, elsewhere("4090"), engine_config(args))
    command = other_engine("vllm-0.19", made).command
    if "served" in words:
        assert "--served-model-name a b" in command
        command = command.replace(" a b", " a")
    typed = vllm_serve(command)
    assert ("auto" in words) == (typed.max_model_len is not None)
    assert ("int8" in words) == (typed.kv_cache_dtype == "int8_per_token_head")
    assert ("hermes" in words) == bool(typed.enable_auto_tool_choice)


def test_a_picture_is_of_pagodas_memory(tmp_path, capsys):
    subject_of(tmp_path, LLAMA)
    words = ["doctor", str(tmp_path), "--gpu", "3090", "--engine", "vllm", "--plot", "x.svg"]
    assert main(words) == 1
    assert "--plot draws Pagoda's own memory" in capsys.readouterr().err


def test_an_engine_is_asked_about_one_model(tmp_path, capsys):
    subject_of(tmp_path, LLAMA)
    words = ["doctor", "--compare", str(tmp_path), "--gpu", "3090", "--engine", "vllm"]
    assert main(words) == 1
    assert "--engine plans one model" in capsys.readouterr().err
