"""What a run depends on, as hashes, and what changed between two of them. Pure.

Canonical on purpose: the same configuration gives the same fingerprint in every process, locale, hash seed, time
zone, working directory and order of tools. Times, paths of the machine and credentials never go in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fisk_ai.jsontext import canonical
from fisk_ai.records import Fingerprint, ToolHashes


@dataclass(frozen=True, slots=True)
class Change:
    """One field in which two fingerprints differ."""

    field: str
    """`provider`, `model`, `system_prompt`, `tools`, `thinking_mode`, `max_tokens` or `max_iterations`."""
    text: str
    """What changed, for a person."""


def hash_text(text: str) -> str:
    """Return the SHA-256 (hex) of the exact UTF-8 text."""
    return hashlib.sha256(text.encode()).hexdigest()


def tool_hashes(description: str, parameters: Mapping[str, Any], command: Mapping[str, Any]) -> ToolHashes:
    """Hash one tool: what the model is told of it, what it takes, and what it runs."""
    return ToolHashes(description=_hash(description), parameters=_hash(dict(parameters)), command=_hash(dict(command)))


def make_fingerprint(
    *,
    provider: str,
    model: str,
    system_prompt: str,
    tools: Mapping[str, ToolHashes],
    thinking_mode: str = "off",
    max_tokens: int | None = None,
    max_iterations: int | None = None,
) -> Fingerprint:
    """Return the fingerprint of a configuration; the order of `tools` does not matter."""
    ordered = {name: tools[name] for name in sorted(tools)}
    return Fingerprint(
        provider=provider,
        model=model,
        system_hash=hash_text(system_prompt),
        tools_hash=_hash(msgspec.to_builtins(ordered)),
        tools=ordered,
        thinking_mode=thinking_mode,
        max_tokens=max_tokens,
        max_iterations=max_iterations,
    )


def _hash(value: Any) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()


def diff(stored: Fingerprint, current: Fingerprint) -> list[Change]:
    """Say in which fields `current` differs from `stored`; an empty list means that a resume may go on."""
    changes = [
        Change(name, f"{label} {_shown(old)} is now {_shown(new)}")
        for name, label, old, new in (
            ("provider", "provider", stored.provider, current.provider),
            ("model", "model", stored.model, current.model),
            ("thinking_mode", "thinking mode", stored.thinking_mode, current.thinking_mode),
            ("max_tokens", "token budget", stored.max_tokens, current.max_tokens),
            ("max_iterations", "iteration budget", stored.max_iterations, current.max_iterations),
        )
        if old != new
    ]
    if stored.system_hash != current.system_hash:
        old, new = stored.system_hash[:12], current.system_hash[:12]
        changes.append(Change("system_prompt", f"system prompt with hash {old} is now {new}"))
    if (tools := _tools_changed(stored, current)) is not None:
        changes.append(Change("tools", tools))
    return changes


def _shown(value: str | int | None) -> str:
    return "unlimited" if value is None else str(value)


def _tools_changed(stored: Fingerprint, current: Fingerprint) -> str | None:
    if stored.tools is None or current.tools is None:
        return "tools can't be compared: the journal of another program holds one hash for all of them"
    old, new = stored.tools, current.tools
    parts = {
        "added": sorted(new.keys() - old.keys()),
        "removed": sorted(old.keys() - new.keys()),
        "changed": [
            f"{name} ({', '.join(_aspects(old[name], new[name]))})"
            for name in sorted(old.keys() & new.keys())
            if old[name] != new[name]
        ],
    }
    if any(parts.values()):
        return "tools " + "; ".join(f"{word}: {', '.join(names)}" for word, names in parts.items() if names)
    return None if stored.tools_hash == current.tools_hash else "the hash of the tool set differs"


def _aspects(old: ToolHashes, new: ToolHashes) -> list[str]:
    return [name for name in ("description", "parameters", "command") if getattr(old, name) != getattr(new, name)]
