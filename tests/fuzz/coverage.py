"""Fuzzing by coverage: atheris chooses the inputs that reach new code, and our mutator helps it past the checks.

atheris is no dependency, because it exists for few versions of Python and few systems.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.fuzz.corpus import CORPUS, kept


def fuzz(names: list[str], executions: int | None, seconds: float | None, add: str | None) -> int:
    """Fuzz one target until the limit, or until something is found; libFuzzer then ends the process."""
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        print("atheris isn't installed: `pip install atheris` on Linux with CPython 3.11 to 3.13, then try again")
        return 2
    if len(names) != 1:
        print("by coverage one target at a time: name it with --target")
        return 2
    # What measures coverage has to see the modules as they are imported.
    with atheris.instrument_imports(include=["fisk_ai"]):
        from tests.fuzz.mutator import Mutator
        from tests.fuzz.targets import TARGETS
    target = TARGETS[names[0]]
    mutator = Mutator(target.shape, list(kept(target.corpus).values()))

    def mutate(data: bytes, longest: int, seed: int) -> bytes:
        changed: bytes = mutator.change(data, seed) if seed % 4 else atheris.Mutate(data, longest)
        return changed[:longest]

    limits = [f"-runs={executions or -1}", f"-max_total_time={int(seconds or 0)}", "-timeout=1", "-max_len=4000"]
    new = add or tempfile.mkdtemp(prefix="fuzz-")
    Path(new).mkdir(exist_ok=True)
    print(f"new inputs are written to {new}")
    arguments = [sys.argv[0], *limits, f"-artifact_prefix={new}/", new, str(CORPUS / target.corpus)]
    atheris.Setup(arguments, target.run, custom_mutator=mutate)
    atheris.Fuzz()
    return 0
