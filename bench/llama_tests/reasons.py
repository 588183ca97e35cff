"""Why a test of llama-server fails with Pagoda, by a pattern of its name."""

REASONS: dict[str, str] = {}
