"""What every tool declares, checked the same way for all kinds of tools."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import get_args

from fisk_ai.errors import ToolSetupError
from fisk_ai.messages import is_blank
from fisk_ai.text import wellformed
from fisk_ai.tools.base import OnCrash

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)


def declaration_problems(
    name: str, description: str, *, on_crash: str, parallel: bool, timeout_s: float | None
) -> list[str]:
    """Return what is wrong with the declaration, one line for each mistake."""
    problems = []
    if not _NAME.fullmatch(name):
        problems.append("a name is 1-64 of a-z A-Z 0-9 _ -")
    if is_blank(description):
        problems.append("a model needs a description: say what it does and when to use it")
    if wellformed(description) != description:
        problems.append("its description holds half a surrogate pair, which no request can carry")
    if on_crash not in get_args(OnCrash):
        problems.append(f"on_crash is {', '.join(get_args(OnCrash))}, not {on_crash!r}")
    elif parallel and on_crash != "rerun":
        problems.append(
            f"parallel tools must be harmless to repeat: use on_crash='rerun', not {on_crash!r}, or leave parallel out"
        )
    if timeout_s is not None and not timeout_s > 0:
        problems.append(f"a time limit is a positive number of seconds, not {timeout_s!r}")
    return problems


def refuse(name: str, problems: Sequence[str]) -> None:
    """Raise `ToolSetupError` with all `problems` of the tool, if there are any."""
    if problems:
        raise ToolSetupError(f"tool {name!r} can't be used: {'; '.join(problems)}")
