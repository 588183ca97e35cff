"""config.json or GGUF metadata of an EAGLE-3 head: a head that fits its model, or what is wrong.

Sources: src/pagoda/arch/eagle3.py.
"""

from pagoda.arch.eagle3 import with_eagle3_head
from pagoda.arch.registry import spec_for
from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.planner.memory.tensors import parameter_count
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.jsonfile import parse_json

WORDS = (
    *(
        b'"%s":' % key
        for key in (
            b"hidden_size", b"target_hidden_size", b"draft_vocab_size", b"vocab_size", b"head_dim",
            b"num_hidden_layers", b"num_attention_heads", b"eagle_aux_hidden_state_layer_ids",
            b"eagle_config", b"transformer_layer_config", b"norm_before_residual", b"rope_scaling",
            b"norm_before_fc", b"use_aux_hidden_state", b"eagle3.target_layers",
            b"eagle3.extract_layers", b"eagle3.block_count", b"eagle3.attention.head_count",
        )
    ),
    b"null", b"true", b"[]", b"{}", b'""', b"-1", b"0", b"1e400", b"NaN", b"[1,2,3]", b"[2,2]",
    b"1" + b"0" * 30, b'"llama3"',
)  # fmt: skip
_MODEL = spec_for(
    {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
        "num_attention_heads": 4, "num_hidden_layers": 12, "vocab_size": 300,
        "max_position_embeddings": 64,
    },
    {}, (),
)  # fmt: skip
_NAMES = ("fc.weight", "midlayer.hidden_norm.weight", "lm_head.weight", "output.weight", "d2t")
_TENSORS = {name: TensorInfo(name, (32,), "F32", 128) for name in _NAMES}


def fuzz_draft_head(data: bytes) -> None:
    try:
        given = parse_json(data, "config.json")
        is_gguf = "general.architecture" in given
        config, metadata = (None, given) if is_gguf else (given, {})
        spec = with_eagle3_head(_MODEL, config, metadata, _TENSORS, "HEAD")
    except (CheckpointError, UnsupportedModelError) as error:
        assert str(error).strip()
        return
    head = spec.draft_head
    assert spec.drafts and head is not None and head.eagle3 is not None
    assert all(1 <= layer <= 12 for layer in head.eagle3.reads)
    assert parameter_count(spec) > parameter_count(_MODEL)
