"""The target that loads agent.yaml: any bytes give a configuration or one error with lines for a person."""

from __future__ import annotations

import os
import tempfile

from fisk_ai.config import load_config
from fisk_ai.errors import ConfigError
from fisk_ai.text import printable
from tests.reliability.trials import require

_LONGEST_LINE = 2000


def config(data: bytes) -> None:
    """Load a configuration from a file of these bytes."""
    descriptor, path = tempfile.mkstemp(suffix=".yaml")
    try:
        os.write(descriptor, data)
        os.close(descriptor)
        _load(path)
    finally:
        os.unlink(path)


def _load(path: str) -> None:
    try:
        loaded = load_config(path)
    except ConfigError as problem:
        require(problem.problems, "a refusal without a reason")
        for line in problem.problems:
            require(line.startswith(path), "a problem without a place:", line)
            require(printable(line) == line and "\n" not in line, "a problem that isn't one line:", repr(line))
            require(len(line) < _LONGEST_LINE, "a problem of", len(line), "characters")
        return
    loaded.config.model_dump_json().encode()
    require(load_config(path) == loaded, "the same file is two configurations")
