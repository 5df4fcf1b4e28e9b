"""Openers, deleters, lookers-on and forks after one run, each in its short form."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from fisk_ai.errors import JournalLost, RunLocked
from fisk_ai.stores import FileStore
from tests.reliability.lock_trials import TRIALS, mount_again
from tests.reliability.trials import Trial, tried
from tests.stores.processes import in_child
from tests.strategies import RUN_ID, ended, meta

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.mark.slow
@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
def test_never_do_two_hold_a_run(trial: Trial) -> None:
    tried(trial, "short").check()


def refused(directory: Path) -> str:
    with pytest.raises(RunLocked) as caught:
        FileStore(str(directory)).open(RUN_ID)
    return str(caught.value.pid)


def test_a_directory_and_a_link_to_it_are_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to(real)
    real.mkdir(mode=0o700)
    for held, other in ((real, link), (link, real)):
        name = FileStore(str(held))
        with name.open(RUN_ID) if (real / f"{RUN_ID}.json").exists() else name.create(RUN_ID, meta()) as journal:
            assert in_child(partial(refused, other)) == str(os.getpid())
            journal.append(ended())
    assert sorted(path.name for path in real.iterdir()) == [f"{RUN_ID}.json", f"{RUN_ID}.lock"]


def test_a_directory_and_a_mount_of_it_are_one(tmp_path: Path) -> None:
    real, mount = tmp_path / "real", tmp_path / "mount"
    FileStore(str(real)).create(RUN_ID, meta()).close()
    mount.mkdir(mode=0o700)
    if not mount_again(real, mount):
        pytest.skip("bind mounts need root and the right to mount: run the tests as root, with CAP_SYS_ADMIN")
    try:
        with FileStore(str(mount)).open(RUN_ID):
            assert in_child(lambda: refused(real)) == str(os.getpid())
        FileStore(str(real)).delete(RUN_ID)
        assert list(mount.iterdir()) == []
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_link_that_is_turned_elsewhere_stops_who_works_behind_it(tmp_path: Path) -> None:
    first, second, link = tmp_path / "first", tmp_path / "second", tmp_path / "link"
    for directory in (first, second):
        directory.mkdir(mode=0o700)
    link.symlink_to(first)
    store = FileStore(str(link))
    with store.create(RUN_ID, meta()) as journal:
        link.unlink()
        link.symlink_to(second)
        with pytest.raises(JournalLost, match="directory was removed or replaced"):
            journal.append(ended())
    assert list(second.iterdir()) == []
