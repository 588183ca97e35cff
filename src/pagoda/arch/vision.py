"""What a vision transformer in front of a language model is."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagoda.arch.mobilenet import MobileNetSpec

if TYPE_CHECKING:
    from pagoda.arch.spec import Activation, WeightRule


@dataclass(frozen=True)
class MergerSpec:
    """How a token's embedding is made of its patches: all of them are normalized side by side, and
    two linear layers, with an activation in between, make the language model's width."""

    norm_eps: float
    activation: "Activation"
    bias: bool
    """Both linear layers have one."""
    reduced: bool = False
    """Each patch is normalized by itself (RMS), and another linear layer makes a patch's width of
    all of them, feature by feature, in front of the two."""


@dataclass(frozen=True)
class VisionSpec:
    """A vision transformer whose outputs replace the embeddings of an image's tokens."""

    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    activation: "Activation"
    patch_size: int
    """Pixels of a patch's side."""
    temporal_patch: int
    """Frames of a patch."""
    merge: int
    """`merge * merge` patches become one token."""
    num_positions: int
    """Rows of the table of learned positions, a square that is interpolated to an image's grid (or
    that all images have, if `pooled`); if `pooled` and `gated` of each of two, one for columns and
    one for rows of patches; 0 where there is none."""
    rope_theta: float
    """0 where nothing turns."""
    norm_eps: float
    weights: tuple["WeightRule", ...]
    patch_bias: bool = True
    class_token: bool = False
    """A learned vector stands among the patches, with a learned position of its own. If patches
    turn, they do so from place 1 on, and it does not. A picture is read in tiles of the size that
    the positions are made for."""
    patch_norm: bool = False
    """Embeddings of patches are normalized before the first block."""
    block_bias: bool = True
    """Linear layers of blocks have biases; not so if `pooled` and `gated`."""
    qkv_bias: bool = True
    """With `block_bias`: those of q, k and v have one, too."""
    qk_norm: bool = False
    """All heads of q are normalized together, and all of k (RMS)."""
    scaled: bool = False
    """What attention and mlp of a block give is multiplied by a learned vector each."""
    final_norm: bool = False
    """A norm stands behind the last block, if not `pooled`."""
    rope_in_turns: bool = False
    """A head's frequencies turn by row and by column in turns; else every second one turns by
    both."""
    rms_norms: bool = False
    """Norms have no mean and no bias."""
    gated: bool = False
    """As in MlpSpec. If `pooled`, blocks are like Gemma 4's: norms stand behind their parts too,
    and nothing has a bias."""
    window: int | None = None
    """Tokens on the side of a square in which alone patches see each other; None: a patch sees all
    of its frame."""
    full_layers: tuple[int, ...] = ()
    """With `window`: layers in which a patch sees its frame all the same."""
    tokens_per_second: float | None = None
    """How far a second of a film moves the time of its tokens; None: a step of frames counts 1."""
    split_patches: bool = False
    """The weights of a patch's frames are tensors of their own (GGUF)."""
    color_planes: bool = False
    """The weights of a patch are stored color by color, not pixel by pixel."""
    both_ways: bool = False
    """In some of the language model's layers (`AttentionSpec.both_ways`) an image's tokens see each
    other."""
    pooled: bool = False
    """A token is the mean of its patches (Gemma 3 and 4), not what a layer of weights makes of
    them."""
    clipped: bool = False
    """If `pooled` and `gated`: what linear layers of blocks read and give lies within bounds that
    each of them has."""
    standardized: bool = False
    """If `pooled` and `gated`: learned vectors move and scale the means."""
    flat_patches: bool = False
    """The weights of a patch are stored as rows, not as a convolution's kernel."""
    adapter: int | None = None
    """Patches become a token by two linear layers of this width, without bias and with gelu behind
    each, and a third that makes the language model's; instead of a merger."""
    merger: MergerSpec | None = None
    """How patches become a token, if not `pooled`; None: as in Qwen's towers."""
    tiled: bool = False
    """A picture is read in tiles of the size that the positions are made for, and all of it once
    more. A token is the mean of its patches; a learned vector ends each row of tokens, over all
    tiles, another one stands in front of the whole, and two linear layers make the language model's
    width of each (Phi-4-multimodal)."""
    deepstack: tuple[int, ...] = ()
    """Layers whose outputs are added behind the language model's first layers, one to each
    (arXiv 2406.04334)."""
    mobile_net: MobileNetSpec | None = None
    """The tower is no transformer: its layers are these. A patch is a pixel; a token is the mean of
    its pixels (`pooled`), and one more ends each picture."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def image_tokens(self) -> int | None:
        """How many every image has, where all have one size; None where they differ."""
        if self.mobile_net is not None:
            return self.num_positions + 1
        return self.num_positions // self.merge**2 if self.pooled and not self.gated else None

    @property
    def patch_values(self) -> int:
        """Numbers that describe a patch: of its frames' pixels, three each."""
        return 3 * self.temporal_patch * self.patch_size**2
