"""The Python tool of the demo's agent."""

from __future__ import annotations

from pathlib import Path

from fisk_ai import tool

REPOSITORY = Path(__file__).parent / "repository"


@tool(timeout_s=30)
def count_lines(directory: str) -> dict[str, int]:
    """Count the lines of the text files below a directory of the repository.

    Args:
        directory: Directory below the root of the repository.
    """
    root = REPOSITORY.resolve()
    start = (root / directory).resolve()
    if not start.is_relative_to(root):
        raise ValueError(f"{directory!r} is not in the repository")
    files = [path for path in sorted(start.rglob("*")) if path.suffix in {".md", ".py", ".json"} and path.is_file()]
    return {"files": len(files), "lines": sum(path.read_bytes().count(b"\n") for path in files)}
