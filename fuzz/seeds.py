"""Writes the corpus anew: `python -m fuzz.seeds`. What it holds is made here or by other people's
programs, and small; what the tests already have in words is taken from there."""

import importlib
import json
import struct
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors.numpy

from fuzz.registry import ROOT
from tests.unit.planner.test_eagle3 import HEAD
from tests.unit.text import templates
from tests.unit.text.parsers.test_families import CASES
from tests.unit.text.vocabularies import byte_level_metadata, spm_metadata, train_byte_level

_ARCH_TESTS = ("gemma4", "llama4", "moe", "qwen3_5", "sentence", "specs")


def main() -> None:
    for name, seeds in {
        "gguf": _ggufs(),
        "safetensors": _safetensors(),
        "config": _configs("architectures"),
        "draft_head": _heads(),
        "gguf_vocab": _vocabularies(),
        "tokenizer_json": _tokenizer_jsons(),
        "text": _texts(),
        "template": _templates(),
        "http1": _requests(),
        "grammar": _grammars(),
        "parsers": _replies(),
        "agent": _actions(),
        "native": _shapes(),
    }.items():
        folder = ROOT / "corpus" / name
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        for stem, data in seeds:
            (folder / stem).write_bytes(data)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _ggufs() -> Iterator[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seed.gguf"
        for name in ("plain", "kinds", "quantized"):
            writer = gguf.GGUFWriter(path, "llama")
            if name == "plain":
                writer.add_tensor("a", np.arange(6, dtype=np.float32).reshape(2, 3))
            if name == "kinds":
                writer.add_custom_alignment(64)
                writer.add_uint8("u8", 1)
                writer.add_int16("i16", -1)
                writer.add_uint64("u64", 2**63)
                writer.add_float64("f64", 0.5)
                writer.add_bool("yes", True)
                writer.add_string("text", "\u00e9")
                writer.add_array("strings", ["a", "bc"])
                writer.add_array("numbers", [1, 2, 3])
                writer.add_tensor("h", np.ones((2, 2, 2), np.float16))
                writer.add_tensor("i", np.ones(3, np.int32))
            if name == "quantized":
                for kind, row_bytes in (("Q4_0", 36), ("Q6_K", 210)):
                    raw = np.zeros((2, row_bytes), np.uint8)
                    stored = gguf.GGMLQuantizationType[kind]
                    writer.add_tensor(kind, raw, raw_dtype=stored)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            yield name, path.read_bytes()
    yield "version2", struct.pack("<4sIQQ", b"GGUF", 2, 0, 0)


def _safetensors() -> Iterator[tuple[str, bytes]]:
    tensors = {"a": np.ones((2, 3), np.float32), "b": np.zeros(0, np.int8)}
    yield "two", safetensors.numpy.save(tensors, {"format": "pt"})
    yield "scalar", safetensors.numpy.save({"s": np.array(1.0, np.float64)})
    header = b'{"x":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}   '
    yield "padded", struct.pack("<Q", len(header)) + header + b"\x00" * 4


def _configs(key: str) -> Iterator[tuple[str, bytes]]:
    """Of each architecture that the tests of specs describe, the first."""
    seen = set()
    for test in _ARCH_TESTS:
        module = importlib.import_module(f"tests.unit.arch.test_{test}")
        for value in vars(module).values():
            if not isinstance(value, Mapping) or key not in value:
                continue
            name = value[key][0] if key == "architectures" else value[key]
            if name not in seen:
                seen.add(name)
                yield f"{name}.json", _json(value)


def _heads() -> Iterator[tuple[str, bytes]]:
    yield "eagle.json", _json(HEAD)
    reads = {"eagle_aux_hidden_state_layer_ids": [1, 5, 9], "norm_before_residual": True}
    nested = {"draft_vocab_size": 32, "transformer_layer_config": HEAD, **reads}
    yield "speculators.json", _json(nested)
    yield "specforge.json", _json({**HEAD, "eagle_config": {**reads, "use_aux_hidden_state": True}})
    gguf_head = {
        "block_count": 1, "embedding_length": 64, "feed_forward_length": 80, "context_length": 64,
        "attention.head_count": 4, "attention.head_count_kv": 2, "vocab_size": 300,
        "attention.layer_norm_rms_epsilon": 1e-5, "target_hidden_size": 64,
        "target_layers": [2, 6, 9], "norm_before_fc": False,
    }  # fmt: skip
    metadata = {f"eagle3.{name}": value for name, value in gguf_head.items()}
    yield "gguf.json", _json({"general.architecture": "eagle3", **metadata})


def _vocabularies() -> Iterator[tuple[str, bytes]]:
    yield from _configs("general.architecture")
    yield "gpt2-tokenizer.json", _json(byte_level_metadata())
    pieces = {"\u2581a": -1.0, "\u2581": -2.0, "b": -3.0, "ab": -1.5, "\u2581the": -0.5}
    yield "llama-tokenizer.json", _json(spm_metadata(pieces))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581a", "b", "\u2581hello", "c"]
    bert = {"model": "bert", "tokens": words, "token_type": [3, 2, 3, 3, 1, 1, 1, 1],
            "unknown_token_id": 1, "cls_token_id": 2, "seperator_token_id": 3}  # fmt: skip
    yield "bert-tokenizer.json", _json({f"tokenizer.ggml.{k}": v for k, v in bert.items()})


def _tokenizer_jsons() -> Iterator[tuple[str, bytes]]:
    trained = json.loads(train_byte_level(270).to_str())
    config = _json({"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"},
                    "added_tokens_decoder": {"300": {"content": "<x>", "special": True}},
                    })  # fmt: skip
    yield "bytelevel", _json(trained) + b"\n---\n" + config
    empty = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
             "normalizer": None, "pre_tokenizer": None, "post_processor": None}  # fmt: skip
    spm = {"type": "BPE", "vocab": {"<unk>": 0, "\u2581": 1, "a": 2, "\u2581a": 3, "<0x0A>": 4},
           "merges": [["\u2581", "a"]], "unk_token": "<unk>", "byte_fallback": True}  # fmt: skip
    steps = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
             {"type": "ByteFallback"}, {"type": "Fuse"},
             {"type": "Strip", "content": " ", "start": 1, "stop": 0}]  # fmt: skip
    normal = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}]}
    decoder = {"type": "Sequence", "decoders": steps}
    yield "spm", _json(empty | {"normalizer": normal, "decoder": decoder, "model": spm})
    piece = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
             "max_input_chars_per_word": 100,
             "vocab": {"[UNK]": 0, "[CLS]": 1, "a": 2, "##b": 3}}  # fmt: skip
    parts = [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    post = {"type": "TemplateProcessing", "single": parts,
            "pair": [*parts, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}},
            }  # fmt: skip
    yield (
        "wordpiece",
        _json(
            empty
            | {
                "model": piece,
                "pre_tokenizer": {"type": "BertPreTokenizer"},
                "post_processor": post,
                "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            }  # fmt: skip
        ),
    )


def _texts() -> Iterator[tuple[str, bytes]]:
    yield "prose", b"\x00The quick brown fox. It's 12345 o'clock\n\n<|im_end|>stop"
    yield (
        "scripts",
        "\x03你好，世界 Привет नम e\u0301 \U0001f469\u200d\U0001f467 \ufeff".encode(),
    )
    yield "bytes", bytes(range(256))


def _templates() -> Iterator[tuple[str, bytes]]:
    for name in ("CHATML", "MISTRAL", "QWEN_TOOLS", "VISION"):
        yield f"{name.lower()}.jinja", getattr(templates, name).encode()
    yield "small.jinja", b"{% for m in messages %}{{ m['role'] ~ (m.content|string) }}{% endfor %}"


def _requests() -> Iterator[tuple[str, bytes]]:
    get = b"GET /v1/models?a=b HTTP/1.1\r\nHost: here\r\nAccept: */*\r\n\r\n"
    post = b"POST /v1/chat HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\nhello"
    chunked = (
        b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5\r\nhello\r\n3;a=b\r\nyou\r\n0\r\nTrailer: x\r\n\r\n"
    )
    yield "get", b"\x00" + get
    yield "post", b"\x04" + post
    yield "chunked", b"\x06" + chunked
    yield "pipelined", b"\x02" + get + post + chunked + get
    yield "old", b"\x01GET / HTTP/1.0\r\n\r\n"
    yield "expect", b"\x05" + post.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")
    yield "both", b"\x03" + chunked.replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\n", 1)


def _grammars() -> Iterator[tuple[str, bytes]]:
    person = {"type": "object", "required": ["name"],
              "properties": {"name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 9},
                             "age": {"type": "integer", "minimum": 0, "maximum": 150},
                             "tags": {"type": "array", "items": {"enum": ["a"]}, "maxItems": 3},
                             "next": {"$ref": "#/$defs/n"}},
              "$defs": {"n": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}}  # fmt: skip
    tag = {"structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}],
           "triggers": ["<f"]}  # fmt: skip
    for name, wanted in {
        "json": {"json": person},
        "regex": {"regex": r"[a-z]{2,5}(x|y)*\d+"},
        "choice": {"choice": ["yes", "no\n", '"']},
        "gbnf": {"grammar": 'root ::= item+\nitem ::= "a" [0-9]{1,3} | ("b" root)?'},
        "lark": {"grammar": 'start: A (B | "c")*\nA: /[a-z]+/\nB: "b"'},
        "object": {"json_object": True, "whitespace_pattern": "[ ]?"},
        "tag": {"structural_tag": tag},
    }.items():
        yield name, _json(wanted)


def _replies() -> Iterator[tuple[str, bytes]]:
    """One reply of each kind that the parsers' tests know, the longest of its family first."""
    kept: dict[str, int] = {}
    for case in sorted(CASES, key=lambda case: -len(case.values[1])):
        family, reply, _ = case.values
        kept[family] = kept.get(family, 0) + 1
        if kept[family] <= 6 and len(reply) < 2000:
            yield f"{family}-{kept[family]}", b"\x00\x03\x05" + reply.encode()
    yield "thought", b"\x01\x01\x02deep</think>said"


def _actions() -> Iterator[tuple[str, bytes]]:
    call = {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [5, 5]}}
    yield "qwen", b"\x00<tool_call>\n" + _json(call) + b"\n</tool_call>"
    yield "qwen-call", b"\x00" + _json({"action": "key", "keys": ["ctrl", "c"]})
    yield (
        "anthropic",
        b"\x01" + _json({"action": "left_click", "coordinate": [5, 5], "text": "shift"}),
    )
    yield "anthropic-scroll", b"\x01" + _json({"action": "scroll", "coordinate": [5, 5],
        "scroll_direction": "down", "scroll_amount": 3})  # fmt: skip
    batch = [{"type": "move", "x": 5, "y": 5},
             {"type": "drag", "path": [{"x": 1, "y": 1}, {"x": 2, "y": 2}]},
             {"type": "scroll", "x": 1, "y": 1, "scroll_x": 0, "scroll_y": 100}]  # fmt: skip
    yield "openai", b"\x01" + _json({"actions": batch})
    yield (
        "uitars",
        b"\x02Thought: t\nAction: type(content='a\\'b')\nclick(point='<point>5 5</point>')",
    )
    yield "uitars-drag", b"\x02Action: drag(start_box='(1,2)', end_box='<bbox>1 2 3 4</bbox>')"
    yield "nanokvm", b"\x02# see\nmouse 500 500 1\ntypestr a 'b' \"c\"\nkeyboard ctrl+c"
    yield "done", b"\x02The list is there.\nDONE: 3 files"


def _shapes() -> Iterator[tuple[str, bytes]]:
    """The first byte is the kernel; the others choose sizes, formats and kinds of numbers."""
    for kernel, name in enumerate(("gather", "matmul", "attention", "experts", "draw")):
        yield f"{name}-small", bytes([kernel, *[0] * 40])
        yield f"{name}-large", bytes([kernel, *[255] * 40])
        yield f"{name}-mixed", bytes([kernel, *[7 * i % 256 for i in range(40)]])


if __name__ == "__main__":
    main()
