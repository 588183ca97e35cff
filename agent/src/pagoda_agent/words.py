"""What the command line says, in the language of who reads it.

All is written in English, and its Chinese found by its form: `words.zh.json` has what the command
line says and errors, `chinese.py` what journals, the page and exports have, too.
"""

from pagoda_agent.base import env

_chinese = False


def speak(language: str | None = None) -> None:
    """From now on in `en` or `zh`; by default as the environment says, which Pagoda reads the same
    way."""
    global _chinese
    _chinese = (language or _of_environment()) == "zh"


def told(text: str) -> str:
    """The text in the language spoken, as it is where it has no Chinese; space before it stays."""
    if not _chinese:
        return text
    from pagoda_agent.chinese import in_chinese

    bare = text.lstrip()
    return text[: len(text) - len(bare)] + in_chinese(bare)


def _of_environment() -> str:
    names = ("PAGODA_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
    found = next((value for name in names if (value := env.get(name))), "")
    return "zh" if found.lower().startswith("zh") else "en"
