"""agent.yaml from disk to a checked configuration, with every mistake in the file named at once.

Here the model's findings get their lines and their words. Values are shown only where they can't be secrets.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from fisk_ai.config.document import (
    MAX_BYTES,
    Document,
    Mark,
    Path,
    Problem,
    UnreadableDocument,
    parse_document,
)
from fisk_ai.config.model import AgentConfig
from fisk_ai.errors import ConfigError
from fisk_ai.text import one_line

NOT_IN_THIS_VERSION: Mapping[Path, str] = {
    ("tools", "mcp"): "MCP servers aren't supported by this version",
}
"""Keys that the contract knows and this version doesn't act on."""

_SHOWN_CHARACTERS = 40
_SECRET_KEY = re.compile(
    r"(^|[_.-])(api_?keys?|keys?|token|secrets?|password|passwd|passphrase|credentials?)($|[_.-])", re.IGNORECASE
)
_SECRET_PLACES = frozenset({"base_url", "pass_env", "store"})
"""Keys whose values may hold a secret although their names don't say so."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and where it came from."""

    config: AgentConfig
    path: str
    """As it was given."""
    directory: str
    """The file's absolute directory; paths in the file are relative to it."""


def load_config(path: str) -> LoadedConfig:
    """Read and check an agent.yaml.

    Raises:
        ConfigError: with one line for each mistake, in the order of the file.
    """
    raw = _read(path)
    config, problems = _check(raw)
    if config is None or problems:
        raise ConfigError([_line(path, problem) for problem in sorted(problems, key=_position)])
    return LoadedConfig(config, path, os.path.dirname(_absolute(path)))


def _read(path: str) -> bytes:
    shown = one_line(path, 1000)
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        looked = one_line(_absolute(path), 1000)
        where = "" if looked == shown else f" (looked for {looked})"
        raise ConfigError(
            f"there is no configuration {shown}{where}: write one, or name another with --config"
        ) from None
    except IsADirectoryError:
        raise ConfigError(f"{shown} is a directory: name the file in it with --config") from None
    except (OSError, ValueError) as problem:  # ValueError: a NUL or half a surrogate pair in the path
        why = problem.strerror if isinstance(problem, OSError) else "that is no path"
        raise ConfigError(f"can't read {shown}: {why}. Put it right, or name another with --config") from None


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except OSError:  # the working directory is gone
        return path


def _check(raw: bytes) -> tuple[AgentConfig | None, list[Problem]]:
    try:
        document = parse_document(raw)
    except UnreadableDocument as unreadable:
        return None, [unreadable.problem]
    problems = document.problems + list(_doubled_tools(document))
    try:
        config = AgentConfig.model_validate(document.value)
    except ValidationError as invalid:
        return None, problems + _Findings(document).problems(invalid)
    return config, problems


def _doubled_tools(document: Document) -> Iterator[Problem]:
    """Find names that two tools share, also where the rest of the tools is wrong."""
    first: dict[tuple[str, str], Path] = {}
    for path, place in document.places.items():
        match path:
            case ("tools", "commands", int(), "name") | ("tools", "python", int()):
                name = _value_at(document.value, path)
                if not isinstance(name, str):
                    continue
                if (known := first.setdefault((str(path[1]), name), path)) != path:
                    line = document.places[known].value.line
                    text = f"the tool {_quoted(name)} is there twice: line {line} has it already"
                    yield Problem(place.value, path, text)


def _value_at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


