"""Where things are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "peers"
MODELS = CACHE / "models"
RESULTS = CACHE / "results"
WORKERS = Path(__file__).parent / "workers"
