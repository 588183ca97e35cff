"""`pagoda pull`: fetch a model."""

import argparse

USAGE = "MODEL [--to DIR] [--revision REVISION]"
EPILOG = (
    "MODEL is smollm2, minilm, org/name or hf:org/name (with :FILE or :QUANT for one GGUF), or "
    "modelscope:org/name. HF_ENDPOINT names a mirror, HF_TOKEN a key."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ref", metavar="MODEL", help="what to fetch")
    parser.add_argument("--to", metavar="DIR", help="keep plain files in this folder")
    parser.add_argument("--revision", help="branch, tag or commit")


def run(args: argparse.Namespace) -> int:
    from pagoda.base.log import setup_logging
    from pagoda.weights.hub.models import pull
    from pagoda.weights.hub.progress import terminal_progress

    setup_logging("warning")
    with terminal_progress() as progress:
        path = pull(args.ref, args.to, revision=args.revision, progress=progress)
    print(path)
    return 0
