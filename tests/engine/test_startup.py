import errno
import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from pagoda.arch.registry import spec_for
from pagoda.base.errors import CapacityError, ConfigError, UnsupportedModelError
from pagoda.base.facts import DeviceFacts
from pagoda.config.engine import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig
from pagoda.core.messages import EngineProgress
from pagoda.engine.start.phases import memory_guard
from pagoda.engine.startup import start_engine
from pagoda.kernels import cpu
from pagoda.planner.resolve import resolve
from pagoda.weights.files import open_model
from tests.engine.conftest import with_model


def rows_of(ready, kind):
    return {row.get("name"): row for row in ready.ledger if row["kind"] == kind}


def test_the_ledger_has_every_phase_choice_and_byte(tiny_config, caplog):
    caplog.set_level(logging.INFO, logger="pagoda")
    heard = []
    config = replace(tiny_config, device=DeviceConfig(device="cpu"))
    core, ready = start_engine(config, heard.append, launched_at=None)
    phases = [message.phase for message in heard if isinstance(message, EngineProgress)]
    assert list(dict.fromkeys(phases)) == list(rows_of(ready, "phase"))
    loading = [m for m in heard if m.phase == "load weights" and m.total]
    assert loading[-1].done == loading[-1].total > 0
    memory = rows_of(ready, "memory")
    assert set(memory) == {"weights", "KV pool", "activations", "positions", "process"}
    assert all(row["predicted"] > 0 and row["measured"] is not None for row in memory.values())
    assert rows_of(ready, "choice")["threads"]["why"]
    assert ready.ledger[-1]["max_concurrency"] == 2048 / 512
    assert (ready.kv_tokens, ready.num_blocks, ready.block_size) == (2048, 129, 16)
    assert (ready.max_model_len, ready.vocab_size) == (512, 260)
    assert ready.speculation == "suffix"
    assert core.stats().blocks_free == 128
    assert "KV cache size: 2,048 tokens, Maximum concurrency for 512 tokens per request: 4.00x" in (
        caplog.text
    )
    core.shutdown()


@pytest.mark.skipif(cpu.native() is None, reason="there are no kernels to leave out")
def test_a_type_that_leaves_out_the_kernels_is_warned_of(tiny_config, caplog):
    for dtype, warned in (("float16", True), ("auto", False)):
        caplog.clear()
        start_engine(with_model(tiny_config, dtype=dtype), lambda _: None)[0].shutdown()
        assert ("--dtype float16 leaves out the native kernels" in caplog.text) == warned


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"parallel": ParallelConfig(1, 99)}, ConfigError, "size 99 is more than the model's"),
        ({"parallel": ParallelConfig(3)}, ConfigError, "2 KV heads cannot be repeated over 3"),
        (
            {
                "model": ModelConfig("MODEL", load_format="dummy", max_model_len=512),
                "cache": CacheConfig(kv_cache_memory_bytes=16384),
            },
            CapacityError,
            "lower --max-model-len",
        ),
    ],
)
def test_what_cannot_be_served_says_so(tiny_config, changes, error, words):
    with pytest.raises(error, match=words):
        config = replace(tiny_config, **changes)
        start_engine(with_model(config, model=tiny_config.model.model), lambda message: None)


@pytest.mark.parametrize(
    ("blocks", "length", "warns"), [(8, None, True), (8, 64, False), (64, None, False)]
)
def test_a_short_context_is_warned_of(tiny_config, caplog, blocks, length, warns):
    """Where memory is why, and nobody asked for it."""
    cache = replace(tiny_config.cache, num_gpu_blocks_override=blocks)
    config = replace(with_model(tiny_config, max_model_len=length), cache=cache)
    start_engine(config, lambda _: None)[0].shutdown()
    assert ("Prompt and reply have 112 tokens together" in caplog.text) is warns


def test_too_few_addresses_are_said_before_weights_are_read(tiny_config, monkeypatch):
    phases = []
    monkeypatch.setattr("pagoda.engine.start.planned.address_limit", lambda: 700 << 20)
    with pytest.raises(CapacityError, match=r"700\.00 MiB of addresses here.*ulimit -v"):
        start_engine(tiny_config, lambda message: phases.append(message.phase))
    assert phases[-1] == "plan"


def test_random_weights_are_quantized_where_config_json_says_so(tiny_config, tmp_path):
    config = json.loads((Path(tiny_config.model.model) / "config.json").read_text())
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": fp8}))
    sizes = []
    for folder in (tiny_config.model.model, str(tmp_path)):
        core, ready = start_engine(
            with_model(tiny_config, model=folder, dtype="auto"), lambda message: None
        )
        core.shutdown()
        sizes.append(rows_of(ready, "memory")["weights"]["predicted"])
    said = rows_of(ready, "choice")["quantization"]
    assert said["value"] == "fp8 (E4M3) in blocks of 128x128" and "FP8 held as" in said["why"]
    assert cpu.native() is None or sizes[1] < 0.9 * sizes[0]


def test_an_unknown_architecture(tiny_config, tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalML"]}')
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM"):
        start_engine(with_model(tiny_config, model=str(tmp_path)), lambda message: None)


@pytest.fixture
def resolution(tiny_config, tiny_model):
    spec = spec_for(open_model(tiny_model).config, {}, ())
    return resolve(tiny_config, spec, {}, DeviceFacts("cpu", 8 << 30, 8 << 30, 2))


@pytest.mark.parametrize(
    "failure",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    ],
)  # fmt: skip
def test_memory_that_runs_out_says_what_to_lower(resolution, failure):
    with (
        pytest.raises(CapacityError, match="while loading") as caught,
        memory_guard("loading the weights", resolution),
    ):
        raise failure
    for flag in ("--max-model-len (now 512)", "--max-num-seqs (now 64)", "--kv-cache-memory-bytes"):
        assert flag in str(caught.value)


def test_other_failures_pass(resolution):
    with pytest.raises(RuntimeError, match="shape"), memory_guard("loading", resolution):
        raise RuntimeError("shape mismatch")


@pytest.mark.parametrize("named", ["", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_a_gpus_memory_is_in_segments_that_grow(tiny_config, monkeypatch, named):
    """Unless whoever starts the engine says otherwise, by either name."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        # Noted, so that it is taken back.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    if named:
        monkeypatch.setenv(named, "backend:native")
    core, _ = start_engine(tiny_config, lambda message: None)
    core.shutdown()
    expected = "expandable_segments:True" if not named else "backend:native"
    assert os.environ[named or "PYTORCH_ALLOC_CONF"] == expected
    assert ("PYTORCH_ALLOC_CONF" in os.environ) is (named != "PYTORCH_CUDA_ALLOC_CONF")
