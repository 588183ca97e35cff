"""`bench gpu` without a GPU: its models, its rooflines, its page."""

import argparse
import re
from functools import partial
from pathlib import Path

import pytest
import torch

from pagoda.arch.registry import spec_for
from pagoda.base.errors import ConfigError
from pagoda.bench.gpus import run
from pagoda.bench.gpus.models import MODELS
from pagoda.bench.gpus.report import BEGIN, END, replaced, tables
from pagoda.bench.gpus.run import Ceilings, Measured, _add_best, measure_all
from pagoda.cli.benches import gpu
from pagoda.cli.main import main
from pagoda.planner.memory.tensors import parameter_count
from pagoda.runtime import device

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "gpu.md"
PLAIN = frozenset()
BY_NAME = {model.name: model for model in MODELS}


@pytest.mark.parametrize("name", BY_NAME)
def test_models_have_the_parameters_that_transformers_gives_them(name):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = BY_NAME[name].plain_config
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    # Gemma's scalar of each layer is a buffer there.
    scalars = sum(x.numel() for key, x in theirs.named_buffers() if key.endswith("layer_scalar"))
    ours = parameter_count(spec_for(BY_NAME[name].config, {}, ()))
    assert ours == theirs.num_parameters() + scalars


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt-oss-20b", 20.9), ("Gemma-4-26B-A4B", 25.2), ("Gemma-4-31B", 30.7),
        ("Qwen3-VL-8B", 8.2), ("Qwen3-VL-30B-A3B", 30.5), ("DeepSeek-R1-Distill-Qwen-7B", 7.6),
        ("Qwen3.6-27B", 26.9), ("Gemma-4-26B-A4B-FP8", 25.2), ("Qwen3.6-27B-INT4", 26.9),
    ],
)  # fmt: skip
def test_models_are_as_large_as_their_names_say(name, billions):
    count = parameter_count(spec_for(BY_NAME[name].config, {}, ()))
    assert count / 1e9 == pytest.approx(billions, abs=0.06)


def test_rooflines_follow_from_bytes_and_products():
    result = Measured("x", "bfloat16")
    _add_best(
        result, BY_NAME["DeepSeek-R1-Distill-Qwen-7B"], Ceilings(copy=2e12, matmul=2e14), PLAIN, 0
    )
    # 7.6 billion parameters less the token table of 0.545, 2 bytes each.
    products = 7_615_616_512 - 152_064 * 3584
    assert result.decode_best[1] == pytest.approx(2e12 / (2 * products), rel=0.01)
    assert 14 < result.decode_best[16] / result.decode_best[1] < 16
    # At 256 requests 2 * 256 operations per weight take longer than its 2 bytes.
    head = 152_064 * 3584
    assert result.decode_best[256] == pytest.approx(2e14 / (2 * products), rel=0.01)
    assert result.prefill_best == pytest.approx(2e14 / (2 * (products - head)), rel=0.01)


def test_experts_are_read_as_far_as_tokens_meet_them():
    result = Measured("x", "bfloat16")
    _add_best(result, BY_NAME["Qwen3-VL-30B-A3B"], Ceilings(copy=2e12, matmul=1e18), PLAIN, 0)
    assert 2e12 / result.decode_best[1] / 2e9 == pytest.approx(3.0, abs=0.1)  # 3 billion active
    step = 64 * 2e12 / result.decode_best[64] / 2e9
    assert 28 < step < 30.5  # nearly all of them


def test_quantized_weights_are_read_as_they_are_held():
    result, ceilings = Measured("x", "bfloat16"), Ceilings(copy=2e12, matmul=1e18)
    name, kept = "Qwen3.6-27B-INT4", frozenset(("UINT4", "FP8", "MXFP4"))
    tables = 2 * 248_320 * 5120
    linear = parameter_count(spec_for(BY_NAME[name].config, {}, ())) - tables
    # 4 bits and for 128 columns a scale and a zero point of 2 bytes each.
    nbytes = round(linear * 4.25 / 8) + 2 * tables
    _add_best(result, BY_NAME[name], ceilings, kept, nbytes)
    read = nbytes - tables  # the head, of two tables of 2 bytes
    assert 2e12 / result.decode_best[1] == pytest.approx(read, rel=0.03)
    assert result.prefill_best == pytest.approx(1e18 / (2 * linear), rel=0.01)
    _add_best(result, BY_NAME["gpt-oss-20b"], ceilings, kept, 0)
    assert 2e12 / result.decode_best[1] < 4e9  # 3.6 billion active, most in 4.25 bits


