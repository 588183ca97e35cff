from pagoda.arch.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, RopeSpec
from pagoda.core.kvcache.spec import KVGroupSpec, KVLayout, kv_groups


def layer(kind: str, window: int | None, num_kv_heads: int = 2) -> LayerSpec:
    attention = AttentionSpec(kind, 4, num_kv_heads, 8, 1.0, RopeSpec(1e4, 8), window)
    return LayerSpec(attention, MlpSpec(16))


def model(*layers: LayerSpec) -> ModelSpec:
    return ModelSpec(
        architecture="Test", vocab_size=10, hidden_size=32, layers=layers, norm_eps=1e-5,
        tie_word_embeddings=True, max_position=64, dtype="float32", weights=(),
    )  # fmt: skip


def test_layers_alike_form_one_group():
    assert kv_groups(model(layer("full", None), layer("full", None)), KVLayout()) == [
        KVGroupSpec("full", (0, 1), 2, 8, 16)
    ]


def test_kinds_windows_and_head_counts_are_kept_apart():
    spec = model(
        layer("sliding", 6), layer("full", None), layer("sliding", 6), layer("full", None, 4),
        layer("sliding", 9),
    )  # fmt: skip
    assert kv_groups(spec, KVLayout(block_size=4)) == [
        KVGroupSpec("sliding", (0, 2), 2, 8, 4, 6),
        KVGroupSpec("full", (1,), 2, 8, 4),
        KVGroupSpec("full", (3,), 4, 8, 4),
        KVGroupSpec("sliding", (4,), 2, 8, 4, 9),
    ]


def test_bytes_per_block_count_keys_and_values_of_all_layers():
    # 2 layers x (K and V) x 2 heads x 16 tokens x 8 dimensions x 2 bytes
    assert KVGroupSpec("full", (0, 1), 2, 8, 16).block_bytes == 2048
    # 8 bytes and a scale of 4
    assert KVGroupSpec("full", (0, 1), 2, 8, 16, kv_dtype="int8").block_bytes == 2 * 2 * 2 * 16 * 12
    # 40 dimensions in 20 bytes, and scales of 2 for 32 of them and for the last 8
    assert KVGroupSpec("full", (0, 1), 2, 40, 16, kv_dtype="q4_0").block_bytes == 2 * 2 * 768
    # Each part starts at a cache line: 3 heads x 1 token x 2 x 2 bytes take 64.
    assert KVGroupSpec("full", (0,), 3, 2, 1).block_bytes == 2 * 64
