"""What a run cost, by the list of genai-prices, which is an extra. Nothing is fetched: its list is that of its release.

It is imported only once there is something to look up, since that takes a good part of a second.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from fisk_ai.records import AssistantRecord, Fingerprint, MetaRecord, SequencedRecord, TerminalRecord

_OWN_API: Mapping[str, str] = {"anthropic": "anthropic", "openai": "openai"}
"""Provider -> whose price list it is."""
_PYDANTIC_AI: Mapping[str, str] = {"openai-chat": "openai", "openai-responses": "openai", "grok": "x-ai"}
"""What pydantic-ai calls an API -> what the price list calls its owner, where that isn't found by itself."""


@dataclass(frozen=True, slots=True)
class Price:
    """What turns cost."""

    usd: Decimal
    source: str
    """The list and its release."""


@dataclass(frozen=True, slots=True)
class _Paid:
    """A turn, whom it was asked of, and when: prices depend on all three, and some on the size of a request."""

    turn: AssistantRecord
    asked: Fingerprint
    time: datetime | None


def price_of(records: Iterable[SequencedRecord]) -> Price | None:
    """Return what the turns of a run cost; None without genai-prices, or if it doesn't know the model of a turn."""
    paid = [each for each in _turns(records) if _tokens(each.turn)]
    owners = [_owner(each.asked) for each in paid]
    if not paid or None in owners:
        return None
    try:
        genai_prices = importlib.import_module("genai_prices")
    except ImportError:
        return None
    try:
        prices = [_price(genai_prices, each, *owner) for each, owner in zip(paid, owners, strict=True) if owner]
    except (LookupError, ValueError):  # a model that the list doesn't have, numbers that it doesn't take
        return None
    return Price(sum(prices, Decimal(0)), f"genai-prices {genai_prices.__version__}")


def _turns(records: Iterable[SequencedRecord]) -> Iterator[_Paid]:
    asked: Fingerprint | None = None
    created = None
    for item in records:
        match item.record:
            case MetaRecord() as meta:
                asked, created = meta.fingerprint, _moment(meta.created)
            case TerminalRecord(fingerprint=Fingerprint() as forced):
                asked = forced
            case AssistantRecord() as turn if asked is not None:
                yield _Paid(turn, asked, _moment(item.time) or created)


def _tokens(turn: AssistantRecord) -> int:
    return turn.in_tokens + turn.out_tokens + turn.cache_read_tokens + turn.cache_create_tokens


def _owner(asked: Fingerprint) -> tuple[str, str] | None:
    """Return whose price list to look into, and for which model."""
    if asked.provider == "pydantic-ai":
        api, found, model = asked.model.removeprefix("gateway/").partition(":")
        return (_PYDANTIC_AI.get(api, api), model) if found else None
    owner = _OWN_API.get(asked.provider)
    return None if owner is None else (owner, asked.model)


def _moment(time: str | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat(time or "")
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def _price(genai_prices: Any, paid: _Paid, owner: str, model: str) -> Decimal:
    turn = paid.turn
    usage = genai_prices.Usage(
        input_tokens=turn.in_tokens + turn.cache_read_tokens + turn.cache_create_tokens,
        output_tokens=turn.out_tokens,
        cache_read_tokens=turn.cache_read_tokens,
        cache_write_tokens=turn.cache_create_tokens,
    )
    found = genai_prices.calc_price(usage, model, provider_id=owner, genai_request_timestamp=paid.time)
    total: Decimal = found.total_price
    return total


def price_data(price: Price | None) -> dict[str, Any] | None:
    """Return a price for `--json`: dollars to the millionth."""
    return None if price is None else {"usd": round(float(price.usd), 6), "source": price.source}


def price_text(price: Price) -> str:
    """Return a price for people; small ones to a hundredth of a cent."""
    places = 2 if price.usd >= 1 else 4
    return f"about ${price.usd:,.{places}f} at list prices ({price.source})"
