"""What a run costs: the tokens that a resume sends, what was used by kinds, and money."""

from __future__ import annotations

import importlib
import importlib.util
import socket
import sys
import threading
from decimal import Decimal

import msgspec
import pytest

from fisk_ai.folding import RunState, fold
from fisk_ai.messages import ImageBlock, ImageSource, TextBlock, encode_result, user_text
from fisk_ai.records import (
    AssistantRecord,
    Fingerprint,
    MetaRecord,
    Record,
    SequencedRecord,
    ToolResultRecord,
    UserRecord,
    resume_mark,
)
from fisk_ai.reports.cost import NextInput, next_input, next_input_text
from fisk_ai.reports.prices import Price, price_data, price_of, price_text

from .bench import Bench, end, result, turn
from .conftest import Inline

listed = pytest.mark.skipif(
    importlib.util.find_spec("genai_prices") is None,
    reason='no price list to ask: pip install "fisk-ai[cost]"',
)
CLAUDE = ("anthropic", "claude-sonnet-4-5")
DAY = "2026-10-01T12:00:00.000Z"


def _records(
    *records: Record, of: tuple[str, str] = CLAUDE, chat: bool = False, prompt: str = "hello"
) -> list[SequencedRecord]:
    meta = MetaRecord(
        version=2, run_id="r", created=DAY, fingerprint=_asked(of), prompt=prompt, checksums=True, interactive=chat
    )
    return [SequencedRecord(seq, record, DAY) for seq, record in enumerate([meta, *records], 1)]


def _asked(of: tuple[str, str]) -> Fingerprint:
    return Fingerprint(provider=of[0], model=of[1], system_hash="0" * 64, tools_hash="0" * 64, tools={})


def _state(*records: Record, chat: bool = False, prompt: str = "hello") -> RunState:
    return fold(_records(*records, chat=chat, prompt=prompt))


def _counted(record: AssistantRecord, tokens: int, out: int = 5, read: int = 0, written: int = 0) -> AssistantRecord:
    return msgspec.structs.replace(
        record, in_tokens=tokens, out_tokens=out, cache_read_tokens=read, cache_create_tokens=written
    )


def _image(call: str, size: int) -> ToolResultRecord:
    picture = ImageBlock(ImageSource("base64", "image/png", "A" * size))
    raw = encode_result(call, [TextBlock("seen"), picture])
    return ToolResultRecord(tool_use_id=call, result=msgspec.Raw(raw), name="note", duration_ms=1)


def _typed(text: str) -> UserRecord:
    return UserRecord(message=msgspec.Raw(user_text(text)))


def _known(state: RunState) -> NextInput:
    found = next_input(state)
    assert found is not None
    return found


def test_run_without_a_turn_is_estimated_by_its_bytes_and_the_rest_is_named() -> None:
    found = _known(_state(prompt="x" * 4000))
    assert 1000 <= found.tokens <= 1030
    assert next_input_text(found) == f"about {round(found.tokens, -1):,} tokens and the system prompt and the tools"


def test_after_a_counted_turn_it_is_the_count_and_what_came_after() -> None:
    turned = _counted(turn("Noting.", "a"), 100, out=20, read=3000, written=400)
    found = _known(_state(turned, result("a", "y" * 8000), end("suspended")))
    assert found.measured
    assert found.open_calls == 0
    assert 3520 + 2000 <= found.tokens <= 3520 + 2050


def test_results_of_an_open_batch_count_and_the_missing_ones_are_named() -> None:
    turned = _counted(turn("Noting.", "a", "b", "c"), 1000)
    none, one = _known(_state(turned)), _known(_state(turned, result("a", "y" * 400)))
    assert (none.tokens, none.open_calls) == (1005, 3)
    assert 1105 <= one.tokens <= 1130
    assert next_input_text(one).endswith("tokens and what 2 open calls answer")
    last = _known(_state(turned, result("a"), result("b")))
    assert next_input_text(last).endswith("tokens and what 1 open call answers")


