"""What an architecture is: layers, sizes and where each weight lies in a checkpoint.

Torch-free, so that the planner can reason about a model that is never loaded.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from pagoda.arch.encoder import EncoderSpec
from pagoda.arch.hearing import AudioSpec
from pagoda.arch.latent import LatentSpec
from pagoda.arch.recurrent import RecurrentSpec
from pagoda.arch.stage import StageSpec
from pagoda.arch.streams import AltUpSpec, LayerInputSpec
from pagoda.arch.vision import VisionSpec
from pagoda.base.errors import ConfigError

AttentionKind = Literal["full", "sliding", "encoder"]
"""`encoder` sees both ways and keeps no KV; the others are causal."""
Activation = Literal["silu", "gelu", "gelu_tanh", "gelu_quick", "relu", "relu2"]
"""`relu2` is the square of `relu` (arXiv 2109.08668)."""
PoolingMethod = Literal["mean", "cls", "last", "max"]
TOWERS = ("vision.", "audio.")
"""How names of parameters begin that belong to encoders of media."""


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies stretch past the trained context; `kind` as in config.json."""

    kind: Literal["linear", "dynamic", "llama3", "yarn", "longrope"]
    factor: float
    original_max_position: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """yarn: round the ramp's ends to whole dimensions."""
    attention_factor: float = 1.0
    """yarn, longrope: what cosines and sines are multiplied with."""
    short_factors: tuple[float, ...] = ()
    """longrope: divisors of the frequencies for contexts up to `original_max_position`."""
    long_factors: tuple[float, ...] = ()
    """longrope: divisors for longer contexts."""


@dataclass(frozen=True)
class RopeSpec:
    theta: float
    rotary_dim: int
    scaling: RopeScaling | None = None
    factors_tensor: str | None = None
    """A GGUF tensor of per-frequency divisors (Llama 3; longrope's short ones)."""
    long_factors_tensor: str | None = None
    """longrope's long ones."""
    num_turning: int | None = None
    """The first of the frequencies, behind which all are 0; None: all turn."""
    axes: tuple[int, ...] | None = None
    """Which coordinate of an image token (0 time, 1 row, 2 column) turns each frequency; None
    where positions are one number. Of text all three are equal."""


@dataclass(frozen=True)
class QueryScaling:
    """A query at position p is multiplied by 1 + strength * log(1 + floor((p + offset) / length)),
    so that attention stays as sharp among many keys (arXiv 2501.19399)."""

    strength: float
    length: int
    offset: int = 0


@dataclass(frozen=True)
class AttentionSpec:
    kind: AttentionKind
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec | None
    """None where q and k are not rotated."""
    window: int | None = None
    """Tokens a query sees, itself included; None sees all. An encoder's sees as many behind it."""
    chunked: bool = False
    """A query sees those of its window alone that the text's last multiple of `window` begins."""
    qkv_bias: bool = False
    key_bias: bool = True
    """With `qkv_bias`: k has one too."""
    heard: int | None = None
    """Instead of its own text a query sees the first so many tokens of its request, which are a
    sound's: keys and values are made of their embeddings."""
    output_bias: bool = False
    qk_norm: bool = False
    qk_norm_whole: bool = False
    """With `qk_norm`: all heads of q are normalized together, and all of k, not each of them."""
    qk_norm_turned: bool = False
    """With `qk_norm`: heads are normalized behind their rotation."""
    qk_unit: bool = False
    """As `qk_norm`, without weights."""
    query_scaling: QueryScaling | None = None
    value_norm: bool = False
    """Beside `qk_norm`: each head of v is normalized, without weights."""
    values_are_keys: bool = False
    """v is what k is before its norm and rotation, instead of a projection of its own."""
    output_gate: bool = False
    """Each head's result is multiplied by the sigmoid of a projection of its own size."""
    sinks: bool = False
    """Each head has a logit of its own beside its keys' in the softmax, for nothing to look at."""
    both_ways: bool = False
    """The tokens of one image see each other."""
    logit_cap: float | None = None
    """c, if a key's logit becomes c * tanh(logit / c)."""
    borrows: int = 0
    """How many layers before this one the one lies whose keys and values it attends to; 0: it has
    its own."""
    latent: LatentSpec | None = None
    """Then there is one KV head, whose size is `cached_dim`, and values are its keys."""


@dataclass(frozen=True)
class MlpSpec:
    intermediate_size: int
    activation: Activation = "silu"
    bias: bool = False
    gated: bool = True
    """down(act(gate(x)) * up(x)); else down(act(up(x)))."""
    cut: float | None = None
    """If `gated`: of gate's features those remain that lie so many standard deviations above their
    mean, as what they have more than that; the others become 0."""


