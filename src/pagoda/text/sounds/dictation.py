"""How models that chat are asked to write down a sound: by a prompt of their own."""

from dataclasses import dataclass

from pagoda.base.errors import RequestError
from pagoda.text.media.base import Medium
from pagoda.text.tokenizer import Tokenizer
from pagoda.weights.files import ModelFiles

_ARCHITECTURE, _TASK = "VoxtralForConditionalGeneration", "[TRANSCRIBE]"


@dataclass(frozen=True)
class Dictation:
    """Voxtral's prompt (mistral_common, tokens/tokenizers/instruct.py)."""

    def prompt(self, medium: Medium, language: str | None) -> str:
        """With one token for each piece; `language` is a code such as `en`, and None lets the model
        find it out. RequestError for what is no code."""
        told = ""
        if language is not None:
            if not (language.isascii() and language.isalpha() and len(language) in (2, 3)):
                raise RequestError(
                    f"The language {language[:20]!r} is no code of two letters, such as en or de.",
                    "language",
                )
            told = f"lang:{language.lower()}"
        return f"[INST][BEGIN_AUDIO]{medium.text}[/INST]{told}{_TASK}"


def dictation_of(tokenizer: Tokenizer, files: ModelFiles) -> Dictation | None:
    """None for a model that knows no such prompt."""
    if _ARCHITECTURE not in ((files.config or {}).get("architectures") or ()):
        return None
    known = len(tokenizer.encode(_TASK, add_special_tokens=False)) == 1
    return Dictation() if known else None
