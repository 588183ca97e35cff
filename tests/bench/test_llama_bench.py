"""llama-bench's tests and tables, with an engine that only counts."""

import csv
import io
import json
import sqlite3

import pytest

from pagoda.base.errors import ConfigError
from pagoda.bench.llama_bench import (
    Measurement,
    ModelFacts,
    Setup,
    Task,
    engine_config,
    field_values,
    measure,
    parse_list,
    parse_pair,
    plan_tests,
)
from pagoda.bench.llama_tables import FORMATS
from pagoda.config.engine import EngineConfig

MODEL = ModelFacts("m.gguf", "llama 135M Q4_1", 90_865_536, 134_515_008)
# Columns of llama.cpp's csv at commit 0c1e570.
LLAMA_CPP_FIELDS = (
    "build_commit build_number cpu_info gpu_info backends model_filename model_type model_size "
    "model_n_params n_batch n_ubatch n_threads cpu_mask cpu_strict poll type_k type_v "
    "n_gpu_layers n_cpu_moe split_mode main_gpu no_kv_offload flash_attn devices tensor_split "
    "tensor_buft_overrides load_mode lazy_mode embeddings no_op_offload no_host repack "
    "fit_target fit_min_ctx n_prompt n_gen n_depth test_time avg_ns stddev_ns avg_ts stddev_ts"
)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("512", [512]),
        ("128,256", [128, 256]),
        ("1-4", [1, 2, 3, 4]),
        ("1-9+4", [1, 5, 9]),
        ("64-512*2", [64, 128, 256, 512]),
        ("0", [0]),
    ],
)
def test_lists_and_ranges(text, values):
    assert parse_list(text) == values


@pytest.mark.parametrize("text", ["", "x", "-1", "4-1", "1-4+0", "1-4*1", "0-4*2", "1,,2"])
def test_lists_that_mean_nothing(text):
    with pytest.raises(ConfigError):
        parse_list(text)


def test_pairs():
    assert parse_pair("512,128") == (512, 128)
    with pytest.raises(ConfigError, match="two numbers"):
        parse_pair("512")


def test_names_of_tests():
    tests = plan_tests([512, 0], [128], [(64, 16)], [0, 32])
    assert [test.name for test in tests] == [
        "pp512",
        "tg128",
        "pp64+tg16",
        "pp512 @ d32",
        "tg128 @ d32",
        "pp64+tg16 @ d32",
    ]


def test_the_engine_holds_every_test():
    tests = plan_tests([512], [128], [(256, 300)], [0, 16])
    config = engine_config(EngineConfig(), Setup(2048, 256, 3), tests)
    assert config.model.max_model_len >= 16 + 256 + 300
    assert config.scheduler.max_num_batched_tokens == 256
    assert (config.scheduler.max_num_seqs, config.device.threads) == (1, 3)


class Engine:
    """Takes 1 ms per prompt token that is not cached and 10 ms per generated one."""

    class ready:  # noqa: N801 - stands for an instance
        block_size = 16
        vocab_size = 1000

    def __init__(self):
        self.cached = ()
        self.runs = []
        self._next = 0

    def random_prompt(self, length):
        self._next += length
        return list(range(self._next - length, self._next))

    def run(self, prompts, output_tokens):
        (prompt,), (count,) = prompts, output_tokens
        hits = 0
        while hits < min(len(prompt), len(self.cached)) and prompt[hits] == self.cached[hits]:
            hits += 1
        self.cached = tuple(prompt)
        self.runs.append((len(prompt) - hits, count))
        return (len(prompt) - hits) * 0.001 + count * 0.010


def run_test(test, **options):
    engine = Engine()
    _, samples = measure(
        engine, test, repetitions=2, warmup=False, progress=lambda _: None, **options
    )
    return engine, samples


def test_prompts_are_fresh_each_time():
    engine, samples = run_test(Task(512, 0))
    assert engine.runs == [(512, 1), (512, 1)]
    assert samples == [522_000_000, 522_000_000]


def test_generation_starts_from_one_token():
    engine, _ = run_test(Task(0, 128))
    assert engine.runs == [(1, 128), (1, 128)]


def test_depth_is_computed_once_and_not_timed():
    engine, _ = run_test(Task(64, 8, 32))
    assert engine.runs == [(33, 1), (64, 8), (64, 8)]


def test_depth_is_whole_blocks():
    with pytest.raises(ConfigError, match="multiples of the block size"):
        run_test(Task(64, 0, 10))


def rows():
    prompt = Measurement(Task(512, 0), Setup(2048, 512, 4), MODEL, "t", [10**9, 2 * 10**9])
    gen = Measurement(Task(0, 128), Setup(2048, 512, 4), MODEL, "t", [10**9])
    return [(row, field_values(row, "cpu", "a CPU", "1.0")) for row in (prompt, gen)]


def test_figures():
    prompt, gen = (row for row, _ in rows())
    assert prompt.avg_ts == pytest.approx(384.0)  # of 512 and 256
    assert prompt.stddev_ts == pytest.approx(181.0193)  # n - 1, as llama-bench
    assert (prompt.avg_ns, prompt.stddev_ns) == (1_500_000_000, 707_106_781)
    assert (gen.avg_ts, gen.stddev_ts) == (128.0, 0.0)


def test_markdown_is_llama_bench_s():
    assert FORMATS["md"](rows(), "1.0").splitlines() == [
        "| model                          |       size |     params | backend    | threads "
        "|            test |                  t/s |",
        "| ------------------------------ | ---------: | ---------: | ---------- | ------: "
        "| --------------: | -------------------: |",
        "| llama 135M Q4_1                |  86.66 MiB |   134.52 M | CPU        |       4 "
        "|           pp512 |      384.00 ± 181.02 |",
        "| llama 135M Q4_1                |  86.66 MiB |   134.52 M | CPU        |       4 "
        "|           tg128 |        128.00 ± 0.00 |",
        "",
        "build: pagoda-1.0 (0)",
    ]


def test_csv_has_llama_bench_s_columns():
    table = list(csv.DictReader(io.StringIO(FORMATS["csv"](rows(), "1.0"))))
    assert list(table[0]) == LLAMA_CPP_FIELDS.split()
    assert (table[0]["n_prompt"], table[1]["n_gen"]) == ("512", "128")
    assert table[0]["embeddings"] == "0"


def test_json_has_the_samples_too():
    first, _ = json.loads(FORMATS["json"](rows(), "1.0"))
    assert list(first) == [*LLAMA_CPP_FIELDS.split(), "samples_ns", "samples_ts"]
    assert first["samples_ts"] == [512.0, 256.0]
    assert first["embeddings"] is False
    lines = FORMATS["jsonl"](rows(), "1.0").splitlines()
    assert json.loads(lines[0]) == first


def test_sql_fills_a_table():
    database = sqlite3.connect(":memory:")
    database.executescript(FORMATS["sql"](rows(), "1.0"))
    found = database.execute("SELECT n_prompt, n_gen, avg_ts FROM llama_bench").fetchall()
    database.close()
    assert found == [(512, 0, 384.0), (0, 128, 128.0)]
