"""Trains a tiny model of Qwen3.5's shape on text of its own making, and its draft head (MTP).

    python -m tools.train_tiny_mtp FOLDER [--seed 0]

FOLDER then holds what `pagoda serve FOLDER` loads: 1.4 MB of weights, a tokenizer of some words
and a chat template. The model answers three kinds of questions, as `examples` asks them; what it
says can be foretold in part. At the end the share of replies' tokens that the head drafts as the
model says them is printed, for one, two and three tokens in a row. Three minutes on one core; the
same seed gives the same files on the same machine.
"""

import argparse
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from tests.models import tiny_mtp

Tensor = torch.Tensor
NAMES = [
    "ada", "ben", "cora", "dan", "eve", "finn", "gil", "hana", "ida", "jon", "kim", "leo", "mia",
    "noa", "ola", "pia", "rex", "sue", "tom", "uma", "vic", "wes", "yan",
]  # fmt: skip
TEAMS = ("red", "green", "blue")
CITIES = ("Oslo", "Rome", "Lima", "Kyoto", "Accra")
FIELDS = [
    "area", "cost", "count", "depth", "height", "length", "price", "rate", "size", "speed", "total",
    "volume", "weight", "width",
]  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END = "<|im_end|>"
SIZES = {
    "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "max_position_embeddings": 4096, "tie_word_embeddings": True,
}  # fmt: skip
VOCAB = 480
TOKENS, TEXTS = 128, 12
"""Of a training step."""
MODEL_STEPS, HEAD_STEPS = 420, 160
DRAFTS = 3
HELD_OUT, REPLY_TOKENS = 24, 160


def examples(chance: random.Random) -> Iterator[tuple[str, str]]:
    """Questions and answers, without an end."""
    while True:
        yield chance.choice((records, table, accessors))(chance)


def records(chance: random.Random) -> tuple[str, str]:
    """A person's team and city follow from the name."""
    names = chance.sample(NAMES, 3)
    lines = []
    for row, name in enumerate(names, 1):
        place = NAMES.index(name)
        team, city = TEAMS[place % len(TEAMS)], CITIES[place % len(CITIES)]
        lines.append(f'{{"id": {row}, "name": "{name}", "team": "{team}", "city": "{city}"}}')
    return f"Records of {', '.join(names)}.", "\n".join(lines)


def table(chance: random.Random) -> tuple[str, str]:
    factor, first = chance.randrange(2, 10), chance.randrange(1, 5)
    lines = [f"{factor} x {n} = {factor * n}" for n in range(first, first + 6)]
    return f"Table of {factor} from {first}.", "\n".join(lines)


def accessors(chance: random.Random) -> tuple[str, str]:
    names = chance.sample(FIELDS, 2)
    blocks = [
        f"def get_{name}(self):\n    return self.{name}\n\n"
        f"def set_{name}(self, {name}):\n    self.{name} = {name}\n"
        for name in names
    ]
    return f"Accessors of {' and '.join(names)}.", "\n".join(blocks)


def small_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Of bytes and of the words of `texts`."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=VOCAB, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        additional_special_tokens=["<|im_start|>"],
        eos_token=END,
        chat_template=TEMPLATE,
    )


def question(text: str) -> str:
    return f"<|im_start|>user\n{text}{END}\n<|im_start|>assistant\n"


def batches(tokenizer: PreTrainedTokenizerFast, chance: random.Random) -> Iterator[Tensor]:
    """int64 [TEXTS, TOKENS], each a few conversations, the last one cut."""
    found = examples(chance)
    while True:
        rows = []
        for _ in range(TEXTS):
            row: list[int] = []
            while len(row) < TOKENS:
                asked, answer = next(found)
                row += tokenizer.encode(f"{question(asked)}{answer}{END}\n")
            rows.append(row[:TOKENS])
        yield torch.tensor(rows)


def train(parameters: list[Tensor], losses: Iterator[Tensor], steps: int, rate: float) -> None:
    """Warmed up over a twentieth of the steps, then down to nothing."""
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=rate, total_steps=steps, pct_start=0.05
    )
    for step, loss in enumerate(islice(losses, steps), 1):
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0:
            print(f"  step {step} of {steps}: {loss.item():.3f}", flush=True)


