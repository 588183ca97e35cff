"""The shapes that are measured, cut to files of about 6 GB at most: contenders that are not
measured keep their models, and three have to fit 24 GB of memory."""

from dataclasses import replace

from bench.peers.shapes.decoder import Decoder
from bench.peers.shapes.gemma4 import Gemma4Moe
from bench.peers.shapes.gpt_oss import GptOss
from bench.peers.shapes.llama import Llama, Qwen3, Qwen3Moe, Qwen3Vl
from bench.peers.shapes.qwen35 import Qwen35Moe

_LLAMA_3_8B = Llama(
    layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, mlp=14336, vocabulary=128256
)
SHAPES: dict[str, Decoder] = {
    # Qwen3-1.7B's depth and width; with the default model's vocabulary, a wider MLP makes it 1.7B.
    "1.7b": Llama(
        layers=28, hidden=2048, heads=16, kv_heads=8, head_dim=128, mlp=7168, tied=True
    ),
    "qwen3-4b": Qwen3(
        layers=36, hidden=2560, heads=32, kv_heads=8, head_dim=128, mlp=9728,
        vocabulary=151936, tied=True,
    ),
    "8b": _LLAMA_3_8B,
    # Half of its layers, for formats in which the contenders could not hold all of them.
    "8b-half": replace(_LLAMA_3_8B, layers=16),
    # Qwen3-30B-A3B with a quarter of its 48 layers.
    "30b-a3b": Qwen3Moe(
        layers=12, hidden=2048, heads=32, kv_heads=4, head_dim=128, vocabulary=151936,
        experts=128, used=8, expert_mlp=768,
    ),
    # gpt-oss-20b with 10 of its 24 layers.
    "gpt-oss": GptOss(
        layers=10, hidden=2880, heads=64, kv_heads=8, head_dim=64, vocabulary=201088,
        experts=32, used=4, expert_mlp=2880, window=128,
    ),
    # Gemma 4 26B-A4B with 12 of its 30 layers: two whole groups, each with one without a window.
    "gemma4-26b-a4b": Gemma4Moe(
        layers=12, hidden=2816, heads=16, kv_heads=8, head_dim=256, vocabulary=262144, tied=True,
        mlp=2112, experts=128, used=8, expert_mlp=704,
        window=1024, global_kv_heads=2, global_head_dim=512,
    ),
    # Qwen3.6-35B-A3B with 8 of its 40 layers: two whole groups, each with one of attention.
    "qwen3.6-35b-a3b": Qwen35Moe(
        layers=8, hidden=2048, heads=16, kv_heads=2, head_dim=256, vocabulary=248320,
        experts=256, used=8, expert_mlp=512, shared_mlp=512, turning=64,
        key_heads=16, value_heads=32, state=128, conv_width=4,
    ),
    # Qwen3-VL-2B's text side with as many of its 28 layers as deepstack adds to.
    "qwen3-vl-2b-text": Qwen3Vl(
        layers=3, hidden=2048, heads=16, kv_heads=8, head_dim=128, mlp=6144, tied=True, deepstack=3
    ),
}  # fmt: skip
