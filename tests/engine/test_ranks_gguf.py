"""A hybrid as llama.cpp stores it, whose delta nets have their value heads in tiles, over ranks."""

from typing import Any

import pytest

from pagoda.base.errors import ConfigError
from tests.engine.running import run, tokens
from tests.engine.test_ranks import expected, request, start
from tests.models import tiny, tiny_gguf_qwen35

SIZES = {**tiny.QWEN3_5, "linear_num_value_heads": 6, "intermediate_size": 128}


def test_two_ranks_write_what_one_writes(tmp_path):
    path = tmp_path / "model.gguf"
    made = tiny.make("qwen3_5", **SIZES)
    reference = tiny_gguf_qwen35.write(path, made, tiny_gguf_qwen35.Storage.Q8_0)
    prompts = [tiny.random_ids(20 + 31 * i, seed=i) for i in range(3)]
    choices: list[dict[str, Any]] = [
        {}, {"temperature": 0.9, "seed": 5, "top_p": 0.95}, {"temperature": 1.0, "seed": 8},
    ]  # fmt: skip
    replies = []
    for ranks in (1, 2):
        core = start(path, ranks)
        pairs = zip(prompts, choices, strict=True)
        deltas = run(core, *(request(f"r{i}", pair[0], **pair[1]) for i, pair in enumerate(pairs)))
        replies.append([tokens(deltas[f"r{i}"]) for i in range(3)])
        core.shutdown()
    assert replies[0] == replies[1]
    assert replies[1][0] == expected(reference, prompts[0])
    assert replies[1][1] != expected(reference, prompts[1]), "it is sampled"


def test_blocks_that_cannot_be_split_are_named_before_loading(tmp_path, monkeypatch):
    path = tmp_path / "model.gguf"
    made = tiny.make("qwen3_5", **{**SIZES, "intermediate_size": 96})
    tiny_gguf_qwen35.write(path, made, tiny_gguf_qwen35.Storage.Q8_0)
    monkeypatch.setattr("pagoda.engine.startup.RankSetup", None)  # what tells ranks to load
    with pytest.raises(ConfigError, match="ffn_down.*blocks of 32.*cannot be split over 2"):
        start(path, 2)
