"""A server that could not start ends with what would."""

from dataclasses import replace

import pytest

from pagoda.base.errors import (
    CapacityError,
    CheckpointError,
    EngineDeadError,
    EngineKilledError,
)
from pagoda.config.engine import CacheConfig
from pagoda.doctor import after
from tests.unit.doctor.machines import LAPTOP, laptop
from tests.unit.doctor.models import GIB, LLAMA, asked, box, subject_of


@pytest.fixture
def here(monkeypatch):
    def put(machine=LAPTOP, hardware=None):
        monkeypatch.setattr(after, "probe", lambda: machine)
        monkeypatch.setattr(after, "this_machine", lambda *_: hardware or box())

    return put


def test_what_did_not_fit_gets_commands(tmp_path, here):
    here()
    config = asked(subject_of(tmp_path, LLAMA), max_model_len=32768)
    config = replace(config, cache=CacheConfig(kv_cache_memory_bytes=GIB // 4))
    lines = after.after_failure(config, CapacityError("too large"))
    assert lines and all(line.startswith("What would fit, ") for line in lines)
    assert any(f"pagoda serve {tmp_path} --max-model-len 11888" in line for line in lines)


def test_an_engine_that_ended_without_a_word_gets_findings(tmp_path, here):
    here(laptop(memory={"oom_kills": 1, "oom_kills_inside": 1}))
    config = asked(subject_of(tmp_path, LLAMA))
    lines = after.after_failure(config, EngineKilledError("The engine was killed by signal 9."))
    assert any(line.startswith("oom: ") for line in lines)
    # Hours ago it may have been another process.
    assert after.after_failure(config, EngineDeadError("The engine was not ready.")) == []


def test_a_limit_of_addresses_gets_a_command(tmp_path, here):
    here(laptop(software={"address_space": 3 * GIB}), replace(box(), address_space=3 * GIB))
    config = asked(subject_of(tmp_path, LLAMA))
    lines = after.after_failure(config, CapacityError("mmap failed"))
    assert any(f"ulimit -v unlimited && pagoda serve {tmp_path}" in line for line in lines)


def test_what_the_error_has_said_is_not_said_again(tmp_path, here):
    here()
    config = asked(subject_of(tmp_path, LLAMA))
    assert after.after_failure(config, CheckpointError("broken")) == []
    assert after.after_failure(config, EngineDeadError("some fault")) == []
    gone = replace(config, model=replace(config.model, model=str(tmp_path / "nothing")))
    assert after.after_failure(gone, CapacityError("too large")) == []
