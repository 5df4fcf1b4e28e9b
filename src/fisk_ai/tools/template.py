"""Arguments of a command with `{name}` placeholders. One argument stays one argument, whatever is put into it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_PART = re.compile(r"(?P<brace>\{\{|\}\})|\{(?P<name>[^{}]*)\}|(?P<lone>[{}])|(?P<text>[^{}]+)")


class BadTemplate(ValueError):
    """Braces that are neither a placeholder nor doubled."""


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A place for the value of a parameter."""

    name: str


@dataclass(frozen=True, slots=True)
class ArgumentTemplate:
    """One argument."""

    parts: tuple[str | Placeholder, ...]

    @property
    def names(self) -> frozenset[str]:
        """The parameters that it uses."""
        return frozenset(part.name for part in self.parts if isinstance(part, Placeholder))

    def render(self, values: Mapping[str, str]) -> str | None:
        """Return the argument; None, to be dropped as a whole, if one of its parameters has no value."""
        if not self.names <= values.keys():
            return None
        return "".join(values[part.name] if isinstance(part, Placeholder) else part for part in self.parts)


def parse_argument(text: str) -> ArgumentTemplate:
    """Parse one argument: `{name}` is a placeholder, `{{` and `}}` are braces; raises `BadTemplate`."""
    parts: list[str | Placeholder] = []
    for found in _PART.finditer(text):
        if found["lone"]:
            raise BadTemplate(f"a single {found['lone']!r} (braces are written {{{{ and }}}})")
        if found["name"] is not None:
            parts.append(Placeholder(found["name"]))
        else:
            parts.append(found["text"] or found["brace"][0])
    return ArgumentTemplate(tuple(parts))
