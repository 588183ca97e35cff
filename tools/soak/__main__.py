import argparse
import asyncio
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from pagoda.base.errors import PagodaError
from tools.soak import __doc__ as about
from tools.soak.chaos import KINDS
from tools.soak.house import TEXT, House
from tools.soak.report import as_json, markdown
from tools.soak.run import Plan, Run, version_of


def main() -> int:
    args = _arguments()
    kinds = () if args.chaos == "none" else tuple(args.chaos.split(","))
    if unknown := set(kinds) - KINDS.keys():
        sys.exit(f"There is no chaos {', '.join(unknown)}; there is {', '.join(KINDS)}, or none.")
    plan = Plan(
        seconds=args.minutes * 60, clients=args.clients, seed=args.seed, kinds=kinds,
        chaos_seconds=args.chaos_seconds, calm=args.calm, lull_seconds=args.lull_seconds,
        idle_seconds=args.idle_seconds, deadline=args.deadline,
        recovery_seconds=args.recovery_seconds, stop_seconds=args.stop_seconds,
    )  # fmt: skip
    house = House(args.model, tuple(args.flags))
    try:
        house.start()
        version = version_of(house.server.url)
        run = Run(house, plan)
        asyncio.run(run())
        log = house.log
    except PagodaError as error:
        sys.exit(str(error))
    finally:
        house.close()
    figures = {"date": f"{datetime.now(UTC):%Y-%m-%d}, Pagoda {version}", **run.figures()}
    gates = run.gates()
    print(markdown(figures, gates, run.load.faults))
    passed = all(gate.passed for gate in gates)
    args.output.write_text(json.dumps(as_json(figures, gates, run.load.faults, run.record)))
    print(f"\nAlso in {args.output}.", file=sys.stderr)
    if not passed:
        args.output.with_suffix(".log").write_text("\n".join(log))
        print("The log of all servers is beside it.", file=sys.stderr)
    return 0 if passed else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.soak", description=about.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--minutes", type=float, default=60.0, help="length, without learning and the end")
    add("--model", default=TEXT, help="the model that writes")
    add("--clients", type=int, default=12, help="requests under way at once")
    add("--seed", type=int, default=0, help="of clients and chaos")
    add("--chaos", default=",".join(KINDS), help="what may be harmed; none for nothing")
    add("--chaos-seconds", type=float, default=45.0, help="from one harm to the next, about")
    add("--calm", type=float, default=0.4, help="last share of the time, without chaos")
    add("--lull-seconds", type=float, default=240.0, help="from one quiet look to the next")
    add("--idle-seconds", type=float, default=20.0, help="length of an idle measurement")
    add("--deadline", type=float, default=240.0, help="a reply that takes longer hangs")
    add("--recovery-seconds", type=float, default=90.0, help="a harmed model serves again by then")
    add("--stop-seconds", type=float, default=120.0, help="a stopped engine is noticed by then")
    output = Path(tempfile.gettempdir()) / "pagoda-soak.json"
    add("--output", type=Path, default=output, help="file for all figures")
    add("flags", nargs="*", help="flags of `pagoda serve`, behind --")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
