"""The directory that runs live in: where it is, how it is made, what is refused."""

from __future__ import annotations

import contextlib
import os
import pwd

from fisk_ai.errors import ConfigError, NotPermitted
from fisk_ai.stores.disk import DIRECTORY_MODE, Disk


def default_directory() -> str:
    """Return `$XDG_STATE_HOME/fisk-ai/runs` or `~/.local/state/fisk-ai/runs`.

    A relative or empty variable is ignored, as the XDG base directory specification says; a home directory that is
    not an absolute path can't be used.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        home = _home()
        if not os.path.isabs(home):
            raise ConfigError(
                "no place for runs: there is no home directory. Set HOME or XDG_STATE_HOME to an absolute path, "
                "or pass --state-dir"
            )
        state = os.path.join(home, ".local", "state")
    return os.path.join(state, "fisk-ai", "runs")


def _home() -> str:
    # Not `expanduser`: it makes the root directory of an empty HOME, and of an account without a home.
    if home := os.environ.get("HOME"):
        return home
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def open_or_make(disk: Disk, path: str) -> int:
    """Open the directory, made with mode 0700 level by level where it is missing, each level durable.

    Raises:
        NotPermitted: if it can't be made or opened, or isn't ours.
    """
    try:
        existing, missing = _deepest_existing(disk, path)
        # Whoever made the deepest existing level may have died before its name was synced.
        _sync_parent(disk, existing)
        descriptor = disk.open_directory(existing)
        for name in missing:
            descriptor = _make(disk, descriptor, name)
    except OSError as problem:
        raise NotPermitted(path, f"{problem.strerror}") from None
    _require_ours(disk, descriptor, path)
    return descriptor


def open_existing(disk: Disk, path: str) -> int | None:
    """Open the directory as it is; None if there is none. Raises `NotPermitted` as `open_or_make` does."""
    try:
        descriptor = disk.open_directory(path)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise NotPermitted(path, f"{problem.strerror}") from None
    _require_ours(disk, descriptor, path)
    return descriptor


def put_modes_right(disk: Disk, directory: int) -> None:
    """Take access away from everybody else; only who is about to write does this, never a reader or a refusal."""
    if disk.facts(directory).mode != DIRECTORY_MODE:
        disk.set_mode(directory, DIRECTORY_MODE)


def _deepest_existing(disk: Disk, path: str) -> tuple[str, list[str]]:
    missing: list[str] = []
    while disk.find_directory(path) is None and path != os.path.dirname(path):
        path, name = os.path.split(path)
        missing.insert(0, name)
    return path, missing


def _make(disk: Disk, parent: int, name: str) -> int:
    """Make one level, durable on return; `parent` is closed whatever happens."""
    try:
        child = disk.make_directory(parent, name)
        try:
            disk.sync(parent)
        except BaseException:
            disk.close(child)
            raise
    finally:
        disk.close(parent)
    return child


def _sync_parent(disk: Disk, path: str) -> None:
    with contextlib.suppress(PermissionError):  # who may not read it made nothing in it
        parent = disk.open_directory(os.path.dirname(path))
        try:
            disk.sync(parent)
        finally:
            disk.close(parent)


def _require_ours(disk: Disk, descriptor: int, path: str) -> None:
    """Close the directory and raise unless it is ours."""
    try:
        owner = disk.facts(descriptor).owner
        if owner != os.geteuid():
            raise NotPermitted(path, f"the directory belongs to another user (uid {owner})")
    except BaseException as problem:
        disk.close(descriptor)
        if isinstance(problem, OSError):
            raise NotPermitted(path, f"{problem.strerror}") from None
        raise
