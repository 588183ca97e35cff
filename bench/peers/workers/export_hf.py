"""A folder of bf16 safetensors from a GGUF: `export_hf.py FILE FOLDER`, for peers that read no
GGUF."""

import sys
from pathlib import Path

import gguf
import torch
import transformers
from tokenizers import pre_tokenizers

from tests.golden.reference import load_reference


def main(source: str, target: str) -> None:
    path = Path(source)
    load_reference(path).to(torch.bfloat16).save_pretrained(target)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # The GGUF calls it `smollm`: digits one by one, then GPT-2's split.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    template = gguf.GGUFReader(source).fields["tokenizer.chat_template"]
    tokenizer.chat_template = template.contents()
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
