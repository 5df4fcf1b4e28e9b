"""`python -m benchmarks.kill_test`: kill each contestant at each place, resume it, count, and write the table.

The results go to `results.json`, and from there into the tables of `docs/comparison.md`. With `--only` the others'
results stay; with `--render` nothing is run. `README.md` says how to set it up.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import Contestant, damaged_store, interpreter, kill_and_resume, second_process
from benchmarks.page import written
from benchmarks.scene import PLACES

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
PAGE = HERE.parent / "docs" / "comparison.md"
LIVE_IN = ("charge: begins", "ship: begins")

_DBOS = ("dbos",)
CONTESTANTS = (
    Contestant("fisk_ai", "rerun", "fisk-ai, tools as they are by default", ("fisk-ai",)),
    Contestant("fisk_ai", "ask", 'fisk-ai, tools with `on_crash="ask"`, and somebody who looks', ("fisk-ai",)),
    Contestant("fisk_ai", "skip", 'fisk-ai, tools with `on_crash="skip"`', ("fisk-ai",)),
    Contestant(
        "langgraph",
        "sync",
        'LangGraph, `durability="sync"`',
        ("langgraph", "langgraph-checkpoint-sqlite", "langchain"),
    ),
    Contestant("langgraph", "default", "LangGraph, default", ("langgraph", "langgraph-checkpoint-sqlite", "langchain")),
    Contestant("openai_agents", "session", "OpenAI Agents SDK, `SQLiteSession`", ("openai-agents",)),
    Contestant("openai_agents", "dbos", "OpenAI Agents SDK in DBOS", ("openai-agents", "dbos-openai-agents", *_DBOS)),
    Contestant("pydantic_ai", "harness", "pydantic-ai, `StepPersistence`", ("pydantic-ai-slim", "pydantic-ai-harness")),
    Contestant(
        "pydantic_ai",
        "harness-stop",
        "pydantic-ai, `StepPersistence`, program stops at unresolved calls",
        ("pydantic-ai-slim", "pydantic-ai-harness"),
    ),
    Contestant("pydantic_ai", "dbos-steps", "pydantic-ai in DBOS, tools as steps", ("pydantic-ai-slim", *_DBOS)),
    Contestant("pydantic_ai", "dbos", "pydantic-ai in DBOS, plain tools", ("pydantic-ai-slim", *_DBOS)),
    Contestant("dbos", "steps", "DBOS, a loop of one's own", _DBOS),
)


def measured(contestant: Contestant, places: Sequence[str], rounds: int, pace_s: float) -> dict[str, Any]:
    """Run all cases of one contestant."""
    kills = {place: [kill_and_resume(contestant, place, pace_s).as_json() for _ in range(rounds)] for place in places}
    return {
        "name": contestant.name,
        "title": contestant.title,
        "versions": {package: importlib.metadata.version(package) for package in contestant.packages},
        "date": dt.date.today().isoformat(),
        "with": interpreter(),
        "kills": kills,
        "second": {place: second_process(contestant, place, pace_s).as_json() for place in LIVE_IN if place in places},
        "damaged": damaged_store(contestant, pace_s).as_json(),
    }


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put new results in the place of the old ones, in the order of the contestants."""
    by_name = {each["name"]: each for each in (*old, *new)}
    return [by_name[each.name] for each in CONTESTANTS if each.name in by_name]


def save(results: list[dict[str, Any]]) -> None:
    """Write results and page, so that they never differ."""
    page = written(PAGE.read_text(encoding="utf-8"), results)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page, encoding="utf-8")


def main() -> None:
    """Run what was asked for, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="part of a contestant's name")
    parser.add_argument("--rounds", type=int, default=1, help="how often each place is tried (default: 1)")
    parser.add_argument("--pace", type=float, default=0.3, help="seconds of a model call and of a slow tool")
    parser.add_argument("--render", action="store_true", help="only write the page from the results")
    told = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    chosen = [each for each in CONTESTANTS if not told.only or any(part in each.name for part in told.only)]
    for contestant in [] if told.render else chosen:
        print(contestant.name, file=sys.stderr)
        results = merged(results, [measured(contestant, list(PLACES), told.rounds, told.pace)])
        save(results)
    save(results)


if __name__ == "__main__":
    main()