def test_follow_up_of_a_chat_counts_and_an_answer_that_waits_for_one_does_not_hide_it() -> None:
    answered = _counted(turn("Yes, indeed, it is so."), 500, out=7)
    assert _known(_state(answered, chat=True)) == NextInput(507, measured=True)
    asked = _known(_state(answered, _typed("z" * 400), chat=True))
    assert 607 <= asked.tokens <= 630


def test_image_counts_the_same_whatever_its_bytes() -> None:
    whole = [_known(_state(_counted(turn("", "a"), 100), _image("a", size))).tokens for size in (0, 4_000_000)]
    half_open = [_known(_state(_counted(turn("", "a", "b"), 100), _image("a", size))).tokens for size in (0, 4_000_000)]
    assert whole[0] == whole[1] == pytest.approx(1640, abs=30)
    assert half_open[0] == half_open[1] == pytest.approx(1640, abs=30)


def test_output_that_is_not_sent_back_does_not_count() -> None:
    thought = _counted(turn("Yes."), 100, out=50_000)
    size = len(bytes(thought.message))
    assert _known(_state(thought, chat=True)).tokens == 100 + size
    empty = _counted(turn(""), 100, out=50_000)
    assert _known(_state(empty, chat=True)).tokens == 100


def test_paused_turn_is_sent_back() -> None:
    assert _known(_state(_counted(turn("Searching.", stop="pause_turn"), 300, out=9))).tokens == 309


@pytest.mark.parametrize(
    ("records", "chat"),
    [
        ((turn("Done."), end("completed")), False),
        ((turn("Done."),), False),
        ((turn("Done."), end("completed")), True),
        ((turn("No.", stop="refusal"), end("error", "the model refused to go on")), True),
        ((turn("Cut", stop="max_tokens"),), False),
    ],
)
def test_where_a_resume_asks_nothing_there_is_no_number(records: tuple[Record, ...], chat: bool) -> None:
    assert next_input(_state(*records, chat=chat)) is None


def test_turns_that_were_not_counted_are_estimated_as_a_whole() -> None:
    found = _known(_state(_counted(turn("n" * 4000, "a"), 0, out=0), result("a", "y" * 4000), prompt="x" * 4000))
    assert not found.measured
    assert 3000 <= found.tokens <= 3120


@pytest.mark.parametrize("odd", [-1, -(10**30), 0])
def test_numbers_that_no_provider_sends_do_no_harm(odd: int) -> None:
    state = _state(_counted(turn("Noting.", "a"), odd, out=odd, read=odd, written=odd), result("a"))
    assert 0 < _known(state).tokens < 200


def test_huge_numbers_do_no_harm(bench: Bench, inline: Inline) -> None:
    huge = 2**53
    bench.stored("r", _counted(turn("Noting.", "a"), huge, out=huge, read=huge), result("a"), end("suspended"))
    shown = inline("session", "show", "r")
    assert (shown.code, shown.err.strip()) == (0, "")
    assert "next:     a resume sends about 18," in shown.text
    assert inline("session", "show", "r", "--json").data["next_input_tokens"] >= 2 * huge


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (1004, "1,000"),
        (12_345, "12,300"),
        (99_960, "100,000"),
        (1_234_567, "1,230,000"),
    ],
)
def test_number_is_said_as_exactly_as_it_is_known(tokens: int, text: str) -> None:
    assert next_input_text(NextInput(tokens, measured=True)) == f"about {text} tokens"


def test_show_and_a_resume_say_how_much_is_sent(bench: Bench, inline: Inline) -> None:
    bench.agent([{"calls": [{"name": "note", "input": {"what": "a"}}]}, {"text": "Done."}])
    counted = _counted(turn("Noting.", "a"), 12_300, out=11, read=50)
    bench.stored("r", counted, result("a"), end("suspended"))
    shown = inline("session", "show", "r")
    assert "next:     a resume sends about 12,400 tokens\n" in shown.text
    assert "(input 12300, output 11, cache read 50)" in shown.text
    assert "cost:" not in shown.text
    data = inline("session", "show", "r", "--json").data
    assert 12_361 < data["next_input_tokens"] < 12_420
    assert data["price"] is None
    resumed = inline("run", "--resume", "r")
    assert resumed.code == 0
    assert "next:     the model is sent about 12,400 tokens\n--- goes on after record 4 ---\n" in resumed.err
    assert resumed.text == "Done.\n"
    assert "next:" not in inline("session", "show", "r").text
    assert inline("session", "show", "r", "--json").data["next_input_tokens"] is None


