"""`bench llama-bench`: prompt and generation speed of one request, measured as llama-bench does.

Greedy sampling on the device (one argmax per token) is inside the times; llama-bench leaves
sampling out.
"""

import itertools
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pagoda.base.errors import ConfigError
from pagoda.config.engine import EngineConfig
from pagoda.config.speculation import SpeculationConfig
from pagoda.weights.files import ModelFiles

if TYPE_CHECKING:
    from pagoda.bench.inprocess import BenchEngine

_ITEM = re.compile(r"^(\d+)(?:-(\d+)(?:([+*])(\d+))?)?$")


@dataclass(frozen=True)
class Task:
    """`n_prompt` tokens read, then `n_gen` generated, behind `n_depth` tokens already cached."""

    n_prompt: int
    n_gen: int
    n_depth: int = 0

    @property
    def name(self) -> str:
        parts = [f"pp{self.n_prompt}"] if self.n_prompt else []
        parts += [f"tg{self.n_gen}"] if self.n_gen else []
        return "+".join(parts) + (f" @ d{self.n_depth}" if self.n_depth else "")

    @property
    def num_tokens(self) -> int:
        return self.n_prompt + self.n_gen

    @property
    def length(self) -> int:
        """Context that the test needs."""
        return self.n_depth + max(self.n_prompt, 1) + max(self.n_gen, 1)


@dataclass(frozen=True)
class Setup:
    """What an engine is started with."""

    n_batch: int
    n_ubatch: int
    n_threads: int


@dataclass(frozen=True)
class ModelFacts:
    filename: str
    type: str
    """Architecture, size and the format of most weights: `llama 135M Q4_1`."""
    size: int
    n_params: int


@dataclass(frozen=True)
class Measurement:
    test: Task
    setup: Setup
    model: ModelFacts
    started: str
    samples_ns: list[int]

    @property
    def samples_ts(self) -> list[float]:
        return [1e9 * self.test.num_tokens / ns for ns in self.samples_ns]

    @property
    def avg_ts(self) -> float:
        return statistics.fmean(self.samples_ts)

    @property
    def stddev_ts(self) -> float:
        return _stddev(self.samples_ts)

    @property
    def avg_ns(self) -> int:
        return round(statistics.fmean(self.samples_ns))

    @property
    def stddev_ns(self) -> int:
        return round(_stddev(self.samples_ns))


def parse_list(text: str) -> list[int]:
    """`512`, `128,256`, `1-4`, `1-9+2`, `64-512*2` as llama-bench reads them."""
    values: list[int] = []
    for item in text.split(","):
        match = _ITEM.match(item.strip())
        if match is None:
            raise ConfigError(f"{item!r} is no number and no range such as 64-512*2.")
        first, last, operator, step = match.groups()
        values += _range(int(first), int(last or first), operator or "+", int(step or 1))
    return values


def parse_pair(text: str) -> tuple[int, int]:
    """`-pg`'s `pp,tg`."""
    values = parse_list(text)
    if len(values) != 2:
        raise ConfigError(f"-pg takes two numbers such as 512,128, not {text!r}.")
    return values[0], values[1]


def plan_tests(
    prompts: Sequence[int],
    gens: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    depths: Sequence[int],
) -> list[Task]:
    """Every prompt test, every generation test, every pair, at each depth; 0 is no test."""
    tests = []
    for depth in depths:
        tests += [Task(count, 0, depth) for count in prompts if count]
        tests += [Task(0, count, depth) for count in gens if count]
        tests += [Task(first, second, depth) for first, second in pairs if first or second]
    return tests


def describe_model(files: ModelFiles, name: str) -> ModelFacts:
    """Size and type from the checkpoint's header."""
    bytes_of: dict[str, int] = {}
    params = 0
    for info in files.checkpoint.tensors.values():
        bytes_of[info.type] = bytes_of.get(info.type, 0) + info.nbytes
        count = 1
        for dimension in info.shape:
            count *= dimension
        params += count
    config = files.config or {}
    kind = files.metadata.get("general.architecture") or config.get("model_type", "model")
    size = f"{params / 1e6:.0f}M" if params < 1e9 else f"{params / 1e9:.2f}B"
    storage = max(bytes_of, key=lambda key: bytes_of[key], default="?")
    return ModelFacts(name, f"{kind} {size} {storage}", sum(bytes_of.values()), params)


