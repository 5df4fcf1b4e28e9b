from __future__ import annotations

from typing import Any

import pytest

from fisk_ai.config.document import MAX_BYTES, Mark, UnreadableDocument, parse_document


def value_of(text: str) -> Any:
    document = parse_document(text.encode())
    assert document.problems == []
    return document.value


def unreadable(raw: bytes) -> tuple[str, Mark | None]:
    with pytest.raises(UnreadableDocument) as caught:
        parse_document(raw)
    return caught.value.problem.text, caught.value.problem.mark


def flaws(text: str) -> list[tuple[str, Mark | None]]:
    return [(problem.text, problem.mark) for problem in parse_document(text.encode()).problems]


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "y", "N", "1:30", "2026-12-01", "2026-12-01T10:00:00Z"])
def test_words_and_times_that_yaml_1_1_converts_stay_text(word: str) -> None:
    assert value_of(f"a: {word}") == {"a": word}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("0777", 777),
        ("0o17", 15),
        ("0x1F", 31),
        ("-5", -5),
        ("+5", 5),
        ("1e3", 1000.0),
        ("1E-2", 0.01),
        (".5", 0.5),
        ("5.", 5.0),
        ("1_000", "1_000"),
        ("0b1", "0b1"),
        ("1.2.3", "1.2.3"),
        ("true", True),
        ("FALSE", False),
        ("tRue", "tRue"),
        ("null", None),
        ("~", None),
        ("", None),
        ('"5"', "5"),
        ("'true'", "true"),
        ('""', ""),
        ("|\n  5", "5"),
    ],
)
def test_scalars_follow_the_core_schema_of_yaml_1_2(written: str, value: object) -> None:
    found = value_of(f"a: {written}")["a"]
    assert found == value
    assert type(found) is type(value)


def test_every_entry_knows_where_its_key_and_value_stand() -> None:
    document = parse_document(b"llm:\n  model: x\ntools:\n- a\n- {b: 1}\n")
    assert document.value == {"llm": {"model": "x"}, "tools": ["a", {"b": 1}]}
    assert document.places == {
        (): (Mark(1, 1), Mark(1, 1)),
        ("llm",): (Mark(1, 1), Mark(2, 3)),
        ("llm", "model"): (Mark(2, 3), Mark(2, 10)),
        ("tools",): (Mark(3, 1), Mark(4, 1)),
        ("tools", 0): (Mark(4, 3), Mark(4, 3)),
        ("tools", 1): (Mark(5, 3), Mark(5, 3)),
        ("tools", 1, "b"): (Mark(5, 4), Mark(5, 7)),
    }


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    assert parse_document(b"\xef\xbb\xbfa: 1").places["a",].key == Mark(1, 1)


def test_each_doubled_key_is_named_with_the_line_of_the_first() -> None:
    found = flaws("a: 1\nb: {c: 1, c: 2}\na: 2\n'a': 3\n")
    assert found == [
        ("is there twice: line 2 has it already", Mark(2, 11)),
        ("is there twice: line 1 has it already", Mark(3, 1)),
        ("is there twice: line 1 has it already", Mark(4, 1)),
    ]


@pytest.mark.parametrize("key", ["1", "true", "null", "1.5", "~"])
def test_a_key_that_is_no_text_is_told_to_be_quoted(key: str) -> None:
    assert flaws(f"a: 1\n{key}: 2") == [(f"a key has to be text: put {key} in quotes", Mark(2, 1))]


def test_a_missing_key_is_told_to_be_quoted() -> None:
    assert flaws("a: 1\n: 2") == [("a key has to be text: put it in quotes", Mark(2, 1))]


def test_a_list_as_a_key_is_refused() -> None:
    assert flaws("? [a]\n: 1") == [("a key has to be text", Mark(1, 3))]


@pytest.mark.parametrize("tagged", ["!!str 5", "!!python/object:os.system x", "! 5", "!!map {}", "!x [1]"])
def test_tags_are_refused(tagged: str) -> None:
    assert flaws(f"a: {tagged}") == [("tags (a leading !) aren't supported", Mark(1, 4))]


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ('"\\ud800"', "half of a surrogate pair"),
        ('"a\\0b"', "NUL"),
        (".inf", "infinity and NaN"),
        ("-.Inf", "infinity and NaN"),
        (".nan", "infinity and NaN"),
        ("1e999", "beyond 64 bits"),
        ("9223372036854775808", "beyond 64 bits"),
        ("9" * 5000, "beyond 64 bits"),
    ],
)
def test_values_that_json_cannot_carry_are_refused(written: str, reason: str) -> None:
    [(text, mark)] = flaws(f"a: {written}")
    assert reason in text
    assert mark == Mark(1, 4)


