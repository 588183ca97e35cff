"""tokenizer.json and tokenizer_config.json from anywhere: a tokenizer, or what is wrong.

The input is both, a line of three dashes between them. Source: src/pagoda/text/json_tokenizer.py.
"""

from fuzz.harnesses.files import folder, written
from fuzz.harnesses.text import round_trip
from pagoda.base.errors import CheckpointError, RequestError
from pagoda.text.json_tokenizer import parts_from_folder
from pagoda.text.tokenizer import Tokenizer

WORDS = (
    b"\n---\n",
    *(
        b'"type":"%s"' % name
        for name in (b"BPE", b"WordPiece", b"Unigram", b"WordLevel", b"ByteLevel", b"Metaspace",
                     b"Split", b"Sequence", b"Replace", b"Strip", b"Fuse", b"ByteFallback",
                     b"TemplateProcessing", b"BertNormalizer", b"NFC", b"Prepend")
    ),
    b'"content":', b'"special":true', b'"id":', b'"vocab":{}', b'"merges":[]', b'"merges":["a b"]',
    b'"bos_token":', b'"eos_token":', b'"added_tokens_decoder":{"0":{"content":"x"}}',
    b'"additional_special_tokens":["x"]', b'"unk_token":"zz"', b'"pattern":{"Regex":"("}',
    b'"decoder":null', b'"pre_tokenizer":null', b"null", b"-1", b"4294967296", b"[]", b"{}", b'""',
)  # fmt: skip


def fuzz_tokenizer_json(data: bytes) -> None:
    main, _, config = data.partition(b"\n---\n")
    written("tokenizer.json", main)
    path = written("tokenizer_config.json", config)
    if not config:
        path.unlink()
    try:
        tokenizer = Tokenizer(parts_from_folder(folder(), end_ids=[]))
    except CheckpointError as error:
        assert str(error).strip()
        return
    for text in ("", "a b\n", "Ab <|im_end|> \u00e9\U0001f600"):
        for parse_special in (True, False):
            try:
                ids = tokenizer.encode(text, parse_special=parse_special)
            except RequestError:
                continue
            round_trip(tokenizer, ids)
