"""Journals to measure with: valid records of about 2 KB, in numbers that would take long to append one by one."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from fisk_ai import FileStore, MemoryStore
from fisk_ai.fingerprint import make_fingerprint
from fisk_ai.records import AssistantRecord, MetaRecord

TEXT = "The ORDERS stream has 3 consumers and 1,204 pending messages. " * 30
MESSAGE = msgspec.json.encode({"role": "assistant", "content": [{"type": "text", "text": TEXT}]})


def meta(run_id: str) -> MetaRecord:
    """Return a first record."""
    fingerprint = make_fingerprint(provider="scripted", model="m", system_prompt="", tools={})
    return MetaRecord(
        version=2, run_id=run_id, created="2026-12-01T00:00:00.000Z", fingerprint=fingerprint, prompt="Go."
    )


def turn(iteration: int) -> AssistantRecord:
    """Return a turn without calls, of about 2 KB."""
    return AssistantRecord(
        iteration=iteration, format="anthropic", message=msgspec.Raw(MESSAGE), stop_reason="pause_turn", in_tokens=500
    )


def put_journal(store: FileStore, run_id: str, records: int) -> Path:
    """Write a journal of so many records at once, and return its path."""
    memory = MemoryStore()
    with memory.create(run_id, meta(run_id)) as journal:
        for iteration in range(records - 1):
            journal.append(turn(iteration))
    path = Path(store.path(run_id))
    path.write_bytes(b"".join(memory.read_bytes(run_id)))
    path.chmod(0o600)
    return path


def put_floor(path: Path, size_bytes: int) -> int:
    """Write a plain file of so many bytes, and return a descriptor that appends to it."""
    path.write_bytes(b"x" * size_bytes)
    return os.open(path, os.O_WRONLY | os.O_APPEND)


def write_and_sync(descriptor: int, data: bytes) -> None:
    """Do the least that makes data durable."""
    os.write(descriptor, data)
    os.fsync(descriptor)
