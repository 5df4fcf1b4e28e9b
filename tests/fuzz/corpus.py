"""The inputs that are kept: small files, each named for what it is, in a directory for each kind of input."""

from __future__ import annotations

from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")


def kept(kind: str) -> dict[str, bytes]:
    """Return the kept inputs of a kind by name, in order."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / kind).iterdir())}
