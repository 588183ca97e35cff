"""An engine on a CPU that is too small for a mixture: its experts are read from files."""

import fcntl
import gc
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pagoda.base.errors import CapacityError
from pagoda.config.engine import DeviceConfig, EngineConfig, ModelConfig
from pagoda.core.messages import AddRequest, EngineProgress
from pagoda.core.sampling import SamplingParams
from pagoda.engine.processes.transport import MemoryRoom
from pagoda.engine.start import streamed
from pagoda.engine.start.model_files import spec_of
from pagoda.engine.startup import start_engine
from pagoda.kernels import cpu
from pagoda.planner.resolve import resolve
from pagoda.weights import expert_files
from pagoda.weights.files import open_model
from tests.engine.test_startup import rows_of
from tests.models import tiny

pytestmark = pytest.mark.skipif(
    cpu.native() is None, reason="the native kernels are not built here"
)

GIB = 1 << 30
LENGTH = 128
LAYERS = 6
SPARSE = {"qwen3_moe": tiny.QWEN3_MOE, "gpt_oss": tiny.GPT_OSS}  # the latter with biases


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    found = {}
    for family, sizes in SPARSE.items():
        found[family] = folder = tmp_path_factory.mktemp(family)
        tiny.make(family, **{**sizes, "num_hidden_layers": LAYERS}).save_pretrained(folder)
    return found


@pytest.fixture(params=SPARSE)
def model(request, folders) -> Path:
    return folders[request.param]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """Where the experts' files go."""
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(expert_files, "is_memory", lambda folder: False)  # as /tmp may be
    return tmp_path / "cache/experts"


def configure(model: Path, **changes) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(str(model), max_model_len=LENGTH, **changes),
        device=DeviceConfig("cpu", threads=2),
    )


def shrink(monkeypatch, config: EngineConfig) -> None:
    """Let the machine have a byte less than what the model needs."""
    facts = replace(cpu.device_facts(), total_memory=64 * GIB, free_memory=64 * GIB)
    files = open_model(Path(config.model.model))
    spec = spec_of(files, config.model)
    plan = resolve(config, spec, files.checkpoint.tensors, facts).plan
    needed = plan.total - plan.kv_pool + plan.slabs_for(LENGTH) * plan.slab_bytes
    small = replace(facts, free_memory=needed + (512 << 20) - 1)  # which a CPU keeps free
    monkeypatch.setattr(cpu, "device_facts", lambda: small)


def start(config: EngineConfig, room: MemoryRoom | None = None):
    heard = []
    core, ready = start_engine(config, heard.append, room=room)
    loaded = [one.total for one in heard if isinstance(one, EngineProgress) and one.total]
    return core, ready, loaded[-1]


def generate(core) -> dict[str, list[int]]:
    """Of a few requests at once, each with as many tokens as there are experts and more."""
    sampling = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    for number, length in enumerate((1, 7, 40)):
        ids = tiny.random_ids(length, 90, seed=length)
        core.handle(AddRequest(req_id=str(number), prompt_token_ids=list(ids), sampling=sampling))
    tokens: dict[str, list[int]] = {}
    while core.has_work():
        for delta in core.step():
            tokens.setdefault(delta.req_id, []).extend(delta.token_ids)
    core.shutdown()
    return tokens


def files_in(cache: Path) -> dict[str, int]:
    """Names and times."""
    return {path.name: path.stat().st_mtime_ns for path in cache.glob("*/layers.*")}


def test_tokens_are_those_of_an_engine_with_room(model, cache, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "pagoda")
    config = configure(model)
    core, _, whole = start(config)
    expected = generate(core)
    assert len(expected) == 3 and not cache.exists()
    shrink(monkeypatch, config)
    read = []
    monkeypatch.setattr(streamed, "read_speed", lambda file, seconds: read.append(file) or 384e3)
    core, ready, loaded = start(config)
    memory = rows_of(ready, "memory")
    assert memory["on disk"]["predicted"] == memory["on disk"]["measured"] > 0
    assert memory["staging"]["predicted"] == memory["on disk"]["predicted"] // 2
    assert rows_of(ready, "choice")["experts_on_disk"]["value"] == f"2 of {LAYERS} layers"
    assert f"those of 2 of {LAYERS} layers" in caplog.text and "for one reply and" in caplog.text
    assert generate(core) == expected and loaded == whole
    written = files_in(cache)
    assert {name.split(".")[1] for name in written} == {"1", "5"} and len(written) == 4
    # The next start maps what is there, and reads nothing else of these layers.
    core, ready, loaded = start(config)
    assert loaded < whole and files_in(cache) == written
    assert rows_of(ready, "memory")["on disk"]["measured"] == memory["on disk"]["measured"]
    assert generate(core) == expected
    # Its speed was told of the model's own file first, and then of what is read.
    assert [file.parent for file in read] == [model, *cache.iterdir()]


