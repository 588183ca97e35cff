"""How fast each product and attention is, beside how fast this GPU copies and multiplies."""

from tools.gpu_check.found import Clock, Found

_LEAST = 5.0


def run(found: Found, clock: Clock, play: bool) -> None:
    from pagoda.bench.gpus import run as bench
    from tools.gpu_check.work import cases

    device = cases.device(play)
    if play:
        bench._COPY_BYTES, bench._MATRIX, bench._PROBE_SECONDS = 1 << 16, 64, 0.01
    top = bench.measure_ceilings(device, bench.usual_type(device))
    found.put("ceilings", {"copy": top.copy, "matmul": top.matmul})
    for case in cases.all_cases(play):
        if clock.left() < _LEAST:
            found.put(case.name, {"fault": "not begun: out of time"})
            continue
        found.put(case.name, {"fault": "it ended the process, or took too long"})
        try:
            made = case.make()
            seconds = cases.seconds(made.compute, play)
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            found.put(case.name, {"fault": text})
            if cases.context_is_lost(text):
                raise
            continue
        least = max(made.nbytes / top.copy, made.flops / top.matmul)
        found.put(case.name, {
            "us": seconds * 1e6, "share": least / seconds, "layers": case.layers,
            "bound": "bytes" if made.nbytes / top.copy >= made.flops / top.matmul else "flops",
        })  # fmt: skip
        cases.forget()
