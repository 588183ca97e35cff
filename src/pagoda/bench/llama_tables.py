"""llama-bench's output formats: md, csv, json, jsonl, sql."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pagoda.bench.llama_bench import Measurement

_MIB, _GIB = 1 << 20, 1 << 30
# Column: (heading, width, left-aligned); widths are llama-bench's.
_COLUMNS = {
    "model": ("model", 30, True),
    "size": ("size", 10, False),
    "params": ("params", 10, False),
    "backend": ("backend", 10, True),
    "n_gpu_layers": ("ngl", 3, False),
    "n_threads": ("threads", 7, False),
    "n_batch": ("n_batch", 7, False),
    "n_ubatch": ("n_ubatch", 8, False),
    "test": ("test", 15, False),
    "t/s": ("t/s", 20, False),
}

Row = tuple[Measurement, dict[str, Any]]
"""A measurement and its csv columns."""


def markdown(rows: Sequence[Row], version: str) -> str:
    columns = _shown(rows)
    lines = [
        "|" + "|".join(f" {_pad(_COLUMNS[column][0], column)} " for column in columns) + "|",
        "|" + "|".join(f" {_rule(column)} " for column in columns) + "|",
    ]
    for measurement, values in rows:
        cells = (_pad(_cell(column, measurement, values), column) for column in columns)
        lines.append("|" + "|".join(f" {cell} " for cell in cells) + "|")
    return "\n".join([*lines, "", f"build: pagoda-{version} (0)"])


def csv(rows: Sequence[Row], _version: str) -> str:
    if not rows:
        return ""
    lines = [",".join(rows[0][1])]
    lines += [",".join(_quoted(value) for value in values.values()) for _, values in rows]
    return "\n".join(lines)


def as_json(rows: Sequence[Row], _version: str) -> str:
    return json.dumps([_with_samples(row) for row in rows], indent=2)


def jsonl(rows: Sequence[Row], _version: str) -> str:
    return "\n".join(json.dumps(_with_samples(row)) for row in rows)


def sql(rows: Sequence[Row], _version: str) -> str:
    if not rows:
        return ""
    names = ", ".join(rows[0][1])
    columns = ",\n".join(f"  {name} {_sql_type(value)}" for name, value in rows[0][1].items())
    lines = [f"CREATE TABLE IF NOT EXISTS llama_bench (\n{columns}\n);", ""]
    for _, values in rows:
        texts = ", ".join(_sql_text(value) for value in values.values())
        lines.append(f"INSERT INTO llama_bench ({names}) VALUES ({texts});")
    return "\n".join(lines)


FORMATS: dict[str, Callable[[Sequence[Row], str], str]] = {
    "md": markdown,
    "csv": csv,
    "json": as_json,
    "jsonl": jsonl,
    "sql": sql,
}


def _shown(rows: Iterable[Row]) -> list[str]:
    """The columns of the table: batch sizes only where several were tried."""
    values = [values for _, values in rows]
    where = "n_threads" if all(row["n_gpu_layers"] == 0 for row in values) else "n_gpu_layers"
    tried = [name for name in ("n_batch", "n_ubatch") if len({row[name] for row in values}) > 1]
    return ["model", "size", "params", "backend", where, *tried, "test", "t/s"]


def _cell(column: str, measurement: Measurement, values: dict[str, Any]) -> str:
    model = measurement.model
    match column:
        case "model":
            return model.type
        case "size":
            unit, name = (_MIB, "MiB") if model.size < _GIB else (_GIB, "GiB")
            return f"{model.size / unit:.2f} {name}"
        case "params":
            millions = model.n_params < 1e9
            return f"{model.n_params / 1e6:.2f} M" if millions else f"{model.n_params / 1e9:.2f} B"
        case "backend":
            return str(values["backends"])
        case "test":
            return measurement.test.name
        case "t/s":
            return f"{measurement.avg_ts:.2f} ± {measurement.stddev_ts:.2f}"
    return str(values[column])


def _pad(text: str, column: str) -> str:
    _, width, left = _COLUMNS[column]
    return text.ljust(width) if left else text.rjust(width)


def _rule(column: str) -> str:
    _, width, left = _COLUMNS[column]
    return "-" * (width - 1) + ("-" if left else ":")


def _with_samples(row: Row) -> dict[str, Any]:
    measurement, values = row
    return {
        **values,
        "samples_ns": measurement.samples_ns,
        "samples_ts": [round(speed, 6) for speed in measurement.samples_ts],
    }


def _plain(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _quoted(value: Any) -> str:
    return '"' + _plain(value).replace('"', '""') + '"'


def _sql_text(value: Any) -> str:
    return "'" + _plain(value).replace("'", "''") + "'"


def _sql_type(value: Any) -> str:
    return "REAL" if isinstance(value, float) else "INTEGER" if isinstance(value, int) else "TEXT"
