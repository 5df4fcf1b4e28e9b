"""Bugs in text from outside: what a terminal gets, what a journal gets, and what an error says."""

from __future__ import annotations

from fisk_ai import jsontext, text
from fisk_ai.providers import credentials
from fisk_ai.providers.http import HttpProvider
from tests.reliability.planted.edits import Edit, Planted, left_out, never

_TEXT = "tests/core/test_text.py"
_SHOWN = f"{_TEXT}::test_nothing_shown_can_drive_a_terminal"
_KEPT = "unicodedata.category(c) not in _HIDDEN"
_HTTP = "tests/providers/test_http.py"

BUGS = (
    Planted(
        "escapes not filtered",
        "The model clears the operator's screen.",
        (Edit(text.printable, "if text.isascii() and text.isprintable():", "if planted(True):"),),
        caught_by=_SHOWN,
    ),
    Planted(
        "escape filter without C1",
        "The 8-bit forms of escape sequences reach the terminal.",
        (
            Edit(
                text.printable,
                '_ESCAPE_SEQUENCES.sub("", text)',
                'planted(re.sub("\\x1b(?:\\\\[[0-?]*[ -/]*[@-~]|\\\\][^\\x07\\x1b]*(?:\\x07|\\x1b.)?|.?)", "", text))',
            ),
            Edit(text.printable, _KEPT, f'planted("\\x80" <= c <= "\\x9f" or {_KEPT})'),
        ),
        caught_by=_SHOWN,
    ),
    Planted(
        "escape sequences not taken as a whole",
        "What an escape sequence would have done stands there as text.",
        (left_out(text.printable, 'text = _ESCAPE_SEQUENCES.sub("", text)'),),
        caught_by=_SHOWN,
    ),
    Planted(
        "hidden characters shown",
        "Text that reads from right to left hides what it says.",
        (Edit(text.printable, _KEPT, "planted(True)"),),
        caught_by=_SHOWN,
    ),
    Planted(
        "more than one line",
        "An error of the model's server fakes a line of ours.",
        (Edit(text.one_line, '" ".join(printable(text).split())', "planted(printable(text))"),),
        caught_by=f"{_TEXT}::test_one_line_is_one_line",
    ),
    Planted(
        "lone surrogates kept",
        "Text is journaled that no request can carry.",
        (
            Edit(
                text.wellformed,
                'return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")',
                "return planted(text)",
            ),
        ),
        caught_by=f"{_TEXT}::test_lone_surrogates_are_replaced_and_pairs_joined",
    ),
    Planted(
        "invalid UTF-8 journaled",
        "A reply of a model's server is journaled that no reader accepts.",
        (Edit(jsontext.journalable, 'raw = raw.decode("utf-8", "replace").encode()', "planted()"),),
        caught_by="tests/core/test_jsontext.py::test_only_what_cannot_be_carried_is_changed",
        shows=(AssertionError, jsontext.BadJson),
    ),
    Planted(
        "line break journaled",
        "A reply with line breaks becomes several lines.",
        (never(jsontext.journalable, 'b"\\n" in raw or b"\\r" in raw'),),
        caught_by="tests/core/test_jsontext.py::test_only_what_cannot_be_carried_is_changed",
    ),
    Planted(
        "what comes in not checked",
        "A reply that is no JSON is journaled.",
        (left_out(jsontext.journalable, "check_strict(raw)"),),
        caught_by="tests/core/test_jsontext.py::test_what_is_not_json_even_then_is_refused",
    ),
    Planted(
        "strict JSON of any depth",
        "A journal holds what some reader dies of.",
        (Edit(jsontext.decode_strict, "check_nesting(raw)\n    return value", "planted()\n    return value"),),
        caught_by="tests/core/test_jsontext.py::test_what_is_not_strict_json_is_refused_with_a_reason",
    ),
    Planted(
        "secret in an exception's text",
        "A server that repeats the key it was sent has it shown, logged and journaled.",
        (never(HttpProvider._without_key, "credential is not None"),),
        caught_by=f"{_HTTP}::test_key_that_a_server_repeats_is_in_no_error",
    ),
    Planted(
        "key in the clear",
        "A key travels over plain http.",
        (never(credentials.check_base_url, 'parts.scheme == "http" and not is_loopback(url.strip())'),),
        caught_by="tests/providers/test_open_provider.py::test_unsafe_or_unusable_addresses_are_refused",
    ),
    Planted(
        "password in an address",
        "A password stands in each message about the server.",
        (never(credentials.check_base_url, "parts.username is not None or parts.password is not None"),),
        caught_by="tests/providers/test_open_provider.py::test_unsafe_or_unusable_addresses_are_refused",
    ),
)