@dataclass(frozen=True)
class ClampedSwiglu:
    """(up + 1) * gate * sigmoid(alpha * gate), gate at most `limit`, up within +-`limit`."""

    alpha: float = 1.702
    limit: float = 7.0


@dataclass(frozen=True)
class SharedExpert:
    """An expert of every token beside those that the router chooses."""

    intermediate_size: int
    gated: bool = False
    """Multiplied by the sigmoid of a logit of its own."""


@dataclass(frozen=True)
class MoeSpec:
    """A mixture of experts: a router sends each token to `top_k` of them, whose results are
    summed by weight."""

    num_experts: int
    top_k: int
    intermediate_size: int
    """Width of one expert."""
    scoring: Literal["softmax", "topk_softmax", "sigmoid"] = "softmax"
    """A weight is the expert's share of a softmax over all experts, over the chosen ones, or the
    sigmoid of its own logit."""
    corrected: bool = False
    """Experts are chosen by their weight plus a number of each one's own, which the weight itself
    is without."""
    groups: int = 1
    """Experts lie in so many equal groups."""
    top_groups: int = 1
    """Experts are chosen from so many groups, those whose best add up to most."""
    group_best: int = 2
    """So many of a group's are added up: 1 or 2."""
    renormalize: bool = False
    """The chosen experts' weights are made to sum to 1."""
    scale: float = 1.0
    """What weights are multiplied with at last."""
    expert_scales: bool = False
    """Each expert has a number that its weights are multiplied with at last."""
    activation: Activation = "silu"
    gated: bool = True
    """down(activation(gate(x)) * up(x)); else down(activation(up(x))). So are those of `shared`."""
    clamped: ClampedSwiglu | None = None
    """What is computed instead of `activation`."""
    bias: bool = False
    """On experts and router."""
    shared: SharedExpert | None = None
    weighs_inputs: bool = False
    """A weight is multiplied with what its expert reads, and not with what that one says."""
    num_chosen_from: int = 0
    """Experts of all ranks, where others have some of them; 0: these are all."""


@dataclass(frozen=True)
class LayerSpec:
    mixer: AttentionSpec | RecurrentSpec
    """What mixes tokens."""
    mlp: MlpSpec | None
    """None where there are experts instead, or no feed-forward part at all."""
    experts: MoeSpec | None = None
    """Instead of an mlp, or beside it."""
    sandwiched: bool = False
    """What mixer and feed-forward part give is normalized before it is added. Where there are
    experts beside an mlp, either's result is normalized first, and experts and router read the sum
    by norms of their own."""
    scaled: bool = False
    """The sum behind a sandwiched layer is multiplied by a learned number."""
    norms: Literal["before", "after", "shared", "sums", "mlp"] = "before"
    """Mixer and feed-forward part have a norm before each; or one after each, of what it gives; or
    share one, and read the same; or one after each, of what it gives and what it read together; or
    one before the feed-forward part alone."""

    @property
    def feeds_forward(self) -> bool:
        """Whether it has a feed-forward part, and that a norm."""
        return self.mlp is not None or self.experts is not None


@dataclass(frozen=True)
class DenseSpec:
    """A linear layer behind pooling, and what its result goes through."""

    in_features: int
    out_features: int
    bias: bool
    activation: Literal["identity", "tanh"]


@dataclass(frozen=True)
class PoolingSpec:
    """How a text's hidden states become one vector, or a classifier's scores."""

    method: PoolingMethod = "last"
    normalize: bool = True
    """Vectors have length 1 unless a request asks for raw ones."""
    dimensions: tuple[int, ...] | None = None
    """Shorter sizes that the model was trained for (Matryoshka, arXiv 2205.13147): empty means
    any, None none."""
    labels: tuple[str, ...] = ()
    """Names of the classifier's scores; empty where the model has none."""
    activation: Literal["sigmoid", "softmax", "identity"] = "identity"
    """From a classifier's logits to its scores."""
    dense: tuple[DenseSpec, ...] = ()
    """What a pooled state goes through on its way to a vector, in order."""
    answers: tuple[int, int | None] | None = None
    """Tokens that a reranker says yes and no with: its one score is what the output head gives the
    first, less what it gives the second."""

    def vector_size(self, hidden_size: int) -> int:
        """The elements of a vector, by those of a hidden state."""
        return self.dense[-1].out_features if self.dense else hidden_size