FIGURES = {
    "model": "Some-7B", "dtype": "bfloat16", "ready": 4.25,
    "decode": {"1": 100.0, "16": 1500.0, "64": 5000.0, "256": 12000.0},
    "decode_best": {"1": 125.0, "16": 2000.0, "64": 8000.0, "256": 24000.0},
    "prefill": 30000.0, "prefill_best": 60000.0, "transformers": None, "note": "",
}  # fmt: skip


def test_the_table(monkeypatch):
    def apart(what, name):
        if name == "gpt-oss-20b":
            return {"error": "no room"}
        return {"transformers": 250.0} if what == "transformers" else dict(FIGURES)

    results = list(measure_all((MODELS[0], MODELS[3]), apart))
    text = tables(results, Ceilings(3e12, 7e14), {"GPU": "H100", "date": "2030-01-02"})
    assert "- GPU: H100\n- date: 2030-01-02\n- it copies 3,000 GB/s" in text
    assert "multiplies 700 Tflop/s" in text
    lines = text.splitlines()
    assert (
        "| Some-7B, bfloat16 | 4.2 | 100 (80%) | 1,500 (75%) | 5,000 (62%) | 12,000 (50%) "
        "| 30,000 (50%) | 6.0 |"
    ) in lines
    assert "| gpt-oss-20b | - | - | - | - | - | - | - |" in lines
    assert "- gpt-oss-20b: no room" in lines
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in lines if line.startswith("|")}
    assert widths == {9}


def test_what_is_measured_stays(tmp_path, monkeypatch, capsys):
    """Rows are on the page as soon as they are known, and models may go without transformers."""
    page, asked = tmp_path / "page.md", []
    page.write_text(f"# Page\n{BEGIN}\n\nold\n\n{END}\n")

    def apart(what, name):
        asked.append((what, name))
        if len(asked) == 2:
            assert "| Some-7B, bfloat16 |" in page.read_text()
            raise KeyboardInterrupt
        return dict(FIGURES)

    monkeypatch.setattr(run, "measure_all", partial(measure_all, apart=apart))
    monkeypatch.setattr(run, "measure_ceilings", lambda *args: Ceilings(3e12, 7e14))
    monkeypatch.setattr(device, "make_device", lambda name: device.CpuDevice())
    names = ["gpt-oss-20b", "Qwen3-VL-8B"]
    parser = argparse.ArgumentParser()
    gpu.add_arguments(parser)
    with pytest.raises(KeyboardInterrupt):
        gpu.run(parser.parse_args([*names, "--without-transformers", "--output", str(page)]))
    assert asked == [("pagoda", name) for name in names]
    assert "--without-transformers" in page.read_text()
    assert capsys.readouterr().out.startswith("| Some-7B")


def test_the_page_keeps_all_but_its_tables():
    page = PAGE.read_text()
    new = replaced(page, "TABLES")
    head, tail = page.split(BEGIN)[0], page.split(END)[1]
    assert new == f"{head}{BEGIN}\n\nTABLES\n\n{END}{tail}" and replaced(new, "TABLES") == new
    with pytest.raises(ValueError, match="measured"):
        replaced("# No marks", "TABLES")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_in_a_line(capsys):
    assert main(["bench", "gpu"]) == 1
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err == "No NVIDIA GPU that torch can use is here; nothing was measured.\n"


def test_unknown_models_are_named():
    assert gpu._chosen(["GPT-OSS-20B"]) == (BY_NAME["gpt-oss-20b"],)
    assert gpu._chosen([]) == MODELS
    with pytest.raises(ConfigError, match="'gpt-2' is none of the models"):
        gpu._chosen(["gpt-2"])
