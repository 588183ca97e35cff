"""Vision towers that vLLM loads and Pagoda's specs leave out."""

from collections.abc import Mapping
from typing import Any

from pagoda.arch.read import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Reader


def tower_shapes(config: Mapping[str, Any] | None, out_size: int) -> list[tuple[int, ...]]:
    """Gemma 4's, which each rank holds whole (transformers' modeling_gemma4.py); empty for other
    models and without a config.json.

    Raises CheckpointError for a field of `vision_config` that is missing or wrong.
    """
    section = (config or {}).get("vision_config")
    if not isinstance(section, Mapping) or section.get("model_type") != "gemma4_vision":
        return []
    reader = Reader(section, "config.json: vision_config")
    hidden = reader.integer("hidden_size", MAX_WIDTH)
    wide = reader.integer("intermediate_size", MAX_WIDTH)
    heads = reader.integer("num_attention_heads", MAX_HEADS)
    head_dim = reader.integer("head_dim", MAX_WIDTH, hidden // heads)
    shared = reader.integer("num_key_value_heads", MAX_HEADS, heads)
    patch = reader.integer("patch_size", MAX_WIDTH, 16)
    positions = reader.integer("position_embedding_size", MAX_WIDTH, 10240)
    rows = [heads * head_dim, shared * head_dim, shared * head_dim]
    layer = [
        *((count, hidden) for count in rows),
        (hidden, heads * head_dim),
        *[(wide, hidden)] * 2,
        (hidden, wide),
        *[(hidden,)] * 4,
        *[(head_dim,)] * 2,
    ]
    count = reader.integer("num_hidden_layers", MAX_LAYERS)
    ends: list[tuple[int, ...]] = [(hidden, 3 * patch * patch), (2, positions, hidden)]
    return [*ends, *(layer * count), (out_size, hidden)]
