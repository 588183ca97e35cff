"""`python -m bench.adapters`: what adapters beside a model cost its decode steps.

Random adapters of one rank on every linear layer, which is the most that one may have. Two engines
in this process, with and without them, take turns, so that what else the machine does meets both.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

from pagoda import LLM, LoRARequest, SamplingParams
from pagoda.engine.served.text_side import fetch_model
from pagoda.engine.start.options import engine_config
from pagoda.weights.gguf.checkpoint import GgufCheckpoint
from pagoda.weights.source import find_model

_LINEAR = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_LOADS = ((1, 1), (16, 4))
"""Requests at once, and adapters that they have in turn."""
_PROMPT = 8


def write_adapter(path: Path, model: GgufCheckpoint, rank: int, seed: int) -> None:
    """Random numbers as llama.cpp's convert_lora_to_gguf.py lays them out."""
    numbers = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, str(model.metadata["general.architecture"]))
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    for name, info in model.tensors.items():
        if not name.startswith("blk.") or name.split(".")[2] not in _LINEAR:
            continue
        rows, columns = info.shape
        for half, shape in (("lora_a", (rank, columns)), ("lora_b", (rows, rank))):
            values = 0.01 * numbers.standard_normal(shape, np.float32)
            writer.add_tensor(f"{name}.{half}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def step_seconds(llm: LLM, loras: Sequence[LoRARequest | None], tokens: int) -> float:
    """The mean of a decode step of as many requests; their prompts' step is left out."""
    prompts = [{"prompt_token_ids": [9 + i] * _PROMPT} for i in range(len(loras))]

    def seconds(count: int) -> float:
        sampling = SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)
        begun = time.perf_counter()
        llm.generate(prompts, sampling, use_tqdm=False, lora_request=loras)
        return time.perf_counter() - begun

    return (seconds(1 + tokens) - seconds(1)) / tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="a GGUF (default: smollm2)")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--lora-dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=48, help="decode steps of a measurement")
    args = parser.parse_args()
    fetch_model(engine_config({"model": args.model}).model)
    model = find_model(args.model)
    assert model is not None
    checkpoint = GgufCheckpoint(model if model.is_file() else next(model.glob("*.gguf")))
    # Guessed tokens would make steps of other sizes, and not the same with and without.
    options = {
        "max_model_len": 256, "enable_prefix_caching": False,
        "speculative_config": {"method": "none"},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{i}.gguf" for i in range(max(count for _, count in _LOADS))]
        for seed, path in enumerate(paths):
            write_adapter(path, checkpoint, args.rank, seed)
        plain = LLM(model=args.model, **options)
        named = [f"{path.stem}={path}" for path in paths]
        adapted = LLM(model=args.model, lora_modules=named, lora_dtype=args.lora_dtype, **options)
        loras = [LoRARequest(path.stem, 1 + i, str(path)) for i, path in enumerate(paths)]
        print("| requests | adapters | step without | step with | ratio (lowest to highest) |")
        print("|---:|---:|---:|---:|---:|")
        for requests, count in _LOADS:
            pairs = [
                (
                    step_seconds(plain, [None] * requests, args.tokens),
                    step_seconds(adapted, [loras[i % count] for i in range(requests)], args.tokens),
                )
                for _ in range(args.rounds + 1)
            ][1:]
            ratios = sorted(having / lacking for lacking, having in pairs)
            lacking, having = (
                1e3 * statistics.median(column) for column in zip(*pairs, strict=True)
            )
            print(
                f"| {requests} | {count} | {lacking:.2f} ms | {having:.2f} ms | "
                f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) |"
            )


if __name__ == "__main__":
    main()
