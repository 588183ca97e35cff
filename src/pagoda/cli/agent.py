"""`pagoda agent`: a served model that sees operates a computer."""

from pagoda_agent.cli.main import EPILOG, USAGE, add_arguments, run

__all__ = ["EPILOG", "USAGE", "add_arguments", "run"]
