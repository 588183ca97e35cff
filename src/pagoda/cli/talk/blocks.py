'''Messages of several lines between lines that begin or end with three quotes: """.'''

_QUOTES = '"""'


def is_open(text: str) -> bool:
    """Whether what was typed so far begins a block and does not end it."""
    text = text.strip()
    closed = len(text) >= 2 * len(_QUOTES) and text.endswith(_QUOTES)
    return text.startswith(_QUOTES) and not closed


def block_of(text: str) -> str | None:
    """What stands in the block that a text consists of; None for any other text."""
    text = text.strip()
    if not text.startswith(_QUOTES) or is_open(text):
        return None
    return text[len(_QUOTES) : -len(_QUOTES)].strip("\n")
