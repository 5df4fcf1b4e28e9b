"""The tables of docs/comparison.md, made from the results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.scene import PLACES, TOOLS

Result = Mapping[str, Any]

IN_DOUBT = tuple(place for place in PLACES if place.split(":")[0] in TOOLS)
"""The places at which the process dies inside a tool."""


def written(page: str, results: Sequence[Result]) -> str:
    """Return the page with its tables made anew."""
    for name, lines in tables(results).items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        parts = re.split(f"{begin}.*?{end}", page, flags=re.S)
        if len(parts) != 2:
            raise ValueError(f"docs/comparison.md has {len(parts) - 1} places for the table {name!r}, expected one")
        page = "\n".join((parts[0] + begin, "", *lines, "", end + parts[1]))
    return page


def tables(results: Sequence[Result]) -> dict[str, list[str]]:
    """Return all tables, each as its lines."""
    return {
        "summary": _summary(results),
        "places": _places(results),
        "second process": _second(results),
        "damage": _damage(results),
        "versions": _versions(results),
    }


def _summary(results: Sequence[Result]) -> list[str]:
    head = ("", "finished", "effects repeated", "of these with the same call id", "effects lost", "turns paid again",
            "doubtful call named")  # fmt: skip
    return _table(head, [_summed(each) for each in results])


def _summed(result: Result) -> list[str]:
    runs = [run for runs in result["kills"].values() for run in runs]
    in_doubt = [run for place in IN_DOUBT for run in result["kills"].get(place, ())]
    repeated = sum(run["repeated"] for run in runs)
    same = sum(run["recognisable"] for run in runs)
    return [
        result["title"],
        f"{sum(run['finished'] for run in runs)} of {len(runs)}",
        str(repeated),
        str(same) if repeated else "",
        str(sum(run["lost"] for run in runs)),
        str(sum(run["paid_again"] for run in runs)),
        f"{sum(bool(run['named']) for run in in_doubt)} of {len(in_doubt)}",
    ]


def _places(results: Sequence[Result]) -> list[str]:
    head = ("killed at", *(_letter(at) for at in range(len(results))))
    rows = [[place, *(_cell(each["kills"][place]) for each in results)] for place in PLACES]
    legend = [f"- {_letter(at)}: {each['title']}" for at, each in enumerate(results)]
    return [*_table(head, rows), "", *legend]


def _letter(at: int) -> str:
    return chr(ord("A") + at)


def _cell(runs: Sequence[Mapping[str, Any]]) -> str:
    """Tell what went wrong in the runs of one place; those of one kind are counted."""
    said = [_wrong(run) for run in runs]
    kinds = dict.fromkeys(said)
    return "; ".join(kind if len(kinds) == 1 else f"{kind or 'nothing'} ({said.count(kind)}x)" for kind in kinds)


def _wrong(run: Mapping[str, Any]) -> str:
    parts = [] if run["finished"] else ["**stops**"]
    parts += [tool for tool, times in run["effects"].items() if times > 1]
    parts += [f"no {tool}" for tool, times in run["effects"].items() if not times and run["finished"]]
    parts += [f"{run['paid_again']} paid"] if run["paid_again"] else []
    return ", ".join(parts)


def _second(results: Sequence[Result]) -> list[str]:
    places = list(results[0]["second"])
    head = ("", *(f"first one is in `{place.split(':')[0]}`" for place in places))
    rows = [[each["title"], *(_told(each["second"][place]) for place in places)] for each in results]
    return _table(head, rows)


def _told(run: Mapping[str, Any]) -> str:
    """Tell how it went, with which error, and what happened twice."""
    by = run["error"].partition(":")[0].rpartition(".")[2]
    twice = [tool for tool, times in run["effects"].items() if times > 1]
    parts = [f"{run['note']} (`{by}`)" if by else run["note"]]
    parts += [f"twice: {', '.join(twice)}"] if twice else []
    parts += [f"{run['paid_again']} paid again"] if run["paid_again"] else []
    return "; ".join(parts)


def _damage(results: Sequence[Result]) -> list[str]:
    return _table(
        ("", "a changed bit in the stored result"), [[each["title"], _told(each["damaged"])] for each in results]
    )


def _versions(results: Sequence[Result]) -> list[str]:
    versions = {package: version for each in results for package, version in each["versions"].items()}
    dates = sorted({each["date"] for each in results})
    span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    rounds = sorted({len(runs) for each in results for runs in each["kills"].values()})
    rows = [[package, version] for package, version in sorted(versions.items())]
    how = f"Measured {span} with {results[0]['with']}, runs for each place: {' to '.join(map(str, rounds))}."
    return [how, "", *_table(("package", "version"), rows)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