def test_an_invalid_key_is_refused_too() -> None:
    [(text, mark)] = flaws('"\\ud800": 1')
    assert "surrogate" in text
    assert mark == Mark(1, 1)


def test_aliases_stand_for_what_they_name() -> None:
    assert value_of("a: &x {b: [1]}\nc: *x") == {"a": {"b": [1]}, "c": {"b": [1]}}


def test_a_merge_key_is_a_key_like_any_other() -> None:
    assert value_of("a: &x {b: 1}\nc: {<<: *x}") == {"a": {"b": 1}, "c": {"<<": {"b": 1}}}


def test_an_alias_bomb_is_refused_before_it_unfolds() -> None:
    levels = [f"{chr(c)}: &{chr(c)} [{','.join([f'*{chr(c - 1)}'] * 9)}]" for c in range(ord("b"), ord("k"))]
    text, _ = unreadable("\n".join(["a: &a [x]", *levels]).encode())
    assert "more than 20000 keys and values" in text


def test_aliases_cannot_nest_deeper_than_the_limit() -> None:
    levels = [f"k{n}: &k{n} [*k{n - 1}]" for n in range(1, 60)]
    assert "nested deeper" in unreadable("\n".join(["k0: &k0 []", *levels]).encode())[0]


@pytest.mark.parametrize("text", ["a: *b", "a: &a [*a]"])
def test_an_alias_needs_an_anchor_that_is_complete(text: str) -> None:
    assert "without an anchor before it" in unreadable(text.encode())[0]


@pytest.mark.parametrize("unit", [b"[", b"{", b"- ", b"? ", b"{a: "])
def test_deep_nesting_is_refused(unit: bytes) -> None:
    text, mark = unreadable(unit * 300)
    assert text == "is nested deeper than 40 levels"
    assert mark is not None


@pytest.mark.parametrize("raw", [b"", b"\n\n", b"# nothing but a comment\n", b"\xef\xbb\xbf"])
def test_an_empty_file_says_what_it_needs(raw: bytes) -> None:
    text, mark = unreadable(raw)
    assert text == "is empty: it needs at least `llm:` with a provider and a model"
    assert mark == Mark(1, 1)


def test_a_second_document_is_refused_at_its_line() -> None:
    assert unreadable(b"a: 1\n---\nb: 2\n") == ("holds several documents: only one is allowed", Mark(2, 1))


def test_another_yaml_version_is_refused() -> None:
    assert "YAML 1.2" in unreadable(b"%YAML 1.1\n---\na: on\n")[0]
    assert value_of("%YAML 1.2\n---\na: on\n") == {"a": "on"}


def test_a_file_that_is_too_large_is_refused_without_a_line() -> None:
    assert unreadable(b" " * (MAX_BYTES + 1)) == ("is larger than 1024 KiB", None)


@pytest.mark.parametrize(
    ("raw", "mark"),
    [(b"a: 1\nb: \xff\n", Mark(2, 4)), ("a: 1".encode("utf-16"), Mark(1, 1)), (b"\xed\xa0\x80", Mark(1, 1))],
)
def test_bytes_that_are_not_utf8_are_named_by_their_place(raw: bytes, mark: Mark) -> None:
    assert unreadable(raw) == ("isn't UTF-8 text: save it as UTF-8", mark)


@pytest.mark.parametrize(("raw", "code"), [(b"a: 1\nb: \0", "U+0000"), (b"a: 1\nb: \x1b[2J", "U+001B")])
def test_control_characters_are_named_by_their_place(raw: bytes, code: str) -> None:
    assert unreadable(raw) == (f"isn't YAML: the character {code} can't stand in it", Mark(2, 4))


@pytest.mark.parametrize(
    ("raw", "mark"), [(b"a: 1\nb: [1,\n", Mark(3, 1)), (b"a: b: c", Mark(1, 5)), (b"a:\n\tb: 1", Mark(2, 1))]
)
def test_broken_syntax_is_named_by_its_place(raw: bytes, mark: Mark) -> None:
    text, found = unreadable(raw)
    assert text.startswith("isn't YAML: ")
    assert found == mark


def test_an_escape_beyond_unicode_is_no_crash() -> None:
    assert unreadable(b'a: "\\U00110000"')[0].startswith("isn't YAML")
