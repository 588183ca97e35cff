"""A model of real widths and a few layers: captured and op by op, memory, and many requests."""

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.gpu_check.found import Clock, Found

if TYPE_CHECKING:
    from pagoda.bench.gpus.models import GpuModel
    from pagoda.bench.inprocess import BenchEngine

_SHORT, _LONG, _OUT = 32, 1024, 64
_PROMPT = 2048
_KERNELS = 14


def run(found: Found, clock: Clock, play: bool, name: str, layers: str) -> None:
    from pagoda.bench.gpus.models import MODELS

    model = _cut(next(one for one in MODELS if one.name == name), int(layers))
    found.put("layers of the model", model.config["num_hidden_layers"])
    found.put("of its own", next(m for m in MODELS if m.name == name).config["num_hidden_layers"])
    batches, tokens, requests = (1, 16, 64, 256), 48, 256
    if play:
        from tools.gpu_check.work import played

        model, batches, tokens, requests = played.small(model), (1, 2), 3, 3
        played.make_gpu()
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        engine = _started(found, model, folder, play)
    try:
        _decode(found, clock, engine, batches, tokens)
        _op_by_op(found, clock, engine, batches[:2], tokens)
        _prompts(found, clock, engine, play)
        _mixed(found, clock, engine, requests, play)
        if not play:
            _kernels(found, clock, engine)
    finally:
        engine.close()


def _cut(model: "GpuModel", layers: int) -> "GpuModel":
    config = {**model.config, "num_hidden_layers": layers}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:layers]
    return replace(model, config=config)


def _started(found: Found, model: "GpuModel", folder: str, play: bool) -> "BenchEngine":
    from pagoda.bench.gpus.run import engine_config
    from pagoda.bench.inprocess import BenchEngine

    (Path(folder) / "config.json").write_text(json.dumps(model.config))
    config = engine_config(folder)
    if play:
        scheduler = replace(config.scheduler, max_num_seqs=4, max_num_batched_tokens=64)
        config = replace(config, scheduler=scheduler)
        config = replace(config, model=replace(config.model, max_model_len=256))
    begun = time.perf_counter()
    engine = BenchEngine.start(config)
    found.put("start s", time.perf_counter() - begun)
    rows = engine.ready.ledger
    found.put("phases s", {r["name"]: round(r["seconds"], 1) for r in rows if r["kind"] == "phase"})
    found.put("memory", {
        r["name"]: (r.get("predicted"), r.get("measured")) for r in rows if r["kind"] == "memory"
    })  # fmt: skip
    program = _runner(engine).replays.program
    found.put("captured before ready", len(program.captured))
    # Measuring tiles takes minutes: what a first hour sees are the defaults.
    _runner(engine).replays.tiles = None
    begun = time.perf_counter()
    engine.finish_captures()
    found.put("later captures s", time.perf_counter() - begun)
    found.put("captured", len(program.captured))
    found.put("sizes", len(program.sizes))
    found.put("not captured", {f"{s.requests} x {s.tokens}": w for s, w in program.failed.items()})
    found.put("gave up", program.gave_up)
    found.put("graphs bytes", [program.budget.spent, program.budget.nbytes])
    return engine


def _decode(
    found: Found, clock: Clock, engine: "BenchEngine", batches: tuple[int, ...], tokens: int
) -> None:
    """Milliseconds of a captured step, by its requests."""
    taken: dict[int, float] = {}
    for batch in batches:
        if clock.left() > 5:
            taken[batch] = _step_ms(engine, batch, tokens)
            found.put("captured ms", taken)


def _op_by_op(
    found: Found, clock: Clock, engine: "BenchEngine", batches: tuple[int, ...], tokens: int
) -> None:
    """As `_decode`, of steps whose launches are each the host's."""
    replays, taken = _runner(engine).replays, dict[int, float]()
    program, replays.program = replays.program, None
    try:
        for batch in batches:
            if clock.left() > 5:
                taken[batch] = _step_ms(engine, batch, tokens)
                found.put("op by op ms", taken)
    finally:
        replays.program = program


def _prompts(found: Found, clock: Clock, engine: "BenchEngine", play: bool) -> None:
    length = 20 if play else _PROMPT
    if clock.left() > 5:
        seconds = min(engine.run([engine.random_prompt(length)], [1]) for _ in range(3))
        found.put("prompt ms", {length: 1e3 * seconds})


def _mixed(found: Found, clock: Clock, engine: "BenchEngine", requests: int, play: bool) -> None:
    """Prompts beside replies, and the memory that such steps take beside what was planned."""
    if clock.left() < 10:
        return
    prompt, out = (20, 3) if play else (_LONG, _OUT)
    begun = _watch(play)
    seconds = engine.run([engine.random_prompt(prompt)] * requests, [out] * requests)
    found.put("requests", {"count": requests, "prompt": prompt, "reply": out})
    found.put("requests tokens/s", requests * (prompt + out) / seconds)
    _took(found, begun, "many requests", play)
    if clock.left() < 5:
        return
    # The worst: nearly all decode, and what they leave of a step is a prompt's.
    short, long = (8, 48) if play else (_SHORT, _PROMPT)
    begun = _watch(play)
    lengths = [short] * (requests - 1) + [long]
    engine.run([engine.random_prompt(length) for length in lengths], [out] * (requests - 1) + [1])
    _took(found, begun, "replies beside a prompt", play)


def _watch(play: bool) -> int:
    """Bytes that are held, from where on the most is counted."""
    if play:
        return 0
    import torch

    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _took(found: Found, before: int, what: str, play: bool) -> None:
    if play:
        taken = 0
    else:
        import torch

        taken = torch.cuda.max_memory_allocated() - before
    found.put("steps took bytes", {**found.values.get("steps took bytes", {}), what: taken})


def _kernels(found: Found, clock: Clock, engine: "BenchEngine") -> None:
    """What a decode step of 16 requests launches: name, launches, microseconds of each."""
    if clock.left() < 10:
        return
    from torch.profiler import ProfilerActivity, profile

    steps = 12
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        engine.run_decode([engine.random_prompt(_SHORT) for _ in range(16)], [steps] * 16)
    events = sorted(seen.key_averages(), key=lambda event: -event.device_time_total)
    found.put("kernels", [
        (event.key[:60], event.count, round(event.device_time_total / max(1, event.count), 1))
        for event in events[:_KERNELS]
    ])  # fmt: skip


def _step_ms(engine: "BenchEngine", batch: int, count: int) -> float:
    """Milliseconds of a step in the second run: the first one compiles."""
    for _ in range(2):
        prompts = [engine.random_prompt(_SHORT) for _ in range(batch)]
        seconds, tokens = engine.run_decode(prompts, [count] * batch)
    return 1e3 * seconds * batch / tokens


def _runner(engine: "BenchEngine") -> Any:
    return engine._runner()
