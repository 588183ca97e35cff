"""`bench serve` against a server that streams."""

import json
import statistics

import pytest

from pagoda.base.errors import ConfigError
from pagoda.bench.datasets import DatasetConfig
from pagoda.bench.serve import LoadConfig, arrival_times, bench_serve, result_path
from pagoda.bench.sse import ServerError

# What dashboards and scripts read out of vLLM's result files.
VLLM_KEYS = {
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts",
    "request_rate", "burstiness", "max_concurrency", "duration", "completed", "failed",
    "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput",
    "output_throughput", "total_token_throughput", "max_output_tokens_per_s",
    "max_concurrent_requests",
    *(f"{stat}_{metric}_ms" for stat in ("mean", "median", "std", "p99")
      for metric in ("ttft", "tpot", "itl", "e2el")),
}  # fmt: skip


async def run(server, dataset, **load):
    seen = []
    config = LoadConfig(base_url=server.url, **load)
    result, table = await bench_serve(
        config, dataset, progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (dataset.num_prompts, dataset.num_prompts)
    return result, table


async def test_random_prompts_have_exact_lengths(fake_server):
    dataset = DatasetConfig(num_prompts=6, random_input_len=12, random_output_len=5)
    result, table = await run(fake_server, dataset, ignore_eos=True)
    assert set(result) == VLLM_KEYS
    assert (result["completed"], result["failed"]) == (6, 0)
    assert result["total_input_tokens"] == 72
    assert result["total_output_tokens"] == 30
    assert result["model_id"] == "fake-model"
    assert "Serving Benchmark Result" in table
    body = fake_server.bodies[-1]
    assert body["ignore_eos"] is True
    assert body["temperature"] == 0.0
    assert len(body["prompt"]) == 12
    assert all(isinstance(token, int) for token in body["prompt"])


async def test_the_warm_up_has_a_prompt_of_its_own(fake_server):
    dataset = DatasetConfig(num_prompts=4, random_input_len=8, random_output_len=1)
    await run(fake_server, dataset)
    prompts = [body["prompt"] for body in fake_server.bodies if "stream" in body]
    assert len(prompts) == 5
    assert prompts[0] not in prompts[1:]


async def test_chat_gets_text(fake_server):
    dataset = DatasetConfig(num_prompts=2, random_input_len=9, random_output_len=3)
    result, _ = await run(fake_server, dataset, backend="openai-chat", top_k=4)
    assert result["total_input_tokens"] == 18
    body = fake_server.bodies[-1]
    assert len(body["messages"][0]["content"].split()) == 9
    assert (body["max_tokens"], body["top_k"]) == (3, 4)


async def test_concurrency_has_a_limit(fake_server):
    path_free = DatasetConfig(num_prompts=12, random_input_len=4, random_output_len=4)
    result, _ = await run(fake_server, path_free, max_concurrency=2)
    assert fake_server.most_running <= 2
    assert result["max_concurrent_requests"] <= 2


async def test_custom_prompts_and_failures(fake_server, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '{"prompt": "one two three"}\n{"prompt": "x midway y"}\n'
        '{"prompt": "boom"}\n{"prompt": "short", "output_tokens": 1}\n'
    )
    dataset = DatasetConfig(
        dataset_name="custom", dataset_path=str(file), num_prompts=4, custom_output_len=50
    )
    result, _ = await run(fake_server, dataset, save_detailed=True)
    assert (result["completed"], result["failed"]) == (2, 2)
    assert sorted(error for error in result["errors"] if error) == [
        "The server answered 400: boom is not allowed",
        "the engine died",
    ]
    assert result["generated_texts"][0].split() == ["one", "two", "three"]
    assert result["input_lens"] == [3, 3, 1, 1]


async def test_prefixes_are_repeated(fake_server):
    dataset = DatasetConfig(
        dataset_name="prefix_repetition", num_prompts=6, prefix_repetition_num_prefixes=2,
        prefix_repetition_prefix_len=5, prefix_repetition_suffix_len=3,
        prefix_repetition_output_len=1,
    )  # fmt: skip
    await run(fake_server, dataset)
    prompts = [tuple(body["prompt"]) for body in fake_server.bodies if "stream" in body]
    assert {len(prompt) for prompt in prompts} == {8}
    assert len({prompt[:5] for prompt in prompts}) == 2
    assert len({prompt[5:] for prompt in prompts}) == 7


async def test_sharegpt_takes_first_turns_that_fit(fake_server, tmp_path):
    talks = [
        {"conversations": [{"value": "a b c d e"}, {"value": "v w x y"}, {"value": "later"}]},
        {"conversations": [{"value": "too short"}, {"value": "v w x y"}]},
        {"conversations": [{"value": "alone"}]},
        {"conversations": [{"value": "long " * 1100}, {"value": "v w x y"}]},
    ]
    file = tmp_path / "sharegpt.json"
    file.write_text(json.dumps(talks, indent=1))
    dataset = DatasetConfig(dataset_name="sharegpt", dataset_path=str(file), num_prompts=2)
    result, _ = await run(fake_server, dataset)
    assert result["completed"] == 2
    bodies = [body for body in fake_server.bodies if "stream" in body]
    assert {(body["prompt"], body["max_tokens"]) for body in bodies} == {("a b c d e", 4)}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("sharegpt", None, "cannot be read"),
        ("sharegpt", "[1]", "not a ShareGPT file"),
        ("sharegpt", "[]", "no usable prompt"),
        ("custom", "text\n", "line 1"),
        ("custom", "[]\n", "line 1"),
    ],
)
async def test_unusable_datasets(fake_server, tmp_path, name, content, words):
    file = tmp_path / "data"
    if content is not None:
        file.write_text(content)
    dataset = DatasetConfig(dataset_name=name, dataset_path=str(file))
    with pytest.raises(ConfigError, match=words):
        await run(fake_server, dataset)


