"""How near the doctor's predictions come: peak memory, KV tokens and decode speed of six models.

    python -m tools.doctor_accuracy [--only NAME ...] [--rounds 5]

The default model and five of random weights, of other families and formats, made in a temporary
folder. Each round asks `pagoda doctor --json` and then runs the engine in a process of its own:
prompts that fill the KV pool, as many requests at once as it takes with penalties and logprobs, a
prompt with logprobs, then one that decodes alone. Memory is private
(RssAnon), looked at every 5 ms; what is mapped from files can be dropped at any time.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from pagoda.base.machine import anonymous_bytes

_CACHE = "--kv-cache-memory-bytes"
# A byte that is a sane number in every format, as a half, an exponent and a level.
_FILL = 0x2C
_RUN = """
import json, sys
from pagoda.cli.main import parse_command
from pagoda.config.flags import engine_config
from pagoda.bench.inprocess import BenchEngine
from pagoda.core.sampling import SamplingParams
_, args = parse_command("serve", sys.argv[1:])
engine = BenchEngine.start(engine_config(args))
ready = engine.ready
length = min(ready.max_model_len, 1024)
fill = [engine.random_prompt(length - 2) for _ in range(ready.kv_tokens // length)]
engine.run(fill, [2] * len(fill), temperature=1.0)
crowd = [engine.random_prompt(4) for _ in range(ready.max_num_seqs)]
everything = SamplingParams(top_p=0.9, presence_penalty=0.5, logprobs=5)
engine.run(crowd, [4] * len(crowd), temperature=1.0, sampling=everything)
scored = [engine.random_prompt(min(512, length - 2))]
engine.run(scored, [1], sampling=SamplingParams(prompt_logprobs=1))
alone = [engine.random_prompt(min(length - 80, 512))]
engine.run_decode(alone, [16])
samples = [engine.run_decode([engine.random_prompt(len(alone[0]))], [64]) for _ in range(3)]
seconds, tokens = min(samples)
print(json.dumps({"kv_tokens": ready.kv_tokens, "decode": tokens / seconds}))
"""

Maker = Callable[[Path], list[str]]


def smollm2(folder: Path) -> list[str]:
    return ["smollm2", _CACHE, "48M"]


def llama_q4_k(folder: Path) -> list[str]:
    """TinyLlama's sizes; the matrices that llama.cpp's Q4_K_M keeps in Q6_K are here, too."""
    path = folder / "llama-Q4_K_M.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    hidden, wide, layers, heads, kv_heads, vocab = 2048, 5632, 22, 32, 4, 32000
    writer.add_block_count(layers)
    writer.add_context_length(2048)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(wide)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_vocab_size(vocab)
    kinds = gguf.GGMLQuantizationType
    kv = kv_heads * hidden // heads
    _add(writer, "token_embd.weight", (vocab, hidden), kinds.Q4_K)
    _add(writer, "output.weight", (vocab, hidden), kinds.Q6_K)
    _add(writer, "output_norm.weight", (hidden,), kinds.F32)
    for index in range(layers):
        deep = kinds.Q6_K if index % 2 else kinds.Q4_K
        for name, shape, kind in (
            ("attn_norm", (hidden,), kinds.F32), ("ffn_norm", (hidden,), kinds.F32),
            ("attn_q", (hidden, hidden), kinds.Q4_K), ("attn_k", (kv, hidden), kinds.Q4_K),
            ("attn_v", (kv, hidden), deep), ("attn_output", (hidden, hidden), kinds.Q4_K),
            ("ffn_gate", (wide, hidden), kinds.Q4_K), ("ffn_up", (wide, hidden), kinds.Q4_K),
            ("ffn_down", (hidden, wide), deep),
        ):  # fmt: skip
            _add(writer, f"blk.{index}.{name}.weight", shape, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return [str(path), _CACHE, "48M"]


def _add(
    writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...], kind: gguf.GGMLQuantizationType
) -> None:
    if kind == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, np.ones(shape, np.float32))
        return
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.full((*shape[:-1], shape[-1] // block * size), _FILL, np.uint8)
    writer.add_tensor(name, raw, raw_dtype=kind)


_COMMON = {
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16",
    "hidden_act": "silu", "rope_theta": 1e6, "tie_word_embeddings": True,
}  # fmt: skip
_QWEN3 = {
    **_COMMON, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
}  # fmt: skip
_GPT_OSS = {
    **_COMMON, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
    "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 2,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
    "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
    "attention_bias": True, "tie_word_embeddings": False,
}  # fmt: skip


def qwen3_bf16(folder: Path) -> list[str]:
    # With room for as many requests at once as the plan counts.
    return _dummy(folder, _QWEN3, cache="128M")


def gpt_oss_bf16(folder: Path) -> list[str]:
    """Two layers of the 20b."""
    """Two layers of the 20b."""
    return _dummy(folder, _GPT_OSS)


def _dummy(folder: Path, config: Mapping[str, Any], cache: str = "48M") -> list[str]:
    (folder / "config.json").write_text(json.dumps(config))
    return [str(folder), "--load-format", "dummy", _CACHE, cache]


def moe_int8(folder: Path) -> list[str]:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        hidden_size=1024, num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=4,
        head_dim=64, num_experts=32, num_experts_per_tok=4, moe_intermediate_size=768,
        vocab_size=32000, max_position_embeddings=4096, norm_topk_prob=True,
    )  # fmt: skip
    return _saved(folder, Qwen3MoeForCausalLM, config, "int8")


def qwen3_5_int4(folder: Path) -> list[str]:
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        hidden_size=1024, intermediate_size=3584, num_hidden_layers=24, num_attention_heads=8,
        num_key_value_heads=2, head_dim=256, vocab_size=64000, max_position_embeddings=4096,
        linear_num_key_heads=16, linear_num_value_heads=16,
    )  # fmt: skip
    # A state takes as much as 1,000 tokens' keys and values.
    return _saved(folder, Qwen3_5ForCausalLM, config, "int4", cache="256M")


def _saved(
    folder: Path, model_class: Any, config: Any, method: str, cache: str = "48M"
) -> list[str]:
    import torch

    torch.set_default_dtype(torch.bfloat16)
    model_class(config).save_pretrained(folder)
    torch.set_default_dtype(torch.float32)
    return [str(folder), "--quantization", method, _CACHE, cache]


MODELS: Mapping[str, Maker] = {
    maker.__name__: maker
    for maker in (smollm2, llama_q4_k, qwen3_bf16, gpt_oss_bf16, moe_int8, qwen3_5_int4)
}


def measure(flags: list[str]) -> dict[str, Any]:
    """Peak private memory, KV tokens and decode speed of the engine."""
    peak, done = 0, threading.Event()
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, *flags, "--device", "cpu"], stdout=subprocess.PIPE, text=True
    )

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, anonymous_bytes(process.pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        out, _ = process.communicate(timeout=1800)
    finally:
        done.set()
        thread.join()
    if process.returncode:
        raise SystemExit(f"The engine failed: {' '.join(flags)}")
    return {**json.loads(out.splitlines()[-1]), "peak": peak}


def predict(flags: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "pagoda", "doctor", *flags, "--json", "--device", "cpu"]
    begun = time.perf_counter()
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = json.loads(out)
    return {
        "peak": found["memory_total"], "kv_tokens": found["kv_tokens"],
        "decode": found["speed"]["decode_tokens_per_second"],
        "seconds": time.perf_counter() - begun,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print("| model | peak MiB, predicted | measured | off | KV tokens | decode, predicted "
          "| measured | off | doctor s |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    for name in args.only:
        with tempfile.TemporaryDirectory() as place:
            flags = MODELS[name](Path(place))
            rounds = [(predict(flags), measure(flags)) for _ in range(args.rounds)]
        print(_row(name, rounds), flush=True)


def _row(name: str, rounds: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    def median(side: int, key: str) -> float:
        return statistics.median(pair[side][key] for pair in rounds)

    tokens = {pair[side]["kv_tokens"] for pair in rounds for side in (0, 1)}
    same = "exact" if len(tokens) == 1 else f"differ: {sorted(tokens)}"
    peaks, speeds = (
        [median(0, key), median(1, key)] for key in ("peak", "decode")
    )  # fmt: skip
    # Speeds are compared round by round: the machine's own changes from one to the next.
    off = statistics.median(
        predicted["decode"] / found["decode"] - 1 for predicted, found in rounds
    )
    return (
        f"| {name} | {peaks[0] / 2**20:.0f} | {peaks[1] / 2**20:.0f} "
        f"| {peaks[0] / peaks[1] - 1:+.1%} | {same} | {speeds[0]:.1f} | {speeds[1]:.1f} "
        f"| {off:+.1%} | {median(0, 'seconds'):.2f} |"
    )


if __name__ == "__main__":
    main()
