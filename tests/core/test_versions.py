"""Which versions are read, and what each of them may hold."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from fisk_ai.errors import JournalCorrupt, NewerVersion
from tests.strategies import dumps, foreign_lines, meta, scan

FIRST = foreign_lines(meta(checksums=False))[0]


def with_version(spelled: str) -> bytes:
    return re.sub(rb'"version": 2', b'"version": ' + spelled.encode(), FIRST)


@pytest.mark.parametrize("version", [1, 2])
def test_versions_up_to_ours_are_read(version: int) -> None:
    assert len(scan(with_version(str(version)))[0]) == 1


@pytest.mark.parametrize("version", [3, 4, 99, 10**30])
def test_a_newer_version_is_refused_naming_both(version: int) -> None:
    with pytest.raises(NewerVersion, match=rf"version {version}.* up to 2") as caught:
        scan(with_version(str(version)))
    assert (caught.value.found, caught.value.supported) == (version, 2)


@pytest.mark.parametrize("spelled", ['"2"', "2.0", "true", "-1", "0", "null", "[]", "3.0", '"3"'])
def test_a_version_that_is_no_version_is_damage(spelled: str) -> None:
    with pytest.raises(JournalCorrupt):
        scan(with_version(spelled))


def test_a_missing_version_is_damage() -> None:
    with pytest.raises(JournalCorrupt, match="version"):
        scan(FIRST.replace(b'"version": 2, ', b""))


def test_a_newer_version_is_refused_even_if_its_fields_mean_something_else() -> None:
    changed: dict[str, Any] = json.loads(with_version("3"))
    changed["meta"]["fingerprint"] = "by reference"
    changed["meta"]["created"] = 1764559260
    with pytest.raises(NewerVersion):
        scan(dumps(changed) + b"\n" + b'{"seq": 2, "what": "ever"}\n')


def test_a_record_of_an_unknown_kind_is_damage_that_names_the_line() -> None:
    with pytest.raises(JournalCorrupt, match="unknown protocol") as caught:
        scan(FIRST + b'{"seq": 2, "protocol": "io.choria.fisk-ai.v1.session.dream", "dream": {}}\n')
    assert (caught.value.line, caught.value.seq) == (2, 2)


def test_unknown_fields_are_no_obstacle() -> None:
    changed: dict[str, Any] = json.loads(FIRST)
    changed["shard"] = 7
    changed["meta"]["later"] = {"a": [None]}
    changed["meta"]["fingerprint"]["region"] = "eu"
    assert scan(dumps(changed) + b"\n")[0][0].record == meta(checksums=False)
