"""Several models or quantizations side by side."""

from collections.abc import Sequence

from pagoda.base.columns import columns, left, right
from pagoda.base.units import format_bytes
from pagoda.base.words import say, tell, told
from pagoda.doctor.answer import Answer
from pagoda.doctor.need import needed
from pagoda.doctor.streaming import streams

_SPLIT = {"weights": say("weights each"), "KV/token": say("KV/token each")}
_COLUMNS = (
    say("model"), say("fits"), say("weights"), say("KV/token"), say("context"), say("KV tokens"),
    say("at once"), say("decode"), say("prompt"),
)  # fmt: skip


def comparison(answers: Sequence[Answer]) -> list[str]:
    """A table with a row for each, tokens per second in its last two columns."""
    split = any(answer.config.parallel.num_ranks > 1 for answer in answers)
    header = tuple(told(_SPLIT.get(name, name) if split else name) for name in _COLUMNS)
    rows = [header, *(_row(answer) for answer in answers)]
    widths = [max(columns(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return [
        "  ".join(
            left(cell, width) if column == 0 else right(cell, width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _row(answer: Answer) -> tuple[str, ...]:
    if answer.resolution is None:
        plan = needed(answer)
        known = ("-", "-") if plan is None else (
            format_bytes(plan.weights),
            format_bytes(plan.kv_bytes_per_token) if plan.groups else "-",
        )  # fmt: skip
        return (answer.subject.ref, tell("no"), *known, *("-",) * (len(_COLUMNS) - 4))
    plan, speed = answer.resolution.plan, answer.speeds and answer.speeds.one
    fits = tell("no" if not answer.fits else "disk" if streams(answer) else "yes")
    return (
        answer.subject.ref,
        fits,
        format_bytes(plan.weights),
        format_bytes(plan.kv_bytes_per_token) if plan.groups else "-",
        f"{plan.max_model_len:,}" if plan.groups else "-",
        f"{plan.kv_tokens:,}" if plan.groups else "-",
        f"{plan.concurrency:.2f}x" if plan.groups else "-",
        f"{speed.decode:,.1f}" if speed else "-",
        f"{speed.prefill:,.0f}" if speed else "-",
    )
