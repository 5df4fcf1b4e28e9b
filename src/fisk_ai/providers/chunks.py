"""How the chunks of a Chat Completions stream are put together to the message that they are pieces of. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fisk_ai.formats.openai import is_json_object
from fisk_ai.providers.wire import StreamNotVerbatim, not_an_answer

_GROWING = frozenset(
    {"content", "refusal", "reasoning_content", "reasoning", "thinking", "arguments", "text", "summary"}
)
"""Fields whose pieces are joined; every other text must stay what it was at first."""


def merge(whole: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Merge one delta into what came before it.

    Raises:
        StreamNotVerbatim: if it contradicts what came before, or can't be merged by a known rule.
    """
    for name, new in delta.items():
        old = whole.get(name)
        if old in (None, ""):
            if new is not None or name not in whole:
                whole[name] = _fresh(new)
        elif new in (None, ""):
            continue  # some servers repeat every field, empty
        elif isinstance(old, str) and isinstance(new, str) and name in _GROWING:
            whole[name] = old + new
        elif isinstance(old, dict) and isinstance(new, dict):
            merge(old, new)
        elif isinstance(old, list) and isinstance(new, list):
            _merge_items(old, new)
        elif old != new:
            raise StreamNotVerbatim(f"a delta of {name!r} that can't be merged")


def _fresh(value: Any) -> Any:
    if isinstance(value, list) and any(isinstance(item, dict) and "index" in item for item in value):
        items: list[Any] = []
        _merge_items(items, value)
        return items
    return value


def _merge_items(items: list[Any], deltas: Sequence[Any]) -> None:
    """Merge deltas of list items, which say by `index` where they belong; it must grow by one."""
    for delta in deltas:
        index = delta.get("index") if isinstance(delta, dict) else None
        if not isinstance(index, int) or not 0 <= index <= len(items):
            raise StreamNotVerbatim("a delta of a list without a usable index")
        if index == len(items):
            items.append({})
        merge(items[index], delta)


class Calls:
    """The calls of a streamed message, whose pieces say by `index` to which call they belong, or should."""

    def __init__(self) -> None:
        self._calls: list[dict[str, Any]] = []
        self._by_index: dict[int, dict[str, Any]] = {}

    def take(self, deltas: Any) -> list[dict[str, Any]]:
        """Take the pieces of one delta and return all calls so far.

        Raises:
            StreamNotVerbatim: for a piece that may belong to more than one call.
        """
        if not isinstance(deltas, list) or not all(isinstance(delta, dict) for delta in deltas):
            raise not_an_answer("its tool calls are no list of objects")
        for delta in deltas:
            index = delta.pop("index", None)  # the place among the deltas; the message is a list
            call = self._find(index, delta)
            if call is None:
                call = self._begin(index)
            merge(call, delta)
            if "function" in call:
                call.setdefault("type", "function")
        return self._calls

    def _find(self, index: Any, delta: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the call that a piece continues, or None if it begins one."""
        last = self._calls[-1] if self._calls else None
        call = self._by_index.get(index) if isinstance(index, int) else last
        return None if call is None or _begins_anew(call, delta) else call

    def _begin(self, index: Any) -> dict[str, Any]:
        call: dict[str, Any] = {}
        if isinstance(index, int):
            if index not in self._by_index and any(index < other for other in self._by_index):
                raise StreamNotVerbatim("tool calls out of order")
            self._by_index[index] = call
        self._calls.append(call)
        return call


def _begins_anew(call: Mapping[str, Any], delta: Mapping[str, Any]) -> bool:
    """Tell whether a piece is the start of another call, though its index (or the lack of one) says that it isn't.

    Some servers send each call in one piece, and give all of them the same index or none.
    """
    function = delta.get("function")
    if not isinstance(function, dict) or not function.get("name"):
        return False
    ids = (call.get("id"), delta.get("id"))
    if all(ids) and ids[0] != ids[1]:
        return True
    if not function.get("arguments") or not _is_complete(call):
        return False
    if any(ids) or function == call["function"]:
        raise StreamNotVerbatim("a tool call that comes twice, or two that can't be told apart")
    return True


def _is_complete(call: Mapping[str, Any]) -> bool:
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    return isinstance(arguments, dict) or (isinstance(arguments, str) and is_json_object(arguments.encode()))