def engine_config(base: EngineConfig, setup: Setup, tests: Sequence[Task]) -> EngineConfig:
    """One request at a time and one token of it in a step, prompts in steps of `n_ubatch` tokens,
    a context that holds every test."""
    scheduler = replace(
        base.scheduler,
        max_num_seqs=1,
        max_num_batched_tokens=min(setup.n_batch, setup.n_ubatch),
    )
    model = replace(base.model, max_model_len=max(test.length for test in tests))
    device = replace(base.device, threads=setup.n_threads)
    # The prefix cache is what holds a test's depth; prompts are random, so nothing else hits.
    cache = replace(base.cache, enable_prefix_caching=True)
    plain = SpeculationConfig({"method": "none"})
    return replace(
        base, scheduler=scheduler, model=model, device=device, cache=cache, speculation=plain
    )


def measure(
    engine: "BenchEngine",
    test: Task,
    *,
    repetitions: int,
    warmup: bool,
    progress: Callable[[str], None],
) -> tuple[str, list[int]]:
    """(UTC time of the start, nanoseconds of each repetition)."""
    block = engine.ready.block_size
    if test.n_depth % block:
        raise ConfigError(f"-d takes multiples of the block size, {block}, not {test.n_depth}.")
    depth = engine.random_prompt(test.n_depth)
    if depth:
        engine.run([[*depth, *engine.random_prompt(1)]], [1])
    if warmup:
        progress(f"{test.name}: warm-up")
        _once(engine, replace(test, n_gen=min(test.n_gen, 1)), depth)
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    samples = []
    for number in range(1, repetitions + 1):
        progress(f"{test.name}: run {number} of {repetitions}")
        samples.append(_once(engine, test, depth))
    return started, samples


def setups(
    batches: Sequence[int], ubatches: Sequence[int], threads: Sequence[int]
) -> Iterator[Setup]:
    for batch, ubatch, count in itertools.product(batches, ubatches, threads):
        yield Setup(batch, ubatch, count)


def field_values(result: Measurement, device: str, cpu: str, version: str) -> dict[str, Any]:
    """All columns of llama-bench's csv and json; those without a meaning here hold its defaults."""
    test, setup = result.test, result.setup
    return {
        "build_commit": f"pagoda-{version}", "build_number": 0, "cpu_info": cpu, "gpu_info": "",
        "backends": device.upper(), "model_filename": result.model.filename,
        "model_type": result.model.type, "model_size": result.model.size,
        "model_n_params": result.model.n_params, "n_batch": setup.n_batch,
        "n_ubatch": setup.n_ubatch, "n_threads": setup.n_threads, "cpu_mask": "0x0",
        "cpu_strict": False, "poll": 50, "type_k": "auto", "type_v": "auto",
        "n_gpu_layers": 0 if device == "cpu" else -1, "n_cpu_moe": 0, "split_mode": "none",
        "main_gpu": 0, "no_kv_offload": False, "flash_attn": 0, "devices": "auto",
        "tensor_split": "0.00", "tensor_buft_overrides": "none", "load_mode": "auto",
        "lazy_mode": "auto", "embeddings": False, "no_op_offload": 0, "no_host": False,
        "repack": True, "fit_target": 0, "fit_min_ctx": 0, "n_prompt": test.n_prompt,
        "n_gen": test.n_gen, "n_depth": test.n_depth, "test_time": result.started,
        "avg_ns": result.avg_ns, "stddev_ns": result.stddev_ns,
        "avg_ts": round(result.avg_ts, 6), "stddev_ts": round(result.stddev_ts, 6),
    }  # fmt: skip


def _once(engine: "BenchEngine", test: Task, depth: list[int]) -> int:
    """One timed run. Generation alone starts from a single token, as llama-bench's from BOS."""
    prompt = [*depth, *engine.random_prompt(max(test.n_prompt, 1))]
    return round(engine.run([prompt], [max(test.n_gen, 1)]) * 1e9)


def _range(first: int, last: int, operator: str, step: int) -> list[int]:
    if last < first or (operator == "*" and (step < 2 or first < 1)) or step < 1:
        raise ConfigError(f"The range from {first} to {last} by {operator}{step} never ends.")
    values = []
    while first <= last:
        values.append(first)
        first = first + step if operator == "+" else first * step
    return values


def _stddev(samples: Sequence[float]) -> float:
    return statistics.stdev(samples) if len(samples) > 1 else 0.0
