"""EAGLE-3 heads for tiny models of transformers, and the files that hold them.

The head is written from its publication (arXiv 2503.01840) and the names of published files, in
plain torch; nothing of Pagoda takes part.
"""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from tests.models import tiny

DRAFT_VOCAB = 60
READS = (1, 2, 3)
"""Layers of a model of `tiny.SIZES` whose inputs are read; the last is what layer 3 gives."""
SIZES = {
    "hidden_size": 64, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "rope_theta": 5000.0, "rms_norm_eps": 1e-5, "norm_before_residual": False,
    "norm_before_fc": False, "own_embedding": False, "draft_vocab_size": DRAFT_VOCAB,
}  # fmt: skip


class Norm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()


class Layer(nn.Module):
    """The names are those behind `midlayer.`."""

    def __init__(self, sizes: dict):
        super().__init__()
        hidden, wide, eps = sizes["hidden_size"], sizes["intermediate_size"], sizes["rms_norm_eps"]
        self.size, self.theta = sizes["head_dim"], sizes["rope_theta"]
        self.heads, self.shared = sizes["num_attention_heads"], sizes["num_key_value_heads"]
        self.normed_first = sizes["norm_before_residual"]
        self.input_layernorm, self.hidden_norm = Norm(hidden, eps), Norm(hidden, eps)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(2 * hidden, self.heads * self.size, bias=False),
                "k_proj": nn.Linear(2 * hidden, self.shared * self.size, bias=False),
                "v_proj": nn.Linear(2 * hidden, self.shared * self.size, bias=False),
                "o_proj": nn.Linear(self.heads * self.size, hidden, bias=False),
            }
        )
        self.post_attention_layernorm = Norm(hidden, eps)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(hidden, wide, bias=False),
                "up_proj": nn.Linear(hidden, wide, bias=False),
                "down_proj": nn.Linear(wide, hidden, bias=False),
            }
        )

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """A text from its beginning: both [tokens, hidden] -> [tokens, hidden]."""
        normed = self.hidden_norm(hidden)
        residual = normed if self.normed_first else hidden
        x = torch.cat((self.input_layernorm(embedded), normed), dim=-1)
        attention = self.self_attn
        q = self._turned(attention["q_proj"](x).unflatten(-1, (self.heads, self.size)))
        k = self._turned(attention["k_proj"](x).unflatten(-1, (self.shared, self.size)))
        v = attention["v_proj"](x).unflatten(-1, (self.shared, self.size))
        repeat = self.heads // self.shared
        k, v = k.repeat_interleave(repeat, dim=1), v.repeat_interleave(repeat, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / self.size**0.5
        sees = torch.ones(len(x), len(x), dtype=torch.bool).tril()
        shares = scores.masked_fill(~sees, -torch.inf).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", shares, v).flatten(1)
        residual = residual + attention["o_proj"](mixed)
        normed = self.post_attention_layernorm(residual)
        gate, up = self.mlp["gate_proj"](normed), self.mlp["up_proj"](normed)
        return residual + self.mlp["down_proj"](nn.functional.silu(gate) * up)

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, heads, size], each by its position."""
        half = self.size // 2
        speeds = self.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(len(x), dtype=torch.float64)[:, None, None] * speeds
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        one, other = x[..., :half], x[..., half:]
        return torch.cat((one * cos - other * sin, other * cos + one * sin), dim=-1)


class Head(nn.Module):
    def __init__(self, model: PreTrainedModel, **changes):
        super().__init__()
        self.sizes = sizes = {**SIZES, **changes}
        config = model.config
        hidden, eps = sizes["hidden_size"], sizes["rms_norm_eps"]
        width = len(READS) * config.hidden_size
        self.vocab_size, tokens = config.vocab_size, sizes["draft_vocab_size"]
        if sizes["norm_before_fc"]:
            self.input_norm = Norm(width, eps)
        self.fc = nn.Linear(width, hidden, bias=False)
        self.midlayer = Layer(sizes)
        self.norm = Norm(hidden, eps)
        self.lm_head = nn.Linear(hidden, tokens, bias=False)
        self.tables = [model.get_input_embeddings()]  # a list, for it is no part of it
        if sizes["own_embedding"]:
            self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
            self.tables = [self.embed_tokens]
        ids = torch.randperm(config.vocab_size)[:tokens].sort().values
        self.register_buffer("d2t", ids - torch.arange(tokens))
        known = torch.zeros(config.vocab_size, dtype=torch.bool)
        known[ids] = True
        self.register_buffer("t2d", known)

    def read(self, layers: torch.Tensor) -> torch.Tensor:
        """[tokens, layers * the model's hidden] -> [tokens, hidden]."""
        return self.fc(self.input_norm(layers) if self.sizes["norm_before_fc"] else layers)

    def forward(self, token_ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """A text: int64 [tokens], [tokens, hidden] -> [tokens, hidden]."""
        return self.midlayer(self.tables[0](token_ids), hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] -> [rows, the model's vocabulary]."""
        own = self.lm_head(self.norm(hidden))
        logits = torch.full((len(own), self.vocab_size), -torch.inf)
        logits[:, torch.arange(len(self.d2t)) + self.d2t] = own
        return logits


def make(model: PreTrainedModel, **changes) -> Head:
    torch.manual_seed(5)
    head = Head(model, **changes).eval()
    tiny.randomize(head)
    return head


@torch.no_grad()
def make_knowing(model: PreTrainedModel) -> Head:
    """The layers of `model` come to add nothing, so that its next token follows from the last one
    alone. The head works out the same: it looks at no other token than the one it is told, whose
    embedding goes on to the model's own output head."""
    for layer in model.get_decoder().layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    hidden, size = model.config.hidden_size, SIZES["head_dim"]
    table = model.get_input_embeddings().weight
    # As large in each head, so that a token resembles itself most.
    table.copy_(nn.functional.normalize(table.unflatten(-1, (-1, size)), dim=-1).flatten(1))
    heads = SIZES["num_attention_heads"]
    head = Head(model, num_key_value_heads=heads, norm_before_residual=True).eval()
    head.midlayer.hidden_norm.weight.zero_()  # what it said before does not matter
    head.midlayer.mlp["down_proj"].weight.zero_()
    whole = torch.eye(hidden, 2 * hidden)  # of the embedding and the hidden state
    for name, weight in (
        ("q", 4 * whole),
        ("k", 4 * whole),
        ("v", whole),
        ("o", torch.eye(hidden)),
    ):
        head.midlayer.self_attn[f"{name}_proj"].weight.copy_(weight)
    known = head.t2d.nonzero().flatten()
    output = model.get_output_embeddings().weight * model.get_decoder().norm.weight
    head.lm_head.weight.copy_(output[known])
    return head


@torch.no_grad()
def layers_of(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """[tokens, layers * hidden] of a text: what goes into the layers `READS`."""
    found: dict[int, torch.Tensor] = {}
    decoder = model.get_decoder()

    def note(index: int):
        def hook(module, args, kwargs, result):
            given = result[0] if isinstance(result, tuple) else result
            found[index + 1] = given[0] if given.dim() == 3 else given

        return hook

    hooks = [
        layer.register_forward_hook(note(index), with_kwargs=True)
        for index, layer in enumerate(decoder.layers)
    ]
    decoder(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return torch.cat([found[layer] for layer in READS], dim=-1)


def config_of(head: Head, **changes) -> dict:
    """As EAGLE's own and SpecForge's files have it; names that only the reference needs are out."""
    own = {name: value for name, value in head.sizes.items() if name != "own_embedding"}
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1,
        "hidden_act": "silu", "vocab_size": head.vocab_size, "max_position_embeddings": 64,
        "tie_word_embeddings": False, "torch_dtype": "float16",
        "eagle_aux_hidden_state_layer_ids": list(READS), **own, **changes,
    }  # fmt: skip


def speculators_config(head: Head) -> dict:
    """As the library `speculators` writes it."""
    flat = config_of(head)
    outer = ("draft_vocab_size", "norm_before_residual", "norm_before_fc")
    reads = "eagle_aux_hidden_state_layer_ids"
    inner = {name: x for name, x in flat.items() if name not in (*outer, reads, "architectures")}
    return {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3"}, "target_hidden_size": None,
        "transformer_layer_config": inner, reads: flat[reads],
        **{name: flat[name] for name in outer},
    }  # fmt: skip


def tensors_of(head: Head) -> dict[str, torch.Tensor]:
    return {name: x.detach().clone().contiguous() for name, x in head.state_dict().items()}


def save(folder: Path, head: Head, config: dict | None = None, tensors: dict | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    tensors = tensors_of(head) if tensors is None else tensors
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config or config_of(head)))
    return folder


def as_speculators(head: Head) -> dict[str, torch.Tensor]:
    return {name.replace("midlayer.", "layers.0."): x for name, x in tensors_of(head).items()}


def write_gguf(
    path: Path, head: Head, layers: str = "target_layers", storage=gguf.GGMLQuantizationType.F32
) -> Path:
    """As llama.cpp's converter writes it; `layers` is its key for the layers that are read. Gives
    the head the weights that the file then holds."""
    sizes = head.sizes
    writer = gguf.GGUFWriter(path, "eagle3")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(sizes["hidden_size"])
    writer.add_feed_forward_length(sizes["intermediate_size"])
    writer.add_head_count(sizes["num_attention_heads"])
    writer.add_head_count_kv(sizes["num_key_value_heads"])
    writer.add_key_length(sizes["head_dim"])
    writer.add_value_length(sizes["head_dim"])
    writer.add_rope_freq_base(sizes["rope_theta"])
    writer.add_layer_norm_rms_eps(sizes["rms_norm_eps"])
    writer.add_vocab_size(head.vocab_size)
    writer.add_token_list([f"<{i}>" for i in range(head.vocab_size)])
    writer.add_array(f"eagle3.{layers}", list(READS))
    writer.add_uint32("eagle3.target_hidden_size", 64)
    writer.add_bool("eagle3.norm_before_residual", sizes["norm_before_residual"])
    writer.add_bool("eagle3.norm_before_fc", sizes["norm_before_fc"])
    for name, tensor in head.state_dict().items():
        if name == "t2d":
            continue
        if name == "d2t":
            writer.add_tensor(name, (tensor + torch.arange(len(tensor))).numpy())
            continue
        values, halves = tensor.numpy(), (-1, 2, sizes["head_dim"] // 2, tensor.shape[-1])
        turned = "q_proj" in name or "k_proj" in name
        if turned:  # pairs side by side
            values = values.reshape(halves).swapaxes(1, 2).reshape(values.shape)
        kind = storage if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        raw = gguf.quantize(np.ascontiguousarray(values), kind)
        writer.add_tensor(_gguf_name(name), raw, raw_dtype=kind)
        seen = torch.from_numpy(gguf.dequantize(raw, kind).reshape(values.shape).copy())
        if turned:
            pairs = (-1, sizes["head_dim"] // 2, 2, tensor.shape[-1])
            seen = seen.reshape(pairs).swapaxes(1, 2).reshape(tensor.shape)
        tensor.copy_(seen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str) -> str:
    names = {
        "fc": "fc", "norm": "output_norm", "lm_head": "output", "embed_tokens": "token_embd",
        "input_norm": "enc.output_norm", "input_layernorm": "attn_norm",
        "hidden_norm": "attn_norm_2", "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    stem = name.removesuffix(".weight")
    layer = stem.startswith("midlayer.")
    return ("blk.0." if layer else "") + names[stem.removeprefix("midlayer.")] + ".weight"
