"""YAML text as plain objects that remember where they were written.

YAML 1.2 with its core schema and nothing more: `on`, `yes`, dates and `1:30` are text. What JSON couldn't carry is
refused here, so that whatever comes out may be hashed, journaled and sent. What the keys mean is the model's
business, not this module's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 40
"""Levels of lists and mappings."""
MAX_NODES = 20_000
"""Keys and values, with each alias counted as what it stands for."""

Path = tuple[str | int, ...]
"""Keys and positions from the root to a value."""


class Mark(NamedTuple):
    """A place in the text; both count from 1."""

    line: int
    column: int


class Place(NamedTuple):
    """Where an entry stands. An item of a list has no key: both marks are its value's."""

    key: Mark
    value: Mark


class Problem(NamedTuple):
    """One mistake. `mark` is None where it concerns the file as a whole."""

    mark: Mark | None
    path: Path
    text: str


class UnreadableDocument(ValueError):
    """The text can't be taken apart, so this is the only problem that is known."""

    def __init__(self, text: str, mark: Mark | None = None) -> None:
        self.problem = Problem(mark, (), text)
        super().__init__(text)


@dataclass(slots=True)
class Document:
    """The content of a file."""

    value: Any
    """Dicts with text keys, lists, text, integers of 64 bits, finite floats, booleans, None."""
    places: dict[Path, Place]
    """Where each entry stands; the root is `()`."""
    problems: list[Problem] = field(default_factory=list)
    """Mistakes that left the rest readable. The value at such a place means nothing."""


def parse_document(raw: bytes) -> Document:
    """Parse one YAML document.

    Raises:
        UnreadableDocument: if it can't be read as a whole (syntax, size, encoding, nesting, several documents).
    """
    if len(raw) > MAX_BYTES:
        raise UnreadableDocument(f"is larger than {MAX_BYTES // 1024} KiB")
    root = _Composer(_events(_decode(raw))).compose()
    return _Walk().document(root)


def _decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        before = raw[: problem.start]
        mark = Mark(before.count(b"\n") + 1, len(before) - before.rfind(b"\n"))
        raise UnreadableDocument("isn't UTF-8 text: save it as UTF-8", mark) from None


def _events(text: str) -> Iterator[Any]:
    try:
        yield from YAML(typ="safe", pure=True).parse(text)
    except MarkedYAMLError as problem:
        at = problem.problem_mark or problem.context_mark
        mark = Mark(at.line + 1, at.column + 1) if at else None
        raise UnreadableDocument(f"isn't YAML: {problem.problem or problem.context}", mark) from None
    except ReaderError as problem:
        before = text[: problem.position]
        mark = Mark(before.count("\n") + 1, len(before) - before.rfind("\n"))
        code = problem.character if isinstance(problem.character, int) else ord(problem.character)
        raise UnreadableDocument(f"isn't YAML: the character U+{code:04X} can't stand in it", mark) from None
    except (YAMLError, ValueError, OverflowError):  # the last two: \U escapes beyond Unicode
        raise UnreadableDocument("isn't YAML: an escape or a directive makes no sense") from None


@dataclass(slots=True)
class _Node:
    """A value as written. A mapping's children are its keys and values by turns."""

    event: ScalarEvent | MappingStartEvent | SequenceStartEvent
    children: list[_Node] = field(default_factory=list)

    @property
    def mark(self) -> Mark:
        return _mark(self.event)


def _mark(event: Any) -> Mark:
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)