def test_files_that_are_not_whole_are_written_anew(folders, cache, monkeypatch):
    config = configure(folders["qwen3_moe"])
    expected = generate(start(config)[0])
    shrink(monkeypatch, config)
    generate(start(config)[0])
    short, *_ = sorted(cache.glob("*/layers.*"))
    size = short.stat().st_size
    short.write_bytes(short.read_bytes()[:-1])
    assert generate(start(config)[0]) == expected
    assert short.stat().st_size == size


def test_another_checkpoint_has_files_of_its_own(folders, cache, monkeypatch, tmp_path):
    config = configure(folders["qwen3_moe"])
    changed = shutil.copytree(folders["qwen3_moe"], tmp_path / "changed")
    sizes = {**tiny.QWEN3_MOE, "num_hidden_layers": LAYERS}
    tiny.make("qwen3_moe", seed=1, **sizes).save_pretrained(changed)
    expected = generate(start(configure(changed))[0])
    shrink(monkeypatch, config)
    assert generate(start(config)[0]) != expected
    assert generate(start(configure(changed))[0]) == expected
    rounded = configure(changed, quantization="int8")
    shrink(monkeypatch, rounded)
    start(rounded)[0].shutdown()
    assert len(list(cache.iterdir())) == 3


def test_random_weights_are_streamed_too(folders, cache, monkeypatch):
    config = configure(folders["qwen3_moe"], load_format="dummy")
    expected = generate(start(config)[0])
    shrink(monkeypatch, config)
    for _ in range(2):
        assert generate(start(config)[0]) == expected
    assert len(files_in(cache)) == 4


def test_a_disk_without_room(folders, cache, monkeypatch):
    """Experts of models that no engine reads make room; then it is an error."""
    config = configure(folders["qwen3_moe"])
    shrink(monkeypatch, config)
    for name in ("unused", "used"):
        (cache / name).mkdir(parents=True)
        (cache / name / "model").write_text("/a/model\n")
        (cache / name / "layers.0").write_bytes(bytes(100))
    monkeypatch.setattr(expert_files, "free_bytes", lambda folder: 5 << 20)
    with (
        (cache / "used/model").open() as note,
        pytest.raises(CapacityError, match=r"has 5.00 MiB free and keeps 1.00 GiB.*PAGODA_CACHE"),
    ):
        fcntl.flock(note, fcntl.LOCK_SH)
        start(config)
    assert (cache / "used").exists() and not (cache / "unused").exists()


def test_a_folder_that_cannot_be_written_to(folders, cache, monkeypatch):
    config = configure(folders["qwen3_moe"])
    shrink(monkeypatch, config)
    cache.parent.mkdir()
    cache.write_text("no folder")
    with pytest.raises(CapacityError, match="cannot be in .*Set PAGODA_CACHE"):
        start(config)


def test_a_folder_in_memory(folders, cache, monkeypatch):
    config = configure(folders["qwen3_moe"])
    shrink(monkeypatch, config)
    monkeypatch.setattr(expert_files, "is_memory", lambda folder: True)
    with pytest.raises(CapacityError, match="are in memory, too .*on a disk"):
        start(config)


def test_a_disk_that_fills_up_meanwhile(folders, cache, monkeypatch):
    config = configure(folders["qwen3_moe"])
    shrink(monkeypatch, config)

    def full(self, file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pagoda.quant.experts.PackedExpertFormat.write", full)
    with pytest.raises(CapacityError, match="experts cannot be written.*No space left"):
        start(config)
    assert not files_in(cache)


def test_a_disk_whose_files_cannot_be_mapped(folders, cache, monkeypatch):
    config = configure(folders["qwen3_moe"])
    shrink(monkeypatch, config)

    def refused(self, path, files):
        raise OSError(19, "No such device")

    monkeypatch.setattr("pagoda.quant.experts.PackedExpertFormat.map", refused)
    for _ in range(2):  # what was written, and what is found
        with pytest.raises(CapacityError, match="cannot be mapped: No such device.*PAGODA_CACHE"):
            start(config)
    assert len(files_in(cache)) == 1


def test_models_that_could_leave_go_first(folders, cache, monkeypatch):
    config = configure(folders["qwen3_moe"])
    shrink(monkeypatch, config)
    with pytest.raises(CapacityError, match="would have to be read from disk"):
        start(config, MemoryRoom(least_context=100))
    assert not cache.exists()
    start(config, MemoryRoom())[0].shutdown()
    assert files_in(cache)


def test_experts_of_models_that_are_gone(folders, cache, monkeypatch, tmp_path):
    gone = shutil.copytree(folders["qwen3_moe"], tmp_path / "gone")
    for folder in (folders["gpt_oss"], gone):
        shrink(monkeypatch, configure(folder))
        start(configure(folder))[0].shutdown()
    sizes = [sum(f.stat().st_size for f in each.iterdir()) for each in cache.iterdir()]
    gc.collect()  # an engine that is gone uses no files
    assert expert_files.remove_orphans() == 0
    shutil.rmtree(gone)
    assert expert_files.remove_orphans() in sizes
    (left,) = cache.iterdir()
    assert (left / "model").read_text() == f"{folders['gpt_oss']}\n"
