"""The provider that plays turns from a list: for demos, tests and dry runs. No network.

Which turn is played follows from the place in the conversation alone, so a resumed run goes on where it was.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import anyio
import msgspec

from fisk_ai.errors import ConfigError, InvalidReply, ProviderRefused
from fisk_ai.jsontext import BadJson, journalable
from fisk_ai.messages import is_blank
from fisk_ai.providers.base import Delta, ModelRequest, OnDelta, Reply
from fisk_ai.providers.settle import settle_anthropic
from fisk_ai.text import wellformed

_TURN_KEYS = ("text", "calls", "content", "stop_reason", "in_tokens", "out_tokens", "delay", "error")
_CALL_KEYS = ("name", "input", "id")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)?", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """One turn of a script, checked."""

    content: bytes
    """The blocks of the Messages API, as a JSON array."""
    stop_reason: str
    in_tokens: int | None
    """None: a quarter of the last message's bytes."""
    out_tokens: int | None
    delay_s: float = 0.0
    error: str | None = None
    """Set: the call fails with this text."""


class ScriptedProvider:
    """Plays turns by their position in the conversation.

    A turn is a mapping of `text`, `calls` (each with `name`, `input`, and perhaps `id`), or instead of both
    `content` (raw blocks); and of `stop_reason`, `in_tokens`, `out_tokens`, `delay` (seconds, or text such as
    `200ms`) and `error`.
    """

    name = "scripted"
    format = "anthropic"

    def __init__(
        self, turns: Sequence[Mapping[str, Any]], *, where: str = "script", keep_requests: bool = True
    ) -> None:
        """Check the turns; raises `ConfigError` with every mistake in them, each beginning with `where`."""
        self._turns = read_script(turns, where)
        self._where = where
        self.requests: list[ModelRequest] = []
        """Every request that was made, in order, unless `keep_requests` is false (they grow with the run)."""
        self._keep_requests = keep_requests

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a YAML list of turns; raises `ConfigError`."""
        return cls(load_script(path), where=os.fspath(path), keep_requests=False)

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        """Play the turn at the request's position."""
        if self._keep_requests:
            self.requests.append(replace(request, messages=tuple(request.messages)))
        if request.iteration >= len(self._turns):
            raise ProviderRefused(
                f"{self._where} has no turn {request.iteration + 1}: it ends after turn {len(self._turns)}"
            )
        turn = self._turns[request.iteration]
        await anyio.sleep(turn.delay_s)
        if turn.error is not None:
            raise ProviderRefused(turn.error, kind="scripted")
        settled = settle_anthropic(turn.content)
        if settled.turn.text:
            on_delta(Delta("text", settled.turn.text))
        return Reply(
            format=self.format,
            message=settled.message,
            stop_reason=turn.stop_reason,
            in_tokens=_tokens(turn.in_tokens, len(request.messages[-1].content)),
            out_tokens=_tokens(turn.out_tokens, len(settled.message)),
            response_id=f"scripted_{request.iteration}",
            unusable=settled.unusable,
        )

    async def aclose(self) -> None:
        """Do nothing: there is no connection."""