@dataclass(frozen=True)
class RowPiece:
    """Rows `first : first + count` of every `period` rows of a matrix."""

    period: int
    first: int
    count: int


@dataclass(frozen=True)
class ExpertTensors:
    """How a checkpoint holds something that each of `count` experts has: matrices [rows, columns]
    or vectors [rows]."""

    count: int
    layout: Literal["single", "stacked", "rows"]
    """A tensor per expert, whose index `{expert}` stands for, or one of [count, rows, columns]
    (`weights.upright` makes it so of one that lies on its side); or rows of a matrix, for each
    expert those that the rule's `pieces` say."""
    parts: int = 1
    """Matrices that lie in each tensor, one behind the other on rows."""
    interleaved: bool = False
    """Where one tensor holds several parts, rows belong to them in turn, instead."""


@dataclass(frozen=True)
class WeightRule:
    """`param` of the model is made of `sources` of the checkpoint.

    `{layer}` in both stands for each layer's index. Several sources become the shards of one
    merged linear layer, in order, and are stacked on rows; a single one holds all shards so.
    """

    param: str
    sources: tuple[str, ...]
    unpermute: tuple[int, ...] = ()
    """Per shard, the head size whose rotary pairs are stored side by side (0: as it is). The loader
    puts them into halves: whole rows move, so block formats survive it."""
    turning: int | None = None
    """Rows of such a head that have pairs, the first ones (None: all)."""
    turning_last: bool = False
    """They are a head's last ones, and become its first."""
    layers: tuple[int, ...] | None = None
    """The indices that `{layer}` stands for; None: all."""
    pieces: tuple[RowPiece | None, ...] = ()
    """Per source, which of its rows are meant (None: all)."""
    value: Literal["x", "1 + x", "-exp(x)"] = "x"
    """What an element x of the checkpoint becomes."""
    experts: ExpertTensors | None = None
    """How the matrices of experts are stored; the sources of one expert follow each other."""
    transposed: bool = False
    """With `experts`: each matrix is the transposed one of the checkpoint's."""
    folded: bool = False
    """A vector's elements may lie in the rows of a matrix, one behind the other."""


@dataclass(frozen=True)
class Eagle3Spec:
    """What an EAGLE-3 head (arXiv 2503.01840) has of its own: it comes from another checkpoint than
    its model, and reads what some of the model's layers read."""

    source: str
    """Where it comes from, as it was asked for."""
    reads: tuple[int, ...]
    """The layers whose inputs it reads; the number of layers stands for the last one's output."""
    hidden_size: int
    norm_eps: float
    vocab_size: int
    """Tokens that it guesses among."""
    mapped: Literal["no", "by offset", "by id"] = "no"
    """How a tensor says which of the model's tokens these are: by how much their ids are larger, or
    by the ids themselves. Without, they are the same tokens."""
    norm_before_residual: bool = False
    """Its layer adds to the normalized hidden state instead of the hidden state."""
    norm_before_fc: bool = False
    """What it reads is normalized first."""


@dataclass(frozen=True)
class DraftHeadSpec:
    """A head that predicts the token behind the next one (multi-token prediction, arXiv
    2412.19437): from a token's embedding and the model's normalized hidden state in front of it, by
    a linear layer of both and one decoder layer. An EAGLE-3 head does so from hidden states of
    several layers."""

    layer: LayerSpec
    weights: tuple["WeightRule", ...]
    tensors: tuple[str, ...]
    """Patterns (fnmatch) of all its tensors in the checkpoint, which are left over where it is not
    loaded."""
    own_embedding: bool = False
    """It has a token table of its own; else the model's."""
    own_output: bool = False
    """It has an output head of its own; else the model's."""
    eagle3: Eagle3Spec | None = None
    """None for a head of the model's own checkpoint."""


