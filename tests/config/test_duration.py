from __future__ import annotations

import pytest

from fisk_ai.config.duration import LONGEST_S, parse_duration


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("500ms", 0.5),
        ("120s", 120),
        ("2m", 120),
        ("1h", 3600),
        ("1.5h", 5400),
        (5, 5),
        (0.25, 0.25),
        ("8760h", LONGEST_S),
    ],
)
def test_accepted_forms_are_seconds(written: object, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        *("5", "", "s", "-1s", "0s", "1e3s", "1 s", "1s\n", "1H", "1d", "1h30m", "٣s", "9" * 400 + "h", "8761h"),
        *(0, -1, True, None, [], {}, float("nan"), float("inf"), 10**18),
    ],
)
def test_other_forms_are_refused_with_the_accepted_ones_named(written: object) -> None:
    with pytest.raises(ValueError, match="500ms, 120s, 2m or 1h, or a number of seconds"):
        parse_duration(written)
