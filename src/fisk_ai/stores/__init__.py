"""Where journals are kept. `open_store` picks the store that a URL names."""

from __future__ import annotations

from fisk_ai.errors import ConfigError
from fisk_ai.stores.base import Journal, RunInfo, Store
from fisk_ai.stores.file import FileStore
from fisk_ai.stores.memory import MemoryStore

__all__ = ["FileStore", "Journal", "MemoryStore", "RunInfo", "Store", "open_store"]


def open_store(url: str = "file") -> Store:
    """Return the store of a URL: `file` (the XDG state directory), `file:DIR` or `file:///DIR`, `memory:`.

    Raises:
        ConfigError: for any other.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "file":
        directory = rest.removeprefix("//")
        return FileStore(directory or None)
    if url == "memory:":
        return MemoryStore()
    raise ConfigError(f"sessions.store: expected file, file:DIR or memory:, found {scheme + ':...'!r}")