def test_event_of_a_resume_has_the_number(bench: Bench, inline: Inline) -> None:
    bench.stored("r", _counted(turn("Noting.", "a"), 500), result("a"), end("suspended"))
    first = inline("run", "--resume", "r", "--output", "stream-json").text.splitlines()[0]
    event = msgspec.json.decode(first)
    assert event["event"] == "run_resumed"
    assert 505 < event["next_input_tokens"] < 550


def test_info_says_what_a_resume_would_meet_and_changes_nothing(bench: Bench, inline: Inline) -> None:
    bench.stored("may", _counted(turn("Noting.", "a"), 500), result("a"), end("suspended"))
    bench.stored("done", turn("Done."), end("completed"))
    bench.stored("ends", turn("Done."))
    before = bench.snapshot()
    shown = inline("info", "--resume", "may")
    assert shown.code == 0
    assert shown.text.endswith(
        "resume:    run may (suspended) may go on\nnext:      the model is sent about 533 tokens\n"
    )
    data = inline("info", "-r", "ma", "--json").data["resume"]
    assert data == {"run_id": "may", "status": "suspended", "next_input_tokens": 533, "refusal": None}
    refused = inline("info", "--resume", "done")
    assert (refused.code, "resume:    refused: run 'done' is completed" in refused.text) == (0, True)
    assert inline("info", "--resume", "done", "--json").data["resume"]["refusal"]["code"] == "already_completed"
    assert inline("info", "--resume", "ends").text.endswith("the model is asked nothing, only the end is recorded\n")
    assert inline("info", "--json").data["resume"] is None
    assert bench.snapshot() == before


def test_info_names_what_changed_and_who_holds_the_run(bench: Bench, inline: Inline) -> None:
    bench.stored("r", _counted(turn("Noting.", "a"), 500), result("a"), end("suspended"))
    with bench.store.open("r"):
        held = inline("info", "--resume", "r", "--json").data["resume"]
    assert (held["status"], held["refusal"]["code"]) == ("running", "run_locked")
    (bench.directory / "agent.yaml").write_text(
        (bench.directory / "agent.yaml").read_text().replace("You report.", "You sing.")
    )
    refusal = inline("info", "--resume", "r", "--json").data["resume"]["refusal"]
    assert refusal["code"] == "configuration_changed"
    assert "system prompt" in refusal["message"]
    assert inline("info", "--resume", "nobody").code == 1


def test_without_the_price_list_there_is_no_price_and_nothing_fails(
    bench: Bench, inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)  # an import of it fails
    _anthropic(bench)
    bench.stored("r", _counted(turn("Done."), 1000), end("completed"))
    assert "cost:" not in inline("session", "show", "r").text
    assert inline("session", "show", "r", "--json").data["price"] is None


def _anthropic(bench: Bench, model: str = CLAUDE[1]) -> None:
    (bench.directory / "agent.yaml").write_text(
        msgspec.json.encode(
            {"identity": "bench", "system_prompt": "You report.", "llm": {"provider": "anthropic", "model": model}}
        ).decode()
    )


@listed
def test_show_tells_the_price_where_the_list_knows_the_model(bench: Bench, inline: Inline) -> None:
    _anthropic(bench)
    bench.stored("r", _counted(turn("Done."), 1000, out=50, read=200, written=300), end("completed"))
    shown = inline("session", "show", "r").text
    # 1000 * $3 + 50 * $15 + 200 * $0.30 + 300 * $3.75, each a million
    assert "cost:     about $0.0049 at list prices (genai-prices " in shown
    price = inline("session", "show", "r", "--json").data["price"]
    assert price["usd"] == pytest.approx(0.004935)
    assert price["source"].startswith("genai-prices ")


