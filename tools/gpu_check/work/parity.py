"""A share of the products and of attention at the sizes of real models, against references."""

import time

from tools.gpu_check.found import Clock, Found

_LEAST = 15.0
"""Seconds; a form takes as long to compile at worst."""


def run(found: Found, clock: Clock, play: bool, share: str, shares: str) -> None:
    from tools.gpu_check.work import cases

    for case in cases.all_cases(play)[int(share) :: int(shares)]:
        if clock.left() < _LEAST:
            found.put(case.name, {"fault": "not begun: out of time"})
            continue
        # Said beforehand, for a launch may end the process.
        found.put(case.name, {"fault": "it ended the process, or took too long"})
        row: dict[str, object] = {}
        try:
            begun = time.perf_counter()
            made = case.make()
            out = made.compute()
            cases.synchronize(out)
            row["first s"] = round(time.perf_counter() - begun, 2)
            if made.reference is not None:
                row["error"] = cases.error(out, made.reference())
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what was found
            row["fault"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        found.put(case.name, row)
        if cases.context_is_lost(str(row.get("fault", ""))):
            raise RuntimeError(f"the context was lost in {case.name}")
