"""The alphabet of byte-level BPE: one printable character for each of the 256 bytes (GPT-2)."""

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in set(_PRINTABLE)]

CHAR_OF_BYTE = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(0x100 + rank) for rank, byte in enumerate(_OTHERS)
}
# Keyed by code point and yielding Latin-1 characters, so that one `translate` and one `encode`
# turn a token into its bytes.
_TO_LATIN1 = {ord(char): byte for byte, char in CHAR_OF_BYTE.items()}


def to_bytes(token: str) -> bytes:
    """The bytes a byte-level token stands for; text outside the alphabet is taken as it is."""
    try:
        return token.translate(_TO_LATIN1).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode("utf-8", "replace")
