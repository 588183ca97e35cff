"""How fast a mixture replies whose experts are partly on disk, beside the same in memory.

    python -m tools.streamed_speed                   # 1.6 GB of experts, 1.6 GiB of memory for all
    python -m tools.streamed_speed --layers 8 --memory 2

Layers of Qwen3-30B-A3B's sizes whose experts are random, in MXFP4: with all experts in memory, with
those on disk that `--memory` leaves no room for, and with these when nobody asks for them before
they are needed (`madvise(MADV_WILLNEED)` does nothing), so that a page is read when it is met.
Before each step the system drops what it holds of the files: it is the slowest that such an engine
can be. Linux alone, with a C compiler. Files of 0.3 GB a layer are written to `--folder` and
removed at the end.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pagoda.bench.inprocess import BenchEngine
from pagoda.config.engine import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from pagoda.kernels import cpu

_SIZES = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
    "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "vocab_size": 32000, "max_position_embeddings": 4096,
    "rope_theta": 1e6, "rms_norm_eps": 1e-6, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "tie_word_embeddings": True, "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
# Tokens, and how often each is measured.
_STEPS = ((1, 16), (512, 2))
_PAGEOUT = 21
_DEAF = """
#include <sys/syscall.h>
#include <unistd.h>
int madvise(void *data, unsigned long bytes, int advice) {
    return advice == 3 ? 0 : syscall(SYS_madvise, data, bytes, advice);
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--memory", type=float, default=1.6, help="GiB")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure is not None:
        print(json.dumps(measured(args.measure, args.memory)))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        compare(Path(name), args.layers, args.memory)


def compare(folder: Path, layers: int, memory: float) -> None:
    (folder / "config.json").write_text(json.dumps(_SIZES | {"num_hidden_layers": layers}))
    deaf = folder / "deaf.so"
    compiler = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(deaf)]
    subprocess.run(compiler, input=_DEAF, text=True, check=True)
    print(f"{'':32}{'1-token step':>18}{'512-token step':>22}")
    for words, limit, more in (
        ("all in memory", 0.0, {}),
        ("on disk", memory, {}),
        ("on disk, pages when they are met", memory, {"LD_PRELOAD": str(deaf)}),
    ):
        run = subprocess.run(
            [sys.executable, "-m", "tools.streamed_speed",
             "--measure", str(folder), "--memory", str(limit)],
            env={**os.environ, "PAGODA_CACHE": str(folder / "cache"), **more},
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        columns = (f"{rate:9.2f} tok/s {read:6.0f} MB" for rate, read in json.loads(run.stdout))
        print(f"{words:32}" + "".join(columns), flush=True)


def measured(folder: Path, memory: float) -> list[tuple[float, float]]:
    """Tokens/s, and MB that a step reads from disk; `memory` in GiB, 0: all there is."""
    share = memory * (1 << 30) / cpu.device_facts().total_memory if memory else 0.9
    config = EngineConfig(
        model=ModelConfig(str(folder), max_model_len=1024, load_format="dummy"),
        device=DeviceConfig("cpu"),
        cache=CacheConfig(gpu_memory_utilization=share, enable_prefix_caching=False),
    )
    engine = BenchEngine.start(config)
    engine.run([engine.random_prompt(512)], [1])
    found = []
    for length, times in _STEPS:
        seconds = nbytes = 0.0
        for _ in range(times):
            forget()
            before = bytes_read()
            seconds += engine.run([engine.random_prompt(length)], [1])
            nbytes += bytes_read() - before
        found.append((length * times / seconds, nbytes / times / 1e6))
    return found


def forget() -> None:
    """Have the system drop what it holds of the experts' files."""
    libc = ctypes.CDLL(None, use_errno=True)
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, *_, path = line.split()
        if "/experts/" not in path:
            continue
        begin, end = (int(number, 16) for number in where.split("-"))
        if libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _PAGEOUT) != 0:
            raise OSError(ctypes.get_errno(), "MADV_PAGEOUT, which Linux has from 5.4 on")
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bytes_read() -> int:
    """From disks, by this process and for it."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


if __name__ == "__main__":
    main()
