"""BERT's WordPiece from GGUF metadata, where U+2581 marks the tokens that begin a word.

Texts go through BERT's own normalizer; llama.cpp's leaves composed Hangul as it is, so there and
for a literal U+2581 the ids differ from its own.
"""

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from pagoda.base.errors import CheckpointError
from pagoda.text.gguf.specials import FragmentEncoder, SpecialSplitter
from pagoda.text.gguf.vocab import CONTROL, UNKNOWN, USER_DEFINED, GgufVocab
from pagoda.text.parts import Pieces, backend_ids, spm_bytes

_WORD_START = "\u2581"


def wpm_parts(vocab: GgufVocab) -> tuple[FragmentEncoder, Pieces]:
    """Encoder and pieces of a WordPiece vocabulary."""
    special = frozenset(vocab.ids_of(CONTROL, UNKNOWN, USER_DEFINED))
    words: dict[str, int] = {}
    for index, token in enumerate(vocab.tokens):
        if index in special:
            words[token] = index
        elif token.startswith(_WORD_START):
            words[token[1:]] = index
        else:
            words.setdefault(f"##{token}", index)
    unknown = vocab.special_id("unknown")
    if unknown is None:
        raise CheckpointError(
            "The GGUF file names no unknown token (tokenizer.ggml.unknown_token_id), which its "
            "tokenizer needs; convert the model again."
        )
    # Files that give it the type of a normal token mean it all the same.
    words.setdefault(vocab.tokens[unknown], unknown)
    backend = Tokenizer(
        models.WordPiece(
            vocab=words,
            unk_token=vocab.tokens[unknown],
            max_input_chars_per_word=2**31,
        )
    )
    lowercase = vocab.flag("normalizer.lowercase", True)
    backend.normalizer = normalizers.BertNormalizer(
        strip_accents=vocab.flag("normalizer.strip_accents", lowercase), lowercase=lowercase
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def encode_fragment(text: str) -> list[int]:
        return backend_ids(backend, text)

    pieces = Pieces(
        tokens=vocab.tokens, to_bytes=spm_bytes, literal=special, strips_leading_space=True
    )
    return FragmentEncoder(SpecialSplitter(vocab), encode_fragment), pieces
