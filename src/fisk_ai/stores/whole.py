"""Files that are there as a whole or not at all, however the process or the machine dies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from fisk_ai.stores.disk import Disk


def write_whole(disk: Disk, directory: int, name: str, temporary: str, lines: Iterable[bytes]) -> None:
    """Put a file with these lines at `name`, durable on return; `temporary` is a name beside it that is ours.

    Raises:
        OSError: nothing stands at `name` that didn't before.
    """
    disk.remove(directory, temporary)  # of somebody who died here
    descriptor = disk.create_file(directory, temporary)
    try:
        try:
            for line in lines:
                disk.write(descriptor, line)
            # Synced before it gets its name: a crash must not leave the name on a part of the content.
            disk.sync(descriptor)
        finally:
            disk.close(descriptor)
        disk.rename(directory, temporary, name)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.remove(directory, temporary)
        raise
    disk.sync(directory)
