"""The page of `bench gpu`: tables between the marks of docs/benchmarks/gpu.md."""

from collections.abc import Mapping, Sequence

from pagoda.bench.gpus.run import BATCHES, PROMPT, Ceilings, Measured

BEGIN, END = "<!-- measured -->", "<!-- end -->"


def tables(results: Sequence[Measured], ceilings: Ceilings, about: Mapping[str, str]) -> str:
    """Markdown; `about` says what was measured where, when and by which command."""
    lines = [f"- {name}: {value}" for name, value in about.items()]
    lines += [
        f"- it copies {ceilings.copy / 1e9:,.0f} GB/s (bytes read and written together) and "
        f"multiplies {ceilings.matmul / 1e12:,.0f} Tflop/s",
        "",
        "| model | ready s | " + " | ".join(f"decode {batch}" for batch in BATCHES)
        + f" | prefill {PROMPT:,} | x transformers at 16 |",
        "|---" * (len(BATCHES) + 4) + "|",
    ]  # fmt: skip
    lines += [_row(result) for result in results]
    notes = [f"- {result.model}: {result.note}" for result in results if result.note]
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def replaced(page: str, measured: str) -> str:
    """The page with what is between its marks replaced; ValueError where it has none."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"The page has no {BEGIN} with an {END} behind it.")
    return f"{head}{BEGIN}\n\n{measured}\n\n{END}{tail}"


def _row(result: Measured) -> str:
    name = f"{result.model}, {result.dtype}" if result.dtype else result.model
    cells = [name, f"{result.ready:.1f}" if result.ready else "-"]
    cells += [_speed(result.decode.get(batch), result.decode_best.get(batch)) for batch in BATCHES]
    cells.append(_speed(result.prefill or None, result.prefill_best or None))
    ratio = "-"
    if result.transformers and 16 in result.decode:
        ratio = f"{result.decode[16] / result.transformers:.1f}"
    return "| " + " | ".join([*cells, ratio]) + " |"


def _speed(found: float | None, best: float | None) -> str:
    """Tokens per second, and how much of the best that is."""
    if found is None or best is None:
        return "-"
    return f"{found:,.0f} ({found / best:.0%})"
