"""Ids of runs: what is allowed, and new ones that sort by the time they were made.

An id becomes part of a path or a subject, so it is checked here before anything else sees it.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time

from fisk_ai.errors import InvalidRunId

_NEW = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}", re.ASCII)
_STORED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS = 80

_last_lock = threading.RLock()
_last = 0


def check_new_run_id(run_id: str) -> str:
    """Return `run_id` if a new run may have it, else raise `InvalidRunId`."""
    if not _NEW.fullmatch(run_id):
        lower = run_id.lower()
        raise InvalidRunId(run_id, lower if _NEW.fullmatch(lower) else None)
    return run_id


def check_stored_run_id(run_id: str) -> str:
    """Return `run_id` if a stored run may have it: also upper case, from journals of other origin."""
    if not _STORED.fullmatch(run_id):
        raise InvalidRunId(run_id)
    return run_id


def is_stored_run_id(text: str) -> bool:
    """Tell whether a stored run may have this id."""
    return _STORED.fullmatch(text) is not None


def new_run_id() -> str:
    """Return a new id: a lower-case ULID, 26 characters, increasing within this process."""
    global _last
    with _last_lock:
        fresh = (time.time_ns() // 1_000_000 << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)
        # Within one millisecond, or after the clock went back, count up from the last one.
        _last = fresh if fresh >> _RANDOM_BITS > _last >> _RANDOM_BITS else _last + 1
        value = _last
    return "".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))


def _begin_anew() -> None:
    """In a forked child: count on from nothing, or children would make the same ids as each other and their parent."""
    global _last
    _last = 0
    _last_lock.release()


os.register_at_fork(before=_last_lock.acquire, after_in_parent=_last_lock.release, after_in_child=_begin_anew)
