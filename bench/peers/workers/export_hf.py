"""A folder of bf16 safetensors from a GGUF: `export_hf.py FILE FOLDER`. For peers that read no
GGUF; weights and tokenizer are what transformers reads."""

import sys
from pathlib import Path

import gguf
import torch
import transformers
from tokenizers import pre_tokenizers


def main(source: str, target: str) -> None:
    path = Path(source)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.bfloat16
    )
    # A model read from a GGUF refuses to be saved; another with its weights does not.
    fields = {k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"}
    config = transformers.LlamaConfig(**fields | {"tie_word_embeddings": True})
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.load_state_dict(loaded.state_dict(), strict=False)
    model.tie_weights()
    model.save_pretrained(target)
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
