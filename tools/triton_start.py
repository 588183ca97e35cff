"""How long the kernels of a model's first start take to compile, without a GPU.

    python tools/triton_start.py               # three models, sm_90, one thread and several
    python tools/triton_start.py --models gpt-oss-20b --target 80 --threads 8

Counted are the launches of one layer of each kind for steps of 1, 16, 32, 64, 512 and 2,048 tokens,
at the sizes of the models, and of sampling; each kernel once that Triton would compile. Compiling
includes ptxas, and nothing of an earlier run is used. Behind it, how long the slowest kernel takes,
below which no number of threads comes.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402 - behind the path
import triton  # noqa: E402 - behind the path
from triton import knobs  # noqa: E402 - behind the path
from triton.backends.compiler import GPUTarget  # noqa: E402 - behind the path
from triton.compiler import ASTSource  # noqa: E402 - behind the path

from pagoda.kernels import ops  # noqa: E402 - behind the path
from pagoda.kernels.triton import activation, attention, kv_cache, norm  # noqa: E402
from pagoda.kernels.triton.products import experts, gemm, routing  # noqa: E402
from pagoda.kernels.triton.products.matrix import GpuMatrix  # noqa: E402
from pagoda.kernels.triton.target import assuming  # noqa: E402
from tools.triton_compile import Launch, caught, name_of  # noqa: E402
from tools.triton_examples import Example, sampling  # noqa: E402

TOKENS = (1, 16, 32, 64, 512, 2048)
_TYPE, _BLOCK = torch.bfloat16, 64


class Model(NamedTuple):
    hidden: int
    heads: int
    kv_heads: int
    dim: int
    linear: tuple[tuple[str, int, int], ...]
    """Storage, rows and columns; plain ones are the library's."""
    experts: tuple[str, int, int, int] | None = None
    """Storage, how many, of a token, and their width."""
    window: int | None = None
    sinks: bool = False


MODELS = {
    "Llama-3.1-8B-Q4_K": Model(4096, 32, 8, 128, (
        ("Q4_K", 6144, 4096), ("Q4_K", 4096, 4096), ("Q4_K", 28672, 4096), ("Q4_K", 4096, 14336),
        ("Q6_K", 4096, 14336), ("Q6_K", 1024, 4096), ("Q6_K", 128256, 4096),
    )),
    "gpt-oss-20b": Model(2880, 64, 8, 64, (), ("MXFP4", 32, 4, 2880), window=128, sinks=True),
    "Qwen3-30B-A3B-FP8": Model(2048, 32, 4, 128, (
        ("FP8", 5120, 2048), ("FP8", 2048, 4096),
    ), ("FP8", 128, 8, 768)),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--target", type=int, default=90)
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2, 8])
    options = parser.parse_args()
    print(f"Triton {triton.__version__}, sm_{options.target}")
    print("| model | kernels | slowest s |" + "".join(f" {n} threads s |" for n in options.threads))
    print("|---|---:|---:|" + "---:|" * len(options.threads))
    for name in options.models:
        launches = launches_of(MODELS[name], options.target)
        row, slowest = [], 0.0
        for threads in options.threads:
            seconds, most = compiled(launches, threads)
            slowest = most if threads == min(options.threads) else slowest
            row.append(f" {seconds:.0f} |")
        print(f"| {name} | {len(launches)} | {slowest:.1f} |{''.join(row)}", flush=True)
    return 0


def launches_of(model: Model, target: int) -> list[Launch]:
    """Each once, the products first: they take longest."""
    found: dict[str, Launch] = {}
    for call in calls(model):
        example = Example("", "", call, lambda capability: None)
        with assuming(target), torch.device("meta"):
            for launch in caught(example, target):
                found.setdefault(launch.fingerprint(), launch)
    return list(found.values())


def calls(model: Model) -> Iterator[Callable[[], object]]:
    """What a layer of each kind, and sampling, launch."""
    for tokens in TOKENS:
        if model.experts is not None:
            yield partial(_mix, model, tokens)
        for storage, rows, columns in model.linear:
            if rows < 65536 or tokens == 1:  # a step has few rows of logits
                yield partial(_multiply, storage, rows, columns, tokens)
    for tokens in (1, 64, 2048):
        yield partial(_attend, model, tokens)
        yield partial(_norms, model, tokens)
    yield from (example.call for example in sampling.examples() if example.label.startswith("voc"))


def compiled(launches: Sequence[Launch], threads: int) -> tuple[float, float]:
    """(seconds of all, of the slowest kernel)."""
    with tempfile.TemporaryDirectory() as folder, knobs.cache.scope():
        knobs.cache.dir = folder
        begun = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            slowest = max(pool.map(_compile, launches))
        return time.perf_counter() - begun, slowest


def _compile(launch: Launch) -> float:
    begun = time.perf_counter()
    source = ASTSource(launch.kernel, launch.types, launch.constants, launch.known)
    options = {**launch.options, "enable_fp_fusion": True}
    try:
        triton.compile(source, GPUTarget("cuda", launch.target, 32), options)
    except Exception as error:
        raise RuntimeError(f"{name_of(launch.kernel)}: {error}") from error
    return time.perf_counter() - begun


def _x(tokens: int, size: int) -> torch.Tensor:
    return torch.empty(tokens, size, dtype=_TYPE)


def _multiply(storage: str, rows: int, columns: int, tokens: int) -> None:
    gemm.matmul(_x(tokens, columns), [GpuMatrix(storage, rows, columns, "meta")])


def _mix(model: Model, tokens: int) -> None:
    assert model.experts is not None
    storage, count, top_k, size = model.experts
    ids, weights = routing.route(_x(tokens, count), top_k, "softmax", True)
    biased = model.sinks
    rising, falling = (
        ops.PackedExperts(
            tuple(GpuMatrix(storage, count * rows, columns, "meta") for _ in range(parts)),
            rows, count, _x(count, parts * rows) if biased else None,
        )
        for parts, rows, columns in ((2, size, model.hidden), (1, model.hidden, size))
    )  # fmt: skip
    gating = ops.Gating(1.702, 7.0) if biased else ops.Gating()
    experts.mix(_x(tokens, model.hidden), ids, weights, rising, falling, gating)


def _attend(model: Model, tokens: int) -> None:
    reqs = tokens if tokens <= 64 else 4
    size = (model.heads + 2 * model.kv_heads) * model.dim
    k, v = torch.empty(2, 2, model.kv_heads, _BLOCK, model.dim, dtype=_TYPE)
    index = torch.empty(tokens, dtype=torch.int64)
    q = kv_cache.rotary_store(_x(tokens, size), index, torch.empty(64, model.dim), k, v, index)
    table, starts = torch.empty(reqs, 64, dtype=torch.int32), torch.empty(reqs + 1).int()
    sinks = torch.empty(model.heads) if model.sinks else None
    for window in {None, model.window}:
        attention.paged_attention(
            q, k, v, table, starts, starts[1:], scale=0.1, window=window, sinks=sinks
        )


def _norms(model: Model, tokens: int) -> None:
    x, weight = _x(tokens, model.hidden), torch.empty(model.hidden)
    norm.rms_norm(x, weight, 1e-6)
    norm.add_rms_norm(x, x.float(), weight, 1e-6)
    activation.gate(_x(tokens, 2 * model.hidden), ops.Gating())


if __name__ == "__main__":
    sys.exit(main())