class _NodeCount:
    """Nodes so far. Counted as the text is read, which is slow, and again as aliases grow."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, mark: Mark) -> None:
        self._count += 1
        if self._count > MAX_NODES:
            raise UnreadableDocument(f"holds more than {MAX_NODES} keys and values (aliases written out)", mark)


class _Composer:
    """Events to nodes. ruamel's own composer loses explicit tags and directives, which are refused here."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._anchors: dict[str, _Node] = {}
        self._nodes = _NodeCount()

    def compose(self) -> _Node:
        next(self._events)
        start = next(self._events)
        if not isinstance(start, DocumentStartEvent):
            raise UnreadableDocument("is empty: it needs at least `llm:` with a provider and a model", Mark(1, 1))
        if start.version not in (None, (1, 2)):
            raise UnreadableDocument("is read as YAML 1.2: leave the %YAML line out", Mark(1, 1))
        root = self._node(next(self._events), 0)
        next(self._events)
        following = next(self._events)
        if isinstance(following, DocumentStartEvent):
            raise UnreadableDocument("holds several documents: only one is allowed", _mark(following))
        return root

    def _node(self, event: Any, depth: int) -> _Node:
        if depth > MAX_DEPTH:
            raise UnreadableDocument(f"is nested deeper than {MAX_DEPTH} levels", _mark(event))
        if isinstance(event, AliasEvent):
            return self._anchored(event)
        self._nodes.add(_mark(event))
        node = _Node(event)
        if isinstance(event, (MappingStartEvent, SequenceStartEvent)):
            while not isinstance(child := next(self._events), (MappingEndEvent, SequenceEndEvent)):
                node.children.append(self._node(child, depth + 1))
        if event.anchor:  # only now: what an anchor names can't hold itself
            self._anchors[event.anchor] = node
        return node

    def _anchored(self, event: AliasEvent) -> _Node:
        if event.anchor not in self._anchors:
            raise UnreadableDocument(f"uses *{event.anchor[:40]} without an anchor before it", _mark(event))
        return self._anchors[event.anchor]


class _Walk:
    """Nodes to plain objects, with every place and every mistake on the way."""

    def __init__(self) -> None:
        self._places: dict[Path, Place] = {}
        self._problems: list[Problem] = []
        self._nodes = _NodeCount()

    def document(self, root: _Node) -> Document:
        value = self._value(root, (), root.mark)
        return Document(value, self._places, self._problems)

    def _value(self, node: _Node, path: Path, key: Mark) -> Any:
        self._nodes.add(key)
        if len(path) > MAX_DEPTH:
            raise UnreadableDocument(f"is nested deeper than {MAX_DEPTH} levels", key)
        self._places[path] = Place(key, node.mark)
        if node.event.tag is not None:
            self._problems.append(Problem(node.mark, path, "tags (a leading !) aren't supported"))
        if isinstance(node.event, ScalarEvent):
            return self._scalar(node.event, path)
        if isinstance(node.event, SequenceStartEvent):
            return [self._value(item, (*path, at), item.mark) for at, item in enumerate(node.children)]
        return self._mapping(node, path)

    def _mapping(self, node: _Node, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in zip(node.children[::2], node.children[1::2], strict=True):
            name = self._key(key, path)
            if name in result:
                first = self._places[*path, name].key.line
                text = f"is there twice: line {first} has it already"
                self._problems.append(Problem(key.mark, (*path, name), text))
            elif name is not None:
                result[name] = self._value(value, (*path, name), key.mark)
        return result

    def _key(self, key: _Node, path: Path) -> str | None:
        event = key.event
        if event.tag is not None or not isinstance(event, ScalarEvent):
            self._problems.append(Problem(key.mark, path, "a key has to be text"))
            return None
        name = self._scalar(event, path)
        if not isinstance(name, str):
            text = f"a key has to be text: put {event.value[:40] or 'it'} in quotes"
            self._problems.append(Problem(key.mark, path, text))
            return None
        return name

    def _scalar(self, event: ScalarEvent, path: Path) -> Any:
        try:
            return _scalar(event.value, plain=event.style is None)
        except ValueError as why:
            self._problems.append(Problem(_mark(event), path, str(why)))
            return ""


_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_BASES = {"0o": 8, "0x": 16}


def _scalar(text: str, *, plain: bool) -> str | int | float | bool | None:
    """Resolve by the core schema of YAML 1.2.2, section 10.3.2."""
    if not plain:
        return _valid_text(text)
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _NOT_FINITE.fullmatch(text):
        raise ValueError("infinity and NaN aren't supported")
    if _FLOAT.fullmatch(text):
        return _finite(float(text))
    return _valid_text(text)


def _integer(text: str) -> int:
    base = _BASES.get(text[:2], 10)
    if len(text) > 100 or not -(2**63) <= (number := int(text, base)) < 2**63:
        raise ValueError("is a number beyond 64 bits")
    return number


def _finite(number: float) -> float:
    if number in (float("inf"), float("-inf")):
        raise ValueError("is a number beyond 64 bits")
    return number


def _valid_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("isn't valid text: it holds half of a surrogate pair") from None
    if "\0" in text:
        raise ValueError("isn't usable as text: it holds a NUL character")
    return text
