"""`bench throughput`: how many tokens a second come out when all prompts are there at once."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagoda.bench.inprocess import BenchEngine


def bench_throughput(
    engine: "BenchEngine",
    prompts: Sequence[list[int]],
    output_tokens: Sequence[int],
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """The figures under vLLM's JSON keys; one short request before them is not timed."""
    engine.run([engine.random_prompt(len(prompts[0]))], [1], temperature=1.0)
    progress(0, len(prompts))
    elapsed = engine.run(prompts, output_tokens, temperature=1.0, progress=progress)
    inputs, outputs = sum(map(len, prompts)), sum(output_tokens)
    return {
        "elapsed_time": elapsed,
        "num_requests": len(prompts),
        "total_num_tokens": inputs + outputs,
        "total_prompt_tokens": inputs,
        "total_output_tokens": outputs,
        "requests_per_second": len(prompts) / elapsed,
        "tokens_per_second": (inputs + outputs) / elapsed,
        "output_tokens_per_second": outputs / elapsed,
    }


def throughput_lines(result: dict[str, Any]) -> str:
    return (
        f"Throughput: {result['requests_per_second']:.2f} requests/s, "
        f"{result['tokens_per_second']:.2f} total tokens/s, "
        f"{result['output_tokens_per_second']:.2f} output tokens/s\n"
        f"Total num prompt tokens:  {result['total_prompt_tokens']}\n"
        f"Total num output tokens:  {result['total_output_tokens']}"
    )
