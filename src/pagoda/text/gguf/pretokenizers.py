"""How each family of byte-level BPE cuts text into words, named by `tokenizer.ggml.pre`.

The patterns are those of the models' own tokenizer.json, and the names are llama.cpp's. Where
llama.cpp only approximates a pattern (gpt-4o, tekken, kimi-k2: no letter case outside ASCII), the
model's own is used. Left out, since no served architecture needs them: afmoe, chameleon, superbpe,
tiny_aya, whitespace, youtu and the granite embedding models.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class PreTokenizer:
    patterns: tuple[str, ...]
    """Applied in order, each to what the one before left; a match becomes a word of its own."""
    ignore_merges: bool = False
    """A word that is a token is that token, whatever the merges say."""
    add_bos: bool = False
    """When the file does not say."""
    byte_level: bool = True
    """False: spaces become U+2581 and unknown characters become `<0x..>` byte tokens."""


_CONTRACTION = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_PUNCTUATION_RUN = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_BLOOM_WORDS = r" ?[^(\s|.,!?…。，、।۔،)]+"
_CJK = r"[一-龥぀-ゟ゠-ヿ]+"
_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""


def _words(number: str, *, contraction: str = _CONTRACTION, tail: str = _TAIL) -> str:
    """Llama 3's pattern, which differs between families in a part or two."""
    head = f"(?:{contraction})|" if contraction else ""
    return rf"{head}[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{number}|{_PUNCTUATION_RUN}|{tail}"


def _cased_words(number: str, *, contraction: bool, exclude: str = "") -> str:
    """GPT-4o's pattern: a word is capitals, then small letters; marks belong to both."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{exclude}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{exclude}]"
    head, end = r"[^\r\n\p{L}\p{N}]?", f"(?:{_CONTRACTION})?" if contraction else ""
    run = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
    return f"{head}{upper}*{lower}+{end}|{head}{upper}+{lower}*{end}|{number}|{run}|{_TAIL}"


_GPT2 = PreTokenizer((_GPT2_WORDS,))
_DIGITS = PreTokenizer((r"\p{N}", _GPT2_WORDS))
_LLAMA3 = PreTokenizer((_words(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_THREE_DIGITS = PreTokenizer(_LLAMA3.patterns)
_QWEN2 = PreTokenizer((_words(r"\p{N}"),))
_MARKED = r"\p{L}\p{M}"
_QWEN35 = PreTokenizer(
    (
        rf"(?:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?[{_MARKED}]+|\p{{N}}"
        rf"| ?[^\s{_MARKED}\p{{N}}]+[\r\n]*|{_TAIL}",
    )
)
_DEEPSEEK_WORDS = rf"{_ASCII_PUNCTUATION}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[{_MARKED}]+"
_DEEPSEEK3 = PreTokenizer(
    (r"\p{N}{1,3}", _CJK, rf"{_DEEPSEEK_WORDS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_TAIL}")
)
_SPARK = PreTokenizer(
    (
        r"\p{N}{1,3}",
        _CJK,
        rf"{_DEEPSEEK_WORDS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
        r"\p{N}",
    )
)
# Cased letters of all scripts, as DeepSeek's tokenizer.json spells them out.
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-"
    "\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90"
    "-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-"
    "\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d"
    "\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_CJK_WIDE = r"[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK_LLM = PreTokenizer(
    (
        r"[\r\n]",
        rf"\s?[{_CASED_LETTERS}]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        _CJK_WIDE,
        r"\p{N}+",
    )
)
_DEEPSEEK_CODER = PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_WIDE, r"\p{N}"))
_FALCON = PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2_WORDS, r"[0-9][0-9][0-9]"))
_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"))
_TEKKEN = PreTokenizer(
    (_cased_words(r"\p{N}", contraction=False),), ignore_merges=True, add_bos=True
)
_GPT4O = PreTokenizer((_cased_words(r"\p{N}{1,3}", contraction=True),))
_KIMI = PreTokenizer(
    (r"\p{Han}+|" + _cased_words(r"\p{N}{1,3}", contraction=True, exclude=r"&&[^\p{Han}]"),)
)
_BLOOM = PreTokenizer((_BLOOM_WORDS,))
_BAILING = PreTokenizer(
    (
        _words(
            r"\p{N}",
            contraction=r"'[sSdDmMtT]|'[lL][lL]|'[vV][eE]|'[rR][eE]",
            tail=r"\s*[\r\n]|\s+(?!\S)|\s+",
        ),
    )
)
_SEED = PreTokenizer(
    (
        rf"(?:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_TAIL}",
    )
)
_JAIS2_TAIL = (
    r"\s*[\r\n]+|"
    + "|".join(rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1))
    + r"|\s{1,2}(?!\S)|\s"
)
_EXAONE_MOE = PreTokenizer(
    (
        rf"(?:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
_LINES = PreTokenizer((r"[^\n]+|[\n]+",), byte_level=False)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    "gemma4": replace(_LINES, add_bos=True),
    "sarvam-moe": _LINES,
    "laguna": PreTokenizer((*_LINES.patterns, *_QWEN2.patterns)),
    "qwen35": _QWEN35,
    "spark2_5": _SPARK,
    "deepseek-llm": _DEEPSEEK_LLM,
    "deepseek-coder": _DEEPSEEK_CODER,
    "falcon": _FALCON,
    "tekken": _TEKKEN,
    "kimi-k2": _KIMI,
    "viking": PreTokenizer((_BLOOM_WORDS, r"\p{N}")),
    "seed-coder": _SEED,
    "ufakzeka": PreTokenizer((_words(r"\p{N}", contraction=""),)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _words(r"\p{N}+")), ignore_merges=True),
    "jais-2": PreTokenizer((_words(r"\p{N}{1,3}", tail=_JAIS2_TAIL),)),
    "exaone-moe": _EXAONE_MOE,
}
for _family, _names in (
    (
        _GPT2,
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum "
        "modern-bert roberta-bpe jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code",
    ),
    (_DIGITS, "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"),
    (_LLAMA3, "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"),
    (_THREE_DIGITS, "dbrx smaug-bpe chatglm-bpe"),
    (replace(_THREE_DIGITS, ignore_merges=True), "glm4 glm5"),
    (
        _QWEN2,
        "qwen2 deepseek-r1-qwen stablelm2 hunyuan solar-open megrez grok-2 kormo f2llmv2",
    ),
    (_DEEPSEEK3, "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (_GPT4O, "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (_BLOOM, "bloom gpt3-finnish poro-chat"),
    (_BAILING, "bailingmoe bailingmoe2 llada-moe"),
):
    PRE_TOKENIZERS.update(dict.fromkeys(_names.split(), _family))