class _Findings:
    """What pydantic found, in the words of this project and with its place in the file."""

    def __init__(self, document: Document) -> None:
        self._places = document.places
        self._unreliable = {problem.mark for problem in document.problems}
        self._meant: set[Path] = set()

    def problems(self, invalid: ValidationError) -> list[Problem]:
        """Return one problem for each mistake: what follows from another one isn't told."""
        errors = invalid.errors(include_url=False)
        unknown = [self._unknown(e) for e in errors if e["type"] in _UNKNOWN_KEY]
        others = [self._other(e) for e in errors if e["type"] not in _UNKNOWN_KEY]
        told = unknown + [p for p in others if p.path not in self._meant]
        return [p for p in dict.fromkeys(told) if p.mark not in self._unreliable]

    def _unknown(self, error: Any) -> Problem:
        path: Path = error["loc"]
        mark = self._places[path].key
        if path in NOT_IN_THIS_VERSION:
            return Problem(mark, path, NOT_IN_THIS_VERSION[path])
        key = str(path[-1])
        known = error["ctx"]["known"] if error["type"] == "unknown_key" else _KEYS[_names(path[:-1])]
        for close in difflib.get_close_matches(key, sorted(known), n=1):
            self._meant.add((*path[:-1], close))
            return Problem(mark, path, f"unknown key, did you mean {close}?")
        return Problem(mark, path, "unknown key" + _belongs(key))

    def _other(self, error: Any) -> Problem:
        path: Path = error["loc"]
        mark = self._mark(path)
        match error["type"]:
            case "missing":
                return Problem(mark, path, "is missing")
            case "refused":
                return Problem(mark, path, error["ctx"]["text"])
            case "expected":
                wanted = error["ctx"]["what"]
            case kind:
                wanted = _WANTED.get(kind) or f"something else ({error['msg']})"
        return Problem(mark, path, f"expected {wanted}, found {_found(error['input'], path)}")

    def _mark(self, path: Path) -> Mark:
        """Return the mark of a value; where the file doesn't have it, of the key of the mapping it belongs in."""
        if path in self._places:
            return self._places[path].value
        while path not in self._places:
            path = path[:-1]
        return self._places[path].key


_UNKNOWN_KEY = frozenset({"extra_forbidden", "unknown_key"})
_WANTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "list_type": "a list",
    "model_type": "a mapping",
    "string_type": "text",
    "string_unicode": "valid text",
    "too_short": "a list with at least one item",
}
"""pydantic's error types, as far as the model's fields don't put them into words themselves."""


def _known_keys(model: type[BaseModel], place: tuple[str, ...] = ()) -> dict[tuple[str, ...], list[str]]:
    """Map each mapping of the file to its keys; positions in lists are left out of the place."""
    keys = {place: list(model.model_fields)}
    for name, model_field in model.model_fields.items():
        for kind in (model_field.annotation, *get_args(model_field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                keys |= _known_keys(kind, (*place, name))
    return keys


_KEYS = _known_keys(AgentConfig)


def _names(path: Path) -> tuple[str, ...]:
    return tuple(part for part in path if isinstance(part, str))


def _belongs(key: str) -> str:
    """Say where a key is known that was written in the wrong mapping."""
    places = [".".join((*place, key)) for place, keys in _KEYS.items() if key in keys]
    return f": it belongs at {places[0]}" if len(places) == 1 else ""


def _found(value: Any, path: Path) -> str:
    match value:
        case None:
            return "nothing"
        case dict():
            return "a mapping" + (' (text that starts with { needs quotes: "{...}")' if "argv" in path else "")
        case list():
            return "a list" if value else "an empty list"
    if _may_be_secret(path):
        return "a value that isn't shown, as it may be a secret"
    return _quoted(value) if isinstance(value, str) else _shown_number(value)


def _shown_number(value: float) -> str:
    return str(value).lower()  # true and false as YAML spells them


def _may_be_secret(path: Path) -> bool:
    names = _names(path)
    return any(name in _SECRET_PLACES or _SECRET_KEY.search(name) for name in names)


def _quoted(text: str) -> str:
    return f"'{one_line(text, _SHOWN_CHARACTERS)}'"


def _position(problem: Problem) -> tuple[Mark, str]:
    return problem.mark or Mark(0, 0), problem.text


def _line(path: str, problem: Problem) -> str:
    place = one_line(path, 1000) + (f":{problem.mark.line}:{problem.mark.column}" if problem.mark else "")
    text = one_line(problem.text, 400)
    return f"{place}: {_dotted(problem.path)}: {text}" if problem.path else f"{place}: {text}"


def _dotted(path: Path) -> str:
    """Spell a path as a person would: `tools.commands[0].name`."""
    parts = (f"[{part}]" if isinstance(part, int) else "." + one_line(part, 60) for part in path)
    return "".join(parts).removeprefix(".")
