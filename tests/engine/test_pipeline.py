"""A model whose layers are spread over processes answers as it does in one."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagoda.base.errors import EngineDeadError
from pagoda.config.engine import EngineConfig, ParallelConfig
from pagoda.core.messages import AddRequest, PoolingParams, Utility
from pagoda.engine.core import EngineCore
from pagoda.engine.startup import start_engine
from tests.engine.conftest import write_byte_tokenizer
from tests.engine.running import run, tokens
from tests.engine.test_ranks import (
    COUNT,
    are_gone,
    cached,
    config_of,
    expected,
    processes,
    request,
)
from tests.models import tiny, vision
from tests.models.vision import picture


def pipeline_config(folder: Path, ranks: int, stages: int, **options: Any) -> EngineConfig:
    config = config_of(folder, ranks * stages, **options)
    return replace(config, parallel=ParallelConfig(ranks, stages))


def start(folder: Path, ranks: int, stages: int, **options: Any) -> EngineCore:
    return start_engine(pipeline_config(folder, ranks, stages, **options), lambda message: None)[0]


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    """Delta nets beside attention, with a tokenizer; and transformers' model."""
    folder = tmp_path_factory.mktemp("hybrid")
    reference = tiny.make("qwen3_5", **{**tiny.QWEN3_5, "vocab_size": 260})
    reference.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return reference, folder


@pytest.fixture(scope="module")
def pair(hybrid) -> Iterator[EngineCore]:
    """Two stages, with room for a few of six requests' states."""
    core = start(hybrid[1], 1, 2, slabs=24)
    yield core
    core.shutdown()


@pytest.fixture(scope="module")
def alone(hybrid) -> EngineCore:
    return start_engine(config_of(hybrid[1]), lambda message: None)[0]


def test_chunks_and_prefix_hits(hybrid, pair):
    reference, _ = hybrid
    prompts = {f"r{i}": tiny.random_ids(30 + 23 * i, seed=i) for i in range(6)}
    replies = {name: expected(reference, prompt) for name, prompt in prompts.items()}
    deltas = run(pair, *(request(name, prompt) for name, prompt in prompts.items()))
    assert {name: tokens(deltas[name]) for name in prompts} == replies
    (again,) = run(pair, request("again", prompts["r5"])).values()
    assert cached(again) >= 96 and tokens(again) == replies["r5"]
