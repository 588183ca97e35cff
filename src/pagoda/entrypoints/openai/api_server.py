"""`python -m pagoda.entrypoints.openai.api_server FLAGS`: `pagoda serve FLAGS`, by the name that
vLLM's server has as a module."""

import sys

from pagoda.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main(["serve", *sys.argv[1:]]))
