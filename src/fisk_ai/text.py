"""Text from outside: made valid before it is journaled, made harmless before it is shown.

The two are different on purpose: the journal keeps what a tool said, the terminal gets only what can't drive it.
"""

from __future__ import annotations

import re
import unicodedata

_ESCAPE_SEQUENCES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, clearing
    "|(?:\x1b[\\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)?"  # OSC, DCS, SOS, PM, APC
    "|\x1b[ -/]*[0-~]"  # everything else that starts with ESC
)
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_SHORTENED = "\n[shortened: {kept} of {size} bytes shown]"


def wellformed(text: str) -> str:
    """Return `text` with every lone surrogate as U+FFFD; split pairs are joined. UTF-8 can carry the result."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def shorten(text: str, limit_bytes: int, *, size_bytes: int | None = None) -> str:
    """Cut valid text to `limit_bytes` of UTF-8 on a code-point border, and say so at its end.

    `size_bytes` is the size of the whole where `text` is only its start.
    """
    encoded = text.encode()
    size_bytes = len(encoded) if size_bytes is None else size_bytes
    if max(len(encoded), size_bytes) <= limit_bytes:
        return text
    kept = encoded[:limit_bytes].decode("utf-8", "ignore")
    return kept + _SHORTENED.format(kept=len(kept.encode()), size=size_bytes)


def printable(text: str) -> str:
    """Return `text` without anything that could drive a terminal or hide what it says.

    Escape sequences go as a whole; of what is left, control, format (bidi, zero width, tags), surrogate and
    private characters and the Unicode line separators go, newline and tab stay.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _ESCAPE_SEQUENCES.sub("", text)
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in _HIDDEN)


def one_line(text: str, width: int) -> str:
    """Return harmless text on one line of at most `width` characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= width else line[: max(width - 1, 0)] + "…"