def model_losses(model: Qwen3_5ForCausalLM, texts: Iterator[Tensor]) -> Iterator[Tensor]:
    for ids in texts:
        logits = model(ids, use_cache=False).logits
        yield cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def head_losses(
    model: Qwen3_5ForCausalLM, head: tiny_mtp.Head, texts: Iterator[Tensor]
) -> Iterator[Tensor]:
    """Against what the model says at each place."""
    for ids in texts:
        with torch.no_grad():
            hidden = model.model(ids, use_cache=False).last_hidden_state
            said = model.lm_head(hidden).argmax(-1)
        count = ids.shape[1] - DRAFTS
        yield sum(
            cross_entropy(logits.flatten(0, 1), said[:, k : k + count].flatten())
            for k, logits in enumerate(drafts(head, ids, hidden), 1)
        )


def drafts(head: tiny_mtp.Head, ids: Tensor, hidden: Tensor) -> Iterator[Tensor]:
    """Logits [texts, tokens - DRAFTS, vocab] of the first draft behind each token and the one that
    follows, then those of the second, and the third, each as if the ones before it were right."""
    count = ids.shape[1] - DRAFTS
    place, own = torch.arange(count), torch.eye(count, dtype=torch.bool)
    before = torch.ones_like(own).tril()
    rows, positions, tokens, sees = hidden[:, :0], place[:0], ids[:, :0], own[:0, :0]
    out = hidden[:, :count]
    for k in range(1, DRAFTS + 1):
        rows = torch.cat((rows, out[:, -count:]), dim=1)
        positions = torch.cat((positions, place + k - 1))
        tokens = torch.cat((tokens, ids[:, k : k + count]), dim=1)
        # A row sees those of the text up to its place, and then those that drafted in front of it.
        chain = torch.cat((before, *[own] * (k - 1)), dim=1)
        sees = torch.cat((torch.nn.functional.pad(sees, (0, count)), chain))
        out = head.of_rows(tokens, rows, positions, sees)
        yield head.logits(out[:, -count:])


@torch.inference_mode()
def accepted(
    model: Qwen3_5ForCausalLM,
    head: tiny_mtp.Head,
    tokenizer: PreTrainedTokenizerFast,
    chance: random.Random,
) -> list[float]:
    """The share of places in replies to questions of its own behind which the first draft is what
    the model says, the first two are, and so on."""
    asked = [question(text) for text, _ in islice(examples(chance), HELD_OUT)]
    right, places = torch.zeros(DRAFTS), 0
    for text in asked:
        prompt = tokenizer(text, return_tensors="pt").input_ids
        ids = model.generate(prompt, max_new_tokens=REPLY_TOKENS, do_sample=False)
        hidden = model.model(ids, use_cache=False).last_hidden_state
        said, count = model.lm_head(hidden).argmax(-1), ids.shape[1] - DRAFTS
        kept = torch.arange(count)[None] >= prompt.shape[1] - 1
        places += int(kept.sum())
        for k, logits in enumerate(drafts(head, ids, hidden), 1):
            kept &= logits.argmax(-1) == said[:, k : k + count]
            right[k - 1] += kept.sum()
    return (right / places).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)  # sums in one order
    torch.manual_seed(options.seed)
    chance = random.Random(options.seed)
    known = islice(examples(random.Random(0)), 500)
    tokenizer = small_tokenizer(f"{question(asked)}{answer}" for asked, answer in known)
    config = Qwen3_5TextConfig(
        **SIZES, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, pad_token_id=None
    )
    model = Qwen3_5ForCausalLM(config)
    texts = batches(tokenizer, chance)
    print("The model")
    train(list(model.parameters()), model_losses(model, texts), MODEL_STEPS, 4e-3)
    # The head learns from, and is measured with, the weights that are stored.
    model.to(torch.bfloat16).float().requires_grad_(False).eval()
    head = tiny_mtp.Head(model, own_tables=False)
    print("Its draft head")
    train(list(head.parameters()), head_losses(model, head, texts), HEAD_STEPS, 3e-3)
    head.to(torch.bfloat16).float()
    shares = accepted(model, head, tokenizer, random.Random(options.seed + 1))
    tokenizer.save_pretrained(options.folder)
    tiny_mtp.save(options.folder, model.to(torch.bfloat16), head.to(torch.bfloat16).tensors())
    for count, share in enumerate(shares, 1):
        print(f"{count} drafted token{'s' * (count > 1)}: {share:.3f} right")


if __name__ == "__main__":
    main()
