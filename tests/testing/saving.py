"""A module that a tool uses, with a moment in it that the tool's own lines don't show."""

from __future__ import annotations


def save(path: str, text: str) -> None:
    """Write a file, which is empty for a moment."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
