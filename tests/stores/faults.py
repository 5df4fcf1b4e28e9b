"""A disk that logs what is done to it and fails where it is told to; and one that is fast because it never syncs."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field

from fisk_ai.stores.disk import FileFacts, OsDisk


@dataclass(frozen=True, slots=True)
class Operation:
    """One call, and the name of the file or directory that it was about."""

    name: str
    target: str


@dataclass
class Fault:
    """Fail the `number`-th operation of this name (from 1) on a target that ends like this."""

    operation: str
    number: int = 1
    problem: BaseException | int = errno.EIO
    """An exception, or the number of an OSError."""
    target: str = ""
    from_then_on: bool = False
    kept_bytes: int | None = None
    """Of a write: how many bytes reach the file before it fails."""
    afterwards: bool = False
    """Do it first, then fail."""
    reached: int = field(default=0, init=False)

    def strikes(self, operation: str, target: str) -> bool:
        """Count an operation; tell whether it is the one."""
        if operation != self.operation or not target.endswith(self.target):
            return False
        self.reached += 1
        return self.reached == self.number or (self.from_then_on and self.reached > self.number)

    def strike(self) -> None:
        """Raise the problem."""
        if isinstance(self.problem, int):
            raise OSError(self.problem, os.strerror(self.problem))
        raise self.problem


class FaultyDisk(OsDisk):
    """The real file system, with a log and with faults."""

    def __init__(self, *faults: Fault, sync_for_real: bool = False) -> None:
        self.faults = list(faults)
        self.log: list[Operation] = []
        self.open: dict[int, str] = {}
        """Descriptors that were not closed, and their names."""
        self._sync_for_real = sync_for_real

    def operations(self, *names: str) -> list[tuple[str, str]]:
        """Return what was done, only of these names if there are any."""
        return [(each.name, each.target) for each in self.log if not names or each.name in names]

    def _before(self, operation: str, target: str, data: tuple[int, bytes] | None = None) -> list[Fault]:
        self.log.append(Operation(operation, target))
        later = []
        for fault in self.faults:
            if not fault.strikes(operation, target):
                continue
            if fault.afterwards:
                later.append(fault)
                continue
            if data is not None and fault.kept_bytes:
                OsDisk.write(self, data[0], data[1][: fault.kept_bytes])
            fault.strike()
        return later

    def _opened(self, descriptor: int, name: str) -> int:
        self.open[descriptor] = name
        return descriptor

    def _name(self, descriptor: int) -> str:
        return self.open.get(descriptor, "?")

    def open_directory(self, path: str) -> int:
        self._before("open_directory", path)
        return self._opened(super().open_directory(path), path + "/")

    def make_directory(self, parent: int, name: str) -> int:
        self._before("make_directory", name)
        return self._opened(super().make_directory(parent, name), name + "/")

    def create_file(self, directory: int, name: str) -> int:
        self._before("create_file", name)
        return self._opened(super().create_file(directory, name), name)

    def open_file(self, directory: int, name: str, *, writable: bool = False) -> int:
        self._before("open_file", name)
        return self._opened(super().open_file(directory, name, writable=writable), name)

    def find(self, directory: int, name: str) -> FileFacts | None:
        self._before("find", name)
        return super().find(directory, name)

    def find_directory(self, path: str) -> FileFacts | None:
        self._before("find_directory", path)
        return super().find_directory(path)

    def names(self, directory: int) -> list[str]:
        self._before("names", self._name(directory))
        return super().names(directory)

    def read(self, descriptor: int, size_bytes: int, offset: int) -> bytes:
        self._before("read", self._name(descriptor))
        return super().read(descriptor, size_bytes, offset)

    def write(self, descriptor: int, data: bytes) -> None:
        later = self._before("write", self._name(descriptor), (descriptor, data))
        super().write(descriptor, data)
        for fault in later:
            fault.strike()

    def overwrite(self, descriptor: int, data: bytes) -> None:
        self._before("overwrite", self._name(descriptor))
        super().overwrite(descriptor, data)

    def sync(self, descriptor: int) -> None:
        later = self._before("sync", self._name(descriptor))
        if self._sync_for_real:
            super().sync(descriptor)
        for fault in later:
            fault.strike()

    def drop_cache(self, descriptor: int) -> None:
        self._before("drop_cache", self._name(descriptor))
        super().drop_cache(descriptor)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        later = self._before("truncate", self._name(descriptor))
        super().truncate(descriptor, size_bytes)
        for fault in later:
            fault.strike()

    def set_mode(self, descriptor: int, mode: int) -> None:
        self._before("set_mode", self._name(descriptor))
        super().set_mode(descriptor, mode)

    def lock(self, descriptor: int, *, shared: bool = False) -> bool:
        self._before("lock", self._name(descriptor))
        return super().lock(descriptor, shared=shared)

    def announce(self, descriptor: int) -> bool:
        self._before("announce", self._name(descriptor))
        return super().announce(descriptor)

    def is_announced(self, descriptor: int) -> bool | None:
        self._before("is_announced", self._name(descriptor))
        return super().is_announced(descriptor)

    def remove(self, directory: int, name: str) -> None:
        self._before("remove", name)
        super().remove(directory, name)

    def rename(self, directory: int, name: str, to: str) -> None:
        self._before("rename", to)
        super().rename(directory, name, to)

    def close(self, descriptor: int) -> None:
        self.open.pop(descriptor, None)
        super().close(descriptor)


class FastDisk(OsDisk):
    """The real file system without waiting for the drive: for tests of logic, not of durability."""

    def sync(self, descriptor: int) -> None:
        """Wait for nothing."""
