"""`pagoda list`: the models in the cache."""

import argparse
import time

USAGE = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    from pagoda.base.columns import table
    from pagoda.base.units import format_bytes
    from pagoda.base.words import tell
    from pagoda.weights.hub.models import list_models

    models = list_models()
    if args.json:
        import json

        rows = [{"name": m.name, "path": str(m.path), "bytes": m.nbytes} for m in models]
        print(json.dumps(rows, indent=2))
        return 0
    if not models:
        print(tell("The cache is empty; `pagoda pull smollm2` fetches a small model."))
        return 0
    cells = [(model.name, format_bytes(model.nbytes), _date(model.modified)) for model in models]
    head = (tell("NAME"), tell("SIZE"), tell("MODIFIED"))
    print("\n".join(table(head, cells, texts={0, 2})))
    return 0


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
