"""A draft head (MTP) for a tiny model of transformers, and checkpoints that hold both.

The head is the published formula over transformers' own layers; nothing of Pagoda takes part.
"""

from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from tests.models import tiny


class Head(nn.Module):
    """norm(layer(fc([norm(embedding), norm(hidden state)]))); the names are the checkpoint's,
    behind `mtp.`."""

    def __init__(self, model: PreTrainedModel, own_tables: bool):
        super().__init__()
        config, text = model.config.get_text_config(), model.get_decoder()
        hidden, norm = config.hidden_size, type(text.norm)
        kinds = getattr(config, "layer_types", None)
        index = kinds.index("full_attention") if kinds else config.num_hidden_layers - 1
        self.pre_fc_norm_embedding = norm(hidden, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = norm(hidden, eps=config.rms_norm_eps)
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.layers = nn.ModuleList([type(text.layers[index])(config, index)])
        self.norm = norm(hidden, eps=config.rms_norm_eps)
        self.axes = (3,) if "qwen3_5" in config.model_type else ()
        self.rotary = [text.rotary_emb]  # lists, for these are no parts of it
        self.tables = [text.embed_tokens, model.get_output_embeddings()]
        if own_tables:
            self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
            self.head = nn.Linear(hidden, config.vocab_size, bias=False)
            self.tables = [self.embed_tokens, self.head]

    def forward(self, token_ids: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """A text: int64 [tokens], [tokens, hidden] -> [tokens, hidden]."""
        count = len(token_ids)
        sees = torch.ones(count, count, dtype=torch.bool).tril()
        positions = torch.arange(count)
        return self.of_rows(token_ids[None], hidden_states[None], positions, sees)[0]

    def of_rows(
        self,
        token_ids: torch.Tensor,
        hidden_states: torch.Tensor,
        positions: torch.Tensor,
        sees: torch.Tensor,
    ) -> torch.Tensor:
        """Of several texts int64 [texts, rows] and [texts, rows, hidden], whose rows are at
        positions int64 [rows] and see those of bool [rows, rows] -> [texts, rows, hidden]."""
        embedded = self.pre_fc_norm_embedding(self.tables[0](token_ids))
        x = self.fc(torch.cat((embedded, self.pre_fc_norm_hidden(hidden_states)), dim=-1))
        each = positions.expand(len(token_ids), -1)
        out = self.layers[0](
            x,
            position_embeddings=self.rotary[0](x, each.expand(*self.axes, -1, -1)),
            attention_mask=torch.zeros(sees.shape).masked_fill(~sees, -torch.inf)[None, None],
            position_ids=each,
        )
        return self.norm(out)

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.tables[1](hidden_states)

    def tensors(self) -> dict[str, torch.Tensor]:
        return {f"mtp.{name}": tensor for name, tensor in self.state_dict().items()}


_NEXTN = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head.norm",
    "embed_tokens": "embed_tokens",
    "head": "shared_head.head",
}


def as_nextn(tensors: dict[str, torch.Tensor], layer: int) -> dict[str, torch.Tensor]:
    """A head's tensors by the names that GLM-4.5's checkpoints have: those of one more layer."""
    found = {}
    for name, tensor in tensors.items():
        part, _, kind = name.removeprefix("mtp.").rpartition(".")
        own = _NEXTN.get(part) or part.removeprefix("layers.0.")
        found[f"model.layers.{layer}.{own}.{kind}"] = tensor
    return found


def make(model: PreTrainedModel, own_tables: bool = False) -> Head:
    """With a token table and an output head of its own, or the model's."""
    torch.manual_seed(5)
    head = Head(model, own_tables).eval()
    tiny.randomize(head)
    return head


def save(folder: Path, model: PreTrainedModel, tensors: dict[str, torch.Tensor]) -> None:
    """`tensors` are the head's."""
    model.config.mtp_num_hidden_layers = 1
    copies = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    model.save_pretrained(folder, state_dict={**model.state_dict(), **copies})


@torch.inference_mode()
def hidden_states(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """[tokens, hidden], behind the final norm."""
    return model.get_decoder()(torch.tensor([ids])).last_hidden_state[0]
