"""`pagoda list`: the models in the cache."""

import argparse
import time

USAGE = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    from pagoda.base.units import format_bytes
    from pagoda.weights.hub.models import list_models

    models = list_models()
    if args.json:
        import json

        rows = [{"name": m.name, "path": str(m.path), "bytes": m.nbytes} for m in models]
        print(json.dumps(rows, indent=2))
        return 0
    if not models:
        print("The cache is empty; `pagoda pull smollm2` fetches a small model.")
        return 0
    width = max(len(model.name) for model in models) + 2
    print(f"{'NAME':<{width}}{'SIZE':>12}  MODIFIED")
    for model in models:
        date = time.strftime("%Y-%m-%d %H:%M", time.localtime(model.modified))
        print(f"{model.name:<{width}}{format_bytes(model.nbytes):>12}  {date}")
    return 0
