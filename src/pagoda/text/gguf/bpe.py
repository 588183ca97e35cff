"""BPE from GGUF metadata: merges by rank, words by the pre-tokenizer the file names."""

import difflib

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.base.log import get_logger
from pagoda.text import bytelevel
from pagoda.text.gguf.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from pagoda.text.gguf.specials import FragmentEncoder, SpecialSplitter
from pagoda.text.gguf.vocab import CONTROL, UNKNOWN, USER_DEFINED, GgufVocab
from pagoda.text.parts import Pieces, backend_ids, spm_bytes

logger = get_logger(__name__)


def pre_tokenizer_of(vocab: GgufVocab) -> PreTokenizer:
    """The pre-tokenizer that the file names; UnsupportedModelError for an unknown name."""
    name = "gemma4" if vocab.model == "gemma4" else vocab.pre
    if not name:
        logger.warning(
            "The GGUF file names no pre-tokenizer; the default one may split words as the model "
            "never saw them. Convert the model again for better answers."
        )
        name = "default"
    if name not in PRE_TOKENIZERS:
        near = difflib.get_close_matches(name, PRE_TOKENIZERS, n=1, cutoff=0.0)[0]
        raise UnsupportedModelError(
            f"The GGUF file wants the pre-tokenizer {name!r}, which is not known here; the "
            f"nearest known is {near!r}. Use a checkpoint with a tokenizer.json instead."
        )
    return PRE_TOKENIZERS[name]


def bpe_parts(vocab: GgufVocab, pre: PreTokenizer) -> tuple[FragmentEncoder, Pieces]:
    """Encoder and pieces of a BPE vocabulary."""
    ranks = {token: index for index, token in enumerate(vocab.tokens)}
    model = models.BPE(
        vocab=ranks,
        merges=_merges(vocab, ranks),
        ignore_merges=pre.ignore_merges,
        byte_fallback=not pre.byte_level,
    )
    backend = Tokenizer(model)
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    if pre.byte_level:
        alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, alphabet])
    else:
        backend.normalizer = normalizers.Replace(" ", "\u2581")
        backend.pre_tokenizer = pre_tokenizers.Sequence(splits)

    def encode_fragment(text: str) -> list[int]:
        return backend_ids(backend, text)

    pieces = Pieces(
        tokens=vocab.tokens,
        to_bytes=bytelevel.to_bytes if pre.byte_level else spm_bytes,
        literal=frozenset(vocab.ids_of(CONTROL, UNKNOWN, USER_DEFINED)),
    )
    return FragmentEncoder(SpecialSplitter(vocab), encode_fragment), pieces


def _merges(vocab: GgufVocab, ranks: dict[str, int]) -> list[tuple[str, str]]:
    """Merges as pairs, best first; the first of equal ones counts."""
    if not vocab.merges:
        raise CheckpointError(
            "The GGUF file has no merges (tokenizer.ggml.merges); convert the model again."
        )
    pairs = []
    for merge in dict.fromkeys(vocab.merges):
        # A part is never empty, so the separator is not the first character.
        left, _, right = merge[1:].partition(" ")
        left = merge[:1] + left
        if left in ranks and right in ranks and left + right in ranks:
            pairs.append((left, right))
    dropped = len(vocab.merges) - len(pairs)
    if dropped:
        logger.warning("%d of %d merges form no token.", dropped, len(vocab.merges))
    return pairs
