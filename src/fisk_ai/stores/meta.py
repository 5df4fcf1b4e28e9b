"""The first record of a new run, for loops of your own; `Agent` makes its own."""

from __future__ import annotations

from collections.abc import Mapping

from fisk_ai.fingerprint import make_fingerprint
from fisk_ai.records import VERSION, MetaRecord, ToolHashes
from fisk_ai.stores.base import Clock, timestamp, utc_now
from fisk_ai.text import wellformed


def new_meta(
    run_id: str,
    prompt: str,
    *,
    provider: str,
    model: str,
    system_prompt: str = "",
    tools: Mapping[str, ToolHashes] | None = None,
    thinking_mode: str = "off",
    max_tokens: int | None = None,
    max_iterations: int | None = None,
    interactive: bool = False,
    clock: Clock = utc_now,
) -> MetaRecord:
    """Return the record that a run begins with: version, time and fingerprint are filled in.

    `tools` are hashes by name (`tool_hashes`). What is given here is what `fingerprint.diff` compares on a resume;
    leave out what may change in the middle of a run. `Store.create` checks `run_id` and makes the record durable.
    """
    fingerprint = make_fingerprint(
        provider=provider,
        model=model,
        system_prompt=wellformed(system_prompt),
        tools=tools or {},
        thinking_mode=thinking_mode,
        max_tokens=max_tokens,
        max_iterations=max_iterations,
    )
    return MetaRecord(
        version=VERSION,
        run_id=run_id,
        created=timestamp(clock()),
        fingerprint=fingerprint,
        prompt=wellformed(prompt),
        checksums=True,
        interactive=interactive,
    )