async def test_a_server_that_refuses_the_first_request(fake_server):
    dataset = DatasetConfig(num_prompts=1, random_input_len=2, random_output_len=1)
    with pytest.raises(ServerError, match="first request failed.*404"):
        await run(fake_server, dataset, endpoint="/v1/nothing")


async def test_no_server():
    with pytest.raises(ServerError, match="Nothing answers"):
        await bench_serve(LoadConfig(port=9), DatasetConfig(), progress=lambda *_: None)


@pytest.mark.parametrize(
    "flags",
    [
        {"percentile_metrics": "ttft,speed"},
        {"metric_percentiles": "101"},
        {"goodput": ("speed:1",)},
        {"header": ("nonsense",)},
    ],
)
async def test_flags_that_make_no_sense(fake_server, flags):
    with pytest.raises(ConfigError, match="--"):
        await run(fake_server, DatasetConfig(num_prompts=1), **flags)


def test_arrivals_keep_the_rate():
    times = arrival_times(500, rate=10.0, burstiness=1.0, seed=1)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(50.0)
    assert arrival_times(500, 10.0, 1.0, seed=1) == times
    assert arrival_times(3, float("inf"), 1.0, seed=1) == [0.0, 0.0, 0.0]


def test_burstiness_is_the_gamma_shape():
    def variation(burstiness):
        times = [0.0, *arrival_times(4000, 1.0, burstiness, seed=3)]
        gaps = [late - early for early, late in zip(times, times[1:], strict=False)]
        return statistics.pstdev(gaps) / statistics.fmean(gaps)

    # The coefficient of variation of a gamma distribution is 1 / sqrt(shape).
    assert variation(1.0) == pytest.approx(1.0, abs=0.1)
    assert variation(0.25) == pytest.approx(2.0, abs=0.2)
    assert variation(100.0) == pytest.approx(0.1, abs=0.02)


def test_result_files_are_named_as_vllm_names_them():
    load = LoadConfig(request_rate=2.0, max_concurrency=8, result_dir="out")
    result = {"model_id": "org/name", "date": "20260101-000000"}
    expected = "out/openai-2.0qps-concurrency8-name-20260101-000000.json"
    assert str(result_path(load, result)) == expected