@dataclass(frozen=True)
class ModelSpec:
    architecture: str
    """The class name in config.json, `LlamaForCausalLM`; key of the model registry."""
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    tie_word_embeddings: bool
    max_position: int
    """The context the model was trained for (after rope scaling)."""
    dtype: str
    """As the checkpoint says: bfloat16, float16, float32."""
    weights: tuple[WeightRule, ...]
    ignored_weights: tuple[str, ...] = ()
    """Patterns (fnmatch) of checkpoint tensors that are left over on purpose."""
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    embedding_scale: float = 1.0
    """What the embeddings of tokens are multiplied with."""
    logit_scale: float = 1.0
    """What logits are multiplied with."""
    logit_cap: float | None = None
    """c, if logits become c * tanh(logit / c)."""
    layer_inputs: LayerInputSpec | None = None
    """None where layers read hidden states alone."""
    altup: AltUpSpec | None = None
    """None where a token has one hidden state."""
    encoder: EncoderSpec | None = None
    """None for a decoder."""
    writes_text: bool = True
    """False where no layer gives logits of tokens: for vectors and scores alone."""
    pooling: PoolingSpec = PoolingSpec()
    vision: VisionSpec | None = None
    """None for a model that sees nothing."""
    audio: AudioSpec | None = None
    """None for a model that hears nothing."""
    draft_head: DraftHeadSpec | None = None
    """None where the checkpoint has none."""
    drafts: bool = False
    """The draft head is loaded, and its layer has a cache behind the others'."""
    draft_model: "ModelSpec | None" = None
    """A smaller model that guesses its tokens, whose layers have caches behind all others."""
    quantization: str = ""
    """How config.json says that the weights are quantized, in words; empty if they are not."""
    stage: StageSpec | None = None
    """Which part of a model it is; None for a whole one."""

    @property
    def begins(self) -> bool:
        """Whether its first layer reads embeddings."""
        return self.stage is None or self.stage.is_first

    @property
    def ends(self) -> bool:
        """Whether its last layer's hidden states are the model's."""
        return self.stage is None or self.stage.is_last

    @property
    def inputs_from_here(self) -> int:
        """Layers from its first one to the model's last, whose inputs (`layer_inputs`) it reads or
        hands on."""
        stage = self.stage
        return len(self.layers) if stage is None else len(stage.whole.layers) - stage.first

    def expanded_weights(self) -> tuple[WeightRule, ...]:
        """The rules with `{layer}` and `{expert}` filled in, a loaded draft head's included."""
        return _expanded(self)

    def drafting(self) -> "ModelSpec":
        """With the draft head loaded; ConfigError where the checkpoint has none."""
        if self.draft_head is None:
            raise ConfigError(
                "The checkpoint has no draft head (a single MTP layer); speculate by another "
                "method."
            )
        kept = [name for name in self.ignored_weights if name not in self.draft_head.tensors]
        return replace(self, drafts=True, ignored_weights=tuple(kept))

    @property
    def heard(self) -> int:
        """Tokens of sound with which every prompt begins; 0 for a model whose prompts need none."""
        heard = (mixer.heard for mixer in self.attentions)
        return next((count for count in heard if count is not None), 0)

    @property
    def cached_layers(self) -> tuple[LayerSpec, ...]:
        """The layers with a place in the cache: its own, a loaded draft head's, and those of a
        draft model."""
        head = () if self.draft_head is None or not self.drafts else (self.draft_head.layer,)
        model = () if self.draft_model is None else self.draft_model.layers
        return (*self.layers, *head, *model)

    @property
    def attentions(self) -> tuple[AttentionSpec, ...]:
        """The mixers of the layers that have attention, in order; a loaded draft head's is the
        last."""
        head = () if self.draft_head is None or not self.drafts else (self.draft_head.layer,)
        mixers = (layer.mixer for layer in (*self.layers, *head))
        return tuple(mixer for mixer in mixers if isinstance(mixer, AttentionSpec))


@lru_cache(maxsize=4)  # a plan asks again and again, of one model
def _expanded(spec: ModelSpec) -> tuple[WeightRule, ...]:
    stage, expanded = spec.stage, []
    if stage is not None:
        named = [(stage.own(rule.param), rule) for rule in stage.whole.expanded_weights()]
        return tuple(replace(rule, param=own) for own, rule in named if own is not None)
    vision = () if spec.vision is None else spec.vision.weights
    audio = () if spec.audio is None else spec.audio.weights
    drafting = spec.draft_head.weights if spec.draft_head is not None and spec.drafts else ()
    for rule in (*spec.weights, *vision, *audio, *drafting):
        if "{layer}" not in rule.param:
            expanded.append(replace(rule, sources=_each_expert(list(rule.sources), rule.experts)))
            continue
        for layer in range(len(spec.layers)) if rule.layers is None else rule.layers:
            param, *sources = (
                text.replace("{layer}", str(layer)) for text in (rule.param, *rule.sources)
            )
            names = _each_expert(sources, rule.experts)
            expanded.append(replace(rule, param=param, sources=names, layers=None))
    return tuple(expanded)


def _each_expert(sources: list[str], experts: ExpertTensors | None) -> tuple[str, ...]:
    if experts is None or experts.layout != "single":
        return tuple(sources)
    indices = [str(expert) for expert in range(experts.count)]
    return tuple(name.replace("{expert}", index) for index in indices for name in sources)
