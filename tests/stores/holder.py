"""A process that works on a run while a test looks on: `holder.py COMMAND DIRECTORY RUN_ID`.

It prints one line when it has done what the command says, and waits for its standard input to end.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time

from fisk_ai.errors import FiskError
from fisk_ai.stores import FileStore

# What a holder starts outlives it, but not the test that forgot it.
LIFE_S = 60


def main() -> None:
    command, directory, run_id = sys.argv[1:4]
    store = FileStore(directory)
    try:
        # Nobody keeps the journal: a lock lives as long as its descriptor, not as long as an object.
        said = f"holding {store.open(run_id).last_seq}" if command == "hold" else ""
        if command != "hold":
            store.open(run_id)
            said = f"started {STARTS[command]()}"
    except FiskError as problem:
        said = f"{type(problem).__name__} {problem}"
    print(said, flush=True)
    sys.stdin.read()


def fork() -> int:
    ready, is_ready = os.pipe()
    child = os.fork()
    if child == 0:
        live(is_ready)
        os._exit(0)
    os.read(ready, 1)
    return child


def fork_by_multiprocessing() -> int:
    ready, is_ready = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=live, args=(is_ready,))
    process.start()
    os.read(ready, 1)
    assert process.pid
    return process.pid


def live(is_ready: int) -> None:
    os.write(is_ready, b".")  # what a fork has to do in the child is done
    time.sleep(LIFE_S)


def start_a_tool() -> int:
    return subprocess.Popen(["sleep", str(LIFE_S)], close_fds=False).pid


STARTS = {"fork": fork, "multiprocessing": fork_by_multiprocessing, "tool": start_a_tool}

if __name__ == "__main__":
    main()
