"""Two tools of a shop: one whose call may be repeated after a crash, and one whose call may not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fisk_ai import ToolContext, tool

DATABASE = Path("shop.db")


@contextmanager
def database() -> Iterator[sqlite3.Connection]:
    """Open the database; what is not committed by its user is lost."""
    connection = sqlite3.connect(DATABASE)
    try:
        yield connection
    finally:
        connection.close()


def create_tables() -> None:
    """Make an empty shop with one customer."""
    with database() as db:
        db.executescript(
            "CREATE TABLE charges (key TEXT PRIMARY KEY, customer TEXT, cents INTEGER);"
            "CREATE TABLE customers (name TEXT PRIMARY KEY, points INTEGER);"
            "INSERT INTO customers VALUES ('ada', 0);"
        )


@tool
def charge(customer: str, cents: int, context: ToolContext) -> str:
    """Charge a customer."""
    with database() as db:
        row = (context.idempotency_key, customer, cents)
        db.execute("INSERT OR IGNORE INTO charges VALUES (?, ?, ?)", row)
        db.commit()
    return f"charged {customer} {cents} cents"


@tool(on_crash="ask")
def award_points(customer: str, points: int) -> str:
    """Give a customer points."""
    with database() as db:
        db.execute("UPDATE customers SET points = points + ? WHERE name = ?", (points, customer))
        db.commit()
    return f"gave {customer} {points} points"