@listed
@pytest.mark.parametrize("of", [("anthropic", "claude-none-such"), ("openai", "my-own:1.5b"), ("scripted", "gpt-4o")])
def test_model_that_the_list_does_not_know_has_no_price(of: tuple[str, str]) -> None:
    assert price_of(_records(_counted(turn("Done."), 1000), of=of)) is None


@listed
@pytest.mark.parametrize(
    "model",
    [
        "google:gemini-2.5-pro",
        "google-gla:gemini-2.5-pro",
        "google-vertex:gemini-2.5-pro",
        "gateway/google:gemini-2.5-pro",
    ],
)
def test_model_of_pydantic_ai_is_priced_by_whom_its_name_says(model: str) -> None:
    price = price_of(_records(_counted(turn("Done."), 1000, out=100), of=("pydantic-ai", model)))
    assert price is not None
    assert price.usd == Decimal("0.00225")


@listed
@pytest.mark.parametrize("model", ["gemini-2.5-pro", "test", "nobody:gemini-2.5-pro", ":", ""])
def test_model_of_pydantic_ai_without_a_known_owner_has_no_price(model: str) -> None:
    assert price_of(_records(_counted(turn("Done."), 1000), of=("pydantic-ai", model))) is None


@listed
def test_each_turn_has_the_price_of_the_model_that_was_asked() -> None:
    first, second = _counted(turn("A", "a"), 1_000_000, out=0), _counted(turn("B"), 100_000, out=0)
    other = resume_mark(_asked(("anthropic", "claude-haiku-4-5")))
    price = price_of(_records(first, result("a"), other, second))
    haiku = price_of(_records(second, of=("anthropic", "claude-haiku-4-5")))
    sonnet = price_of(_records(first))
    assert price is not None
    assert haiku is not None
    assert sonnet is not None
    assert price.usd == sonnet.usd + haiku.usd
    assert haiku.usd < sonnet.usd / 10
    unknown = resume_mark(_asked(("anthropic", "claude-none-such")))
    assert price_of(_records(first, result("a"), unknown, second)) is None


@listed
@pytest.mark.parametrize("odd", [-5, 10**30])
def test_numbers_that_no_provider_sends_have_a_price_or_none(odd: int) -> None:
    price = price_of(_records(_counted(turn("Done."), odd, out=1)))
    assert price is None if odd < 0 else price is not None and price.usd > 10**20


def test_price_list_is_not_loaded_for_a_run_that_it_can_not_price(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(importlib, "import_module", loaded.append)
    assert price_of(_records()) is None
    assert price_of(_records(_counted(turn("A"), 0, out=0))) is None
    assert price_of(_records(_counted(turn("A"), 9), of=("scripted", "x"))) is None
    assert loaded == []
    with pytest.raises(AttributeError):  # of what was loaded instead
        price_of(_records(_counted(turn("A"), 9)))
    assert loaded == ["genai_prices"]


@listed
def test_price_opens_no_connection_and_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = threading.enumerate()
    opened: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *where, **_: opened.append(where))
    monkeypatch.setattr(socket.socket, "connect", lambda _, where: opened.append(where))
    assert price_of(_records(_counted(turn("Done."), 1000))) is not None
    assert opened == []
    assert threading.enumerate() == threads


def test_price_is_said_to_the_hundredth_of_a_cent_or_to_the_cent() -> None:
    assert price_text(Price(Decimal("0.0123456"), "list 1")) == "about $0.0123 at list prices (list 1)"
    assert price_text(Price(Decimal("1234.5678"), "list 1")) == "about $1,234.57 at list prices (list 1)"
    assert price_data(Price(Decimal("0.0123456789"), "list 1")) == {"usd": 0.012346, "source": "list 1"}
    assert price_data(None) is None


def test_run_without_a_turn_has_no_price() -> None:
    assert price_of(_records()) is None
