"""File systems that tell what is done to them, and fail or stop when told to."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from fisk_ai.stores.disk import OsDisk


@dataclass
class WatchedDisk(OsDisk):
    """The real file system; `log` gets what is written and synced, and `before` may raise instead."""

    log: list[str] = field(default_factory=list)
    before: Callable[[str], None] | None = None
    """Called with `write <kind of record>`, `sync file`, `sync directory`, `truncate`, ... before it happens."""

    def write(self, descriptor: int, data: bytes) -> None:
        self._happens(f"write {_kind(data)}")
        super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self._happens("sync directory" if self.facts(descriptor).is_directory else "sync file")
        super().sync(descriptor)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self._happens("truncate")
        super().truncate(descriptor, size_bytes)

    def _happens(self, what: str) -> None:
        if self.before is not None:
            self.before(what)
        self.log.append(what)


def _kind(data: bytes) -> str:
    """Which record a journal line holds."""
    for kind in ("meta", "assistant", "tool_result", "user", "terminal"):
        if b'"protocol":"io.choria.fisk-ai.v1.session.%b"' % kind.encode() in data:
            return kind
    return "bytes"


def fail_at(what: str, number: int, code: int = errno.EIO) -> Callable[[str], None]:
    """Fail the `number`-th time (from 1) that `what` is about to happen, and each time after it."""
    seen = 0

    def before(happening: str) -> None:
        nonlocal seen
        if happening == what:
            seen += 1
            if seen >= number:
                raise OSError(code, os.strerror(code))

    return before
