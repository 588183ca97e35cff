"""chat, run-batch and the benches with the default model in an engine of their own."""

import json
import subprocess
import sys

import pytest


def pagoda(*words):
    command = [sys.executable, "-m", "pagoda", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_chat_answers_without_a_server(smollm2_gguf):
    question = "Where is the Eiffel Tower?"
    words = ["-q", question, "--temperature", 0, "--max-model-len", 256]
    done = pagoda("chat", smollm2_gguf, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Paris" in done.stdout


def test_a_question_that_is_too_long_is_one_line(smollm2_gguf):
    words = ["-q", "word " * 300, "--max-model-len", 64]
    done = pagoda("chat", smollm2_gguf, *words)
    assert done.returncode == 1
    assert "maximum context length is 64 tokens" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_run_batch_needs_no_server(smollm2_gguf, tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    chat = {"messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 4}
    text = {"prompt": "One two three", "max_tokens": 4, "temperature": 0}
    lines = [
        {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": chat},
        {"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": text},
        {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"prompt": 5}},
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = pagoda("run-batch", "-i", source, "-o", target, smollm2_gguf, "--max-model-len", 256)
    assert done.returncode == 1, done.stderr
    records = {r["custom_id"]: r for r in map(json.loads, target.read_text().splitlines())}
    assert records["a"]["response"]["body"]["usage"]["completion_tokens"] == 4
    assert records["b"]["response"]["body"]["choices"][0]["text"]
    assert records["c"]["response"]["status_code"] == 400
    assert "2 answered, 1 failed" in done.stderr


def test_llama_bench_measures(smollm2_gguf):
    done = pagoda(
        "bench", "llama-bench", "-m", smollm2_gguf, "-p", 16, "-n", 2, "-r", 2, "-o", "json"
    )
    assert done.returncode == 0, done.stderr
    prompt, generation = json.loads(done.stdout)
    assert (prompt["n_prompt"], generation["n_gen"]) == (16, 2)
    assert len(prompt["samples_ns"]) == 2
    assert prompt["model_type"] == "llama 135M Q4_1"
    assert prompt["model_n_params"] == 134_515_008
    assert prompt["avg_ts"] > 0


def test_throughput_counts_what_was_asked_for(smollm2_gguf, tmp_path):
    file = tmp_path / "result.json"
    words = ["--num-prompts", 3, "--input-len", 8, "--output-len", 2, "--output-json", file]
    done = pagoda("bench", "throughput", smollm2_gguf, *words)
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert (result["total_prompt_tokens"], result["total_output_tokens"]) == (24, 6)
    assert "Throughput: " in done.stdout


@pytest.mark.parametrize(
    ("kind", "flags", "limit"),
    [
        ("throughput", ["--num-prompts", 2], 8192),
        ("latency", ["--max-model-len", 512], 512),
    ],
)
def test_a_bench_refuses_what_exceeds_the_context(smollm2_gguf, kind, flags, limit):
    words = [smollm2_gguf, "--input-len", 9000, "--output-len", 100, *flags]
    done = pagoda("bench", kind, *words)
    assert done.returncode == 1
    assert f"9100 tokens, prompt and output together; the context holds {limit}." in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_parser_flags_reach_the_parser(smollm2_gguf):
    from pagoda.base.errors import ConfigError
    from pagoda.config.engine import ModelConfig
    from pagoda.engine.served.text_side import load_text_side

    def family(**flags):
        return load_text_side(ModelConfig(model=str(smollm2_gguf), **flags)).parser.name

    assert family() == "none+hermes"
    assert family(reasoning_parser="deepseek_r1") == "deepseek_r1+hermes"
    assert family(tool_call_parser="none") == "none"
    assert family(tool_call_parser="mistral") == "none+mistral"
    with pytest.raises(ConfigError, match="no output parser 'think' "):
        family(reasoning_parser="think")
