"""Which calls of the shop's tools may be repeated after a crash: `pip install 'fisk-ai[testing]'`, then `pytest`."""

from __future__ import annotations

from pathlib import Path

import pytest
import shop

from fisk_ai.testing import CrashKit

AGENT = Path(__file__).with_name("agent.yaml")


@pytest.fixture
def kit(crash_kit: CrashKit, monkeypatch: pytest.MonkeyPatch) -> CrashKit:
    """Let the shop's tools work in the directory that the kit makes new before each life of a tool."""
    monkeypatch.setattr(shop, "DATABASE", crash_kit.world / "shop.db")
    monkeypatch.setenv("OUTBOX", str(crash_kit.world))
    return crash_kit


def rows() -> list[list[tuple[object, ...]]]:
    """Return all that the tools change."""
    with shop.database() as db:
        return [db.execute(f"SELECT * FROM {table}").fetchall() for table in ("charges", "customers")]


def test_charging_twice_is_charging_once(kit: CrashKit) -> None:
    """The key of a charge is the idempotency key of its call, so a repeat changes nothing."""
    report = kit.check(shop.charge, {"customer": "ada", "cents": 100}, reset=shop.create_tables, observe=rows)
    report.assert_harmless()


def test_points_would_be_given_twice_so_the_tool_asks(kit: CrashKit) -> None:
    """Nothing tells a repeat from a second award, so an operator has to decide."""
    report = kit.check(shop.award_points, {"customer": "ada", "points": 5}, reset=shop.create_tables, observe=rows)
    assert report.harmful[0].world == [[], [("ada", 10)]]
    assert report.advised == report.declared == "ask"


def test_a_parcel_is_shipped_once(kit: CrashKit) -> None:
    """The command gets the key in its environment."""
    report = kit.check(kit.load(AGENT, "ship"), {"customer": "ada"})
    report.assert_harmless()
