"""config.json of any architecture: a spec whose sizes can be reckoned with, or what is wrong.

Sources: src/pagoda/arch/, src/pagoda/weights/jsonfile.py.
"""

from pagoda.arch.registry import CONFIG_ARCHITECTURES, spec_for
from pagoda.base.errors import CheckpointError
from pagoda.weights.jsonfile import parse_json

WORDS = (
    *(b'"architectures":["%s"]' % name.encode() for name in CONFIG_ARCHITECTURES),
    *(
        b'"%s":' % key
        for key in (
            b"hidden_size", b"num_attention_heads", b"num_key_value_heads", b"head_dim",
            b"num_hidden_layers", b"vocab_size", b"rope_scaling", b"rope_parameters",
            b"sliding_window", b"layer_types", b"text_config", b"vision_config", b"num_experts",
            b"quantization_config", b"tie_word_embeddings", b"partial_rotary_factor",
        )
    ),
    b"null", b"true", b"[]", b"{}", b'""', b"-1", b"0", b"1e400", b"0.5", b"NaN", b"Infinity",
    b"1" + b"0" * 30, b"1" + b"0" * 400, b'"yarn"', b'"llama3"', b'"full_attention"', b"[1,2]",
)  # fmt: skip


def fuzz_config(data: bytes) -> None:
    try:
        config = parse_json(data, "config.json")
        spec = spec_for(config, {}, ())
    except CheckpointError as error:
        assert str(error).strip()
        return
    assert spec.layers and spec.hidden_size >= 1 and spec.vocab_size >= 1
