"""What is fuzzed: each target takes any bytes, and raises on whatever isn't the documented outcome for them.

An error of ours is an outcome; any other is a finding, and so is a result that contradicts itself. The targets need
no fuzzer: `tests.fuzz.mutator` feeds them in the tests, atheris may do so by `python -m tests.fuzz --coverage`, and
`tests/fuzz/corpus` holds what is always tried.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import msgspec

from fisk_ai import formats
from fisk_ai.jsontext import (
    MAX_NESTING,
    BadJson,
    canonical,
    check_nesting,
    check_unbuilt,
    decode_strict,
    doubled_keys,
    journalable,
    nesting,
)
from fisk_ai.messages import (
    encode_result,
    read_result,
    read_user,
    tool_result,
    user_text,
)
from fisk_ai.text import one_line, printable, shorten, wellformed
from tests.fuzz.configurations import config
from tests.fuzz.journals import folded, reader, store
from tests.reliability.trials import require

Shape = Literal["journal", "json", "yaml", "text"]
"""What the mutator takes the bytes for."""


@dataclass(frozen=True, slots=True)
class Target:
    """Something that is fed with bytes."""

    run: Callable[[bytes], None]
    shape: Shape
    corpus: str
    """The directory of inputs, which targets of one kind share."""
    share: int
    """How many of 1000 executions it gets."""
    memory_factor: int = 20
    """Bytes of memory that a byte of a large input may take at most; 0 for one whose point is to build values."""


def turn(data: bytes) -> None:
    """Read a stored model turn in every format; a call that is said to be usable can be run."""
    for read in formats.READERS.values():
        try:
            found = read(data)
        except msgspec.DecodeError:
            continue
        require([call.position for call in found.calls] == list(range(len(found.calls))), "calls have no place")
        require(not (found.calls and found.empty), "a turn with calls is empty")
        found.text.encode()
        if _is_strict(data):  # what is journaled is, and only that
            for call in found.calls:
                require(not call.usable or isinstance(call.parsed(), dict), "arguments can't be used:", call.arguments)


def message(data: bytes) -> None:
    """Read user messages and results; what is read can be written and read again."""
    try:
        said = read_user(data)
    except msgspec.DecodeError:
        said = None
    if said is not None:
        require(read_user(msgspec.json.encode(said)) == said, "a user message reads otherwise when written again")
        require(isinstance(said.blocks, tuple), "a message without blocks")
    try:
        result = read_result(data)
    except msgspec.DecodeError:
        result = None
    if result is not None:
        again = read_result(encode_result(result.tool_use_id, result.blocks, is_error=result.is_error))
        require((again.tool_use_id, again.is_error) == (result.tool_use_id, result.is_error), "a result was changed")
        require(again.blocks == result.blocks or not result.blocks, "blocks of a result were changed")
    text = data.decode("utf-8", "surrogatepass" if _is_encodable(data) else "replace")
    block = read_result(tool_result("x", text))
    require(block.text.strip(), "a result that says nothing")
    [typed] = read_user(user_text(text)).blocks
    require(typed == read_user(user_text(wellformed(text))).blocks[0], "text is made valid in two ways")


def _is_encodable(data: bytes) -> bool:
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


def _is_strict(data: bytes) -> bool:
    try:
        check_unbuilt(data)
    except BadJson:
        return False
    return True


def strict_json(data: bytes) -> None:
    """Check and read strict JSON, and make JSON from outside strict."""
    require(_is_strict(data) == _is_read(data), "what is checked and what is read differ:", data)
    if _is_strict(data):
        _check_strict(data)
    try:
        line = journalable(data)
    except BadJson:
        return
    require(b"\n" not in line and b"\r" not in line, "a line break in", line)
    made = decode_strict(line)
    require(journalable(line) == line, "what is journalable is changed again")
    canonical(made)


def _is_read(data: bytes) -> bool:
    try:
        decode_strict(data)
    except BadJson:
        return False
    return True


def _check_strict(data: bytes) -> None:
    data.decode()
    value = decode_strict(data)
    require(nesting(data) <= MAX_NESTING, "nested too deeply")
    check_nesting(data)
    require(bool(doubled_keys(data)) == _has_doubled(data), "doubled keys are counted in two ways")
    again = canonical(value)
    require(canonical(decode_strict(again)) == again, "canonical JSON has two spellings")
    # Equal by bytes: 1 and 1.0 are equal values, and NaN isn't there.
    require(decode_strict(msgspec.json.encode(value)) == value, "a value reads otherwise when written again")


def _has_doubled(data: bytes) -> bool:
    """Look for a doubled key in an object and its direct objects, in the plain way."""
    pairs = json.loads(data, object_pairs_hook=_Pairs)
    objects = [pairs, *(value for _, value in pairs)] if isinstance(pairs, _Pairs) else []
    return any(len(dict(each)) < len(each) for each in objects if isinstance(each, _Pairs))


class _Pairs(list[tuple[str, object]]):
    """An object as it was written."""


_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def shown(data: bytes) -> None:
    """Clean text: nothing is left that could drive a terminal, and cleaning twice is cleaning once."""
    text = data.decode("utf-8", "surrogatepass" if _is_encodable(data) else "replace")
    clean = printable(text)
    bad = [character for character in clean if character not in "\n\t" and unicodedata.category(character) in _HIDDEN]
    require(not bad, "shown:", bad)
    require(printable(clean) == clean, "what is clean is cleaned again")
    require(len(clean) <= len(text), "cleaning adds text")
    for width in (1, 20, 1000):
        line = one_line(text, width)
        require(len(line) <= width and len(line.splitlines()) <= 1, "not one line of", width, repr(line))
    valid = wellformed(text)
    valid.encode()
    require(wellformed(valid) == valid, "valid text is changed")
    _check_short(valid)


def _check_short(valid: str) -> None:
    size = len(valid.encode())
    for limit in (0, 7, size - 1, size):
        short = shorten(valid, max(limit, 0))
        kept, mark, _ = short.rpartition("\n[shortened: ")
        require(short == valid or (mark and len(kept.encode()) <= limit and valid.startswith(kept)), "cut wrongly")


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "reader": Target(reader, "journal", "journals", 200),
        "fold": Target(folded, "journal", "journals", 130),
        "store": Target(store, "journal", "journals", 50),
        "turn": Target(turn, "json", "messages", 190),
        "message": Target(message, "json", "messages", 140),
        "strict_json": Target(strict_json, "json", "messages", 140, memory_factor=0),
        # Characters of four bytes for each byte, in several copies that are compared.
        "text": Target(shown, "text", "texts", 145, memory_factor=30),
        # YAML is composed of nodes with marks; the file is at most 1 MiB and 20,000 nodes.
        "config": Target(config, "yaml", "configurations", 5, memory_factor=100),
    }
)