def _tokens(given: int | None, size_bytes: int) -> int:
    return max(size_bytes // _BYTES_PER_TOKEN, 1) if given is None else given


def load_script(path: str | os.PathLike[str]) -> list[Any]:
    """Read a YAML list; raises `ConfigError` if the file can't be read or holds anything else."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    where = os.fspath(path)
    try:
        with open(path, "rb") as file:
            turns = YAML(typ="safe", pure=True).load(file)
    except OSError as problem:
        raise ConfigError(f"{where}: can't read the script: {problem.strerror}") from None
    except (YAMLError, UnicodeDecodeError, RecursionError) as problem:
        raise ConfigError(f"{where}: not YAML: {' '.join(str(problem).split())[:300]}") from None
    if not isinstance(turns, list):
        raise ConfigError(f"{where}: expected a list of turns")
    return turns


def read_script(turns: Sequence[Any], where: str) -> tuple[ScriptedTurn, ...]:
    """Check all turns; raises `ConfigError` with every mistake."""
    problems: list[str] = []
    read = [_Reader(turn, iteration, problems).read() for iteration, turn in enumerate(turns)]
    if problems:
        raise ConfigError([f"{where}: {problem}" for problem in problems])
    return tuple(turn for turn in read if turn is not None)


class _Reader:
    """Reads one turn and notes what is wrong with it."""

    def __init__(self, turn: Any, iteration: int, problems: list[str]) -> None:
        self._turn = turn
        self._iteration = iteration
        self._problems = problems

    def read(self) -> ScriptedTurn | None:
        if not isinstance(self._turn, Mapping):
            self._wrong("expected a mapping such as {text: Hello}")
            return None
        before = len(self._problems)
        self._check_keys(self._turn, _TURN_KEYS, "")
        content = self._content()
        reason = self._typed("stop_reason", str, "text")
        turn = ScriptedTurn(
            content=content,
            stop_reason=reason or ("tool_use" if b'"tool_use"' in content else "end_turn"),
            in_tokens=self._count("in_tokens"),
            out_tokens=self._count("out_tokens"),
            delay_s=self._delay(),
            error=self._typed("error", str, "text"),
        )
        return turn if len(self._problems) == before else None

    def _wrong(self, what: str) -> None:
        self._problems.append(f"turn {self._iteration + 1}: {what}")

    def _check_keys(self, mapping: Mapping[Any, Any], known: Sequence[str], at: str) -> None:
        for key in mapping:
            if key not in known:
                self._wrong(f"{at}unknown key {key!r}: expected one of {', '.join(known)}")

    def _typed(self, key: str, kind: type, expected: str, default: Any = None) -> Any:
        value = self._turn.get(key)
        if value is None or isinstance(value, kind):
            return default if value is None else value
        self._wrong(f"{key}: expected {expected}")
        return default

    def _count(self, key: str) -> int | None:
        value = self._turn.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
            return value
        self._wrong(f"{key}: expected a whole number from 0")
        return None

    def _delay(self) -> float:
        value = self._turn.get("delay", 0)
        if match := _DURATION.fullmatch(str(value)):
            return float(match[1]) * _SECONDS[match[2]]
        self._wrong("delay: expected seconds, or text such as 200ms or 2s")
        return 0.0

    def _content(self) -> bytes:
        if "content" in self._turn:
            if "text" in self._turn or "calls" in self._turn:
                self._wrong("content: give either content, or text and calls")
            blocks = self._typed("content", list, "a list of blocks", [])
        else:
            text = wellformed(self._typed("text", str, "text", ""))
            blocks = [] if is_blank(text) else [{"type": "text", "text": text}]
            calls = self._typed("calls", list, "a list of calls", [])
            blocks += [self._call(call, position) for position, call in enumerate(calls)]
        content = self._encoded(blocks)
        try:
            settle_anthropic(content)
        except InvalidReply as problem:
            self._wrong(f"not a turn that a model could give: {problem}")
        return content

    def _call(self, call: Any, position: int) -> dict[str, Any]:
        at = f"calls[{position}]: "
        if not isinstance(call, Mapping):
            self._wrong(f"{at}expected a mapping such as {{name: lookup, input: {{}}}}")
            call = {"name": "?"}
        self._check_keys(call, _CALL_KEYS, at)
        name, call_id = call.get("name"), call.get("id", f"call_{self._iteration}_{position}")
        if not isinstance(name, str) or not name:
            self._wrong(f"{at}name: expected the name of a tool")
            name = "?"
        if not isinstance(call_id, str):
            self._wrong(f"{at}id: expected text")
        return {"type": "tool_use", "id": call_id, "name": name, "input": call.get("input", {})}

    def _encoded(self, blocks: Any) -> bytes:
        try:
            plain = msgspec.to_builtins(blocks, str_keys=True)
            text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            return journalable(wellformed(text).encode())
        except (ValueError, TypeError, RecursionError, BadJson) as problem:
            self._wrong(f"can't be written as JSON: {problem}")
            return b"[]"
