"""Vision towers of random weights, in the file that llama.cpp's converter makes of one (mmproj):
`--mmproj` of Pagoda, and mtmd of llama.cpp, read the same."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from bench.peers.random_rows import row_maker
from bench.peers.shapes.formats import Type


@dataclass(frozen=True)
class Tower:
    """Qwen3-VL's."""

    layers: int
    hidden: int
    heads: int
    mlp: int
    positions: int
    """On a side of the table of learned positions."""
    out: int
    """Numbers of an embedding: the language model's width."""
    deepstack: tuple[int, ...]
    """Layers whose outputs are embeddings, too."""
    patch: int = 16
    merge: int = 2

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names without their ends, and shapes of the weights; all have a bias but the positions,
        and norms are vectors."""
        hidden, merged = self.hidden, self.hidden * self.merge**2
        yield "v.patch_embd", (hidden, 3, self.patch, self.patch)
        yield "v.position_embd", (self.positions**2, hidden)
        for layer in range(self.layers):
            block = f"v.blk.{layer}."
            yield block + "ln1", (hidden,)
            yield block + "attn_qkv", (3 * hidden, hidden)
            yield block + "attn_out", (hidden, hidden)
            yield block + "ln2", (hidden,)
            yield block + "ffn_up", (self.mlp, hidden)
            yield block + "ffn_down", (hidden, self.mlp)
        for layer in self.deepstack:
            yield f"v.deepstack.{layer}.norm", (merged,)
            yield f"v.deepstack.{layer}.fc1", (merged, merged)
            yield f"v.deepstack.{layer}.fc2", (self.out, merged)
        yield "v.post_ln", (hidden,)
        yield "mm.0", (merged, merged)
        yield "mm.2", (self.out, merged)


# Qwen3-VL-2B's.
QWEN3_VL_2B = Tower(
    layers=24, hidden=1024, heads=16, mlp=4096, positions=48, out=2048, deepstack=(5, 11, 17)
)
TOWER_FORMATS = ("f16", "q8_0")
"""As Qwen publishes them."""


def write_random_tower(path: Path, tower: Tower, storage: str) -> None:
    """A GGUF file. `storage`, one of `TOWER_FORMATS`, is that of the matrices. The weights of
    patches are fp16 in a file of fp16, else fp32; vectors and positions always are."""
    writer = gguf.GGUFWriter(path, "clip")
    _describe(writer, tower)
    rng = np.random.default_rng(0)
    patches = Type.F16 if storage == "f16" else Type.F32
    of_kind = {kind: row_maker(kind, rng) for kind in (Type[storage.upper()], patches, Type.F32)}
    for name, shape in tower.tensors():
        if name == "v.patch_embd":
            for end in (".weight", ".weight.1"):  # of the first frame, and of the second
                rows = of_kind[patches](shape[0], int(np.prod(shape[1:])))
                writer.add_tensor(name + end, rows.reshape(shape))
        elif name == "v.position_embd":
            writer.add_tensor(name + ".weight", of_kind[Type.F32](*shape))
            continue
        elif len(shape) == 1:
            writer.add_tensor(name + ".weight", np.ones(shape, np.float32))
        else:
            kind = Type[storage.upper()]
            writer.add_tensor(name + ".weight", of_kind[kind](*shape), raw_dtype=kind)
        writer.add_tensor(name + ".bias", of_kind[Type.F32](1, shape[0])[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter, tower: Tower) -> None:
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_name("Random tower")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(gguf.VisionProjectorType.QWEN3VL)
    writer.add_vision_use_gelu(True)
    writer.add_vision_projection_dim(tower.out)
    writer.add_vision_image_size(tower.positions * tower.patch)
    writer.add_vision_patch_size(tower.patch)
    writer.add_vision_spatial_merge_size(tower.merge)
    writer.add_vision_embedding_length(tower.hidden)
    writer.add_vision_feed_forward_length(tower.mlp)
    writer.add_vision_block_count(tower.layers)
    writer.add_vision_head_count(tower.heads)
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_vision_image_mean([0.5, 0.5, 0.5])
    writer.add_vision_image_std([0.5, 0.5, 0.5])
    writer.add_vision_is_deepstack_layers([i in tower.deepstack for i in range(tower.layers)])
