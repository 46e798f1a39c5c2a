"""Conditions on the attributes of files."""

import pytest

from dragoman.core.files import Combination, Comparison, VectorStore

ATTRIBUTES = {"year": 2024.0, "lang": "en", "draft": True}


@pytest.mark.parametrize(
    ("key", "operator", "value", "fits"),
    [
        ("lang", "eq", "en", True),
        ("lang", "eq", "de", False),
        ("lang", "ne", "de", True),
        ("lang", "ne", "en", False),
        ("none", "eq", "en", False),
        ("none", "ne", "en", True),
        ("none", "gt", 1, False),
        ("year", "eq", 2024, True),
        ("year", "gt", 2023.5, True),
        ("year", "gt", 2024, False),
        ("year", "gte", 2024, True),
        ("year", "lt", 2025, True),
        ("year", "lte", 2024, True),
        ("year", "lte", 2023, False),
        ("lang", "gt", "de", True),
        ("lang", "lt", "de", False),
        ("lang", "gt", 1, False),
        ("draft", "eq", True, True),
        ("draft", "eq", 1, False),
        ("draft", "gte", 0, False),
        ("lang", "in", ("de", "en"), True),
        ("lang", "in", ("de",), False),
        ("lang", "nin", ("de",), True),
        ("lang", "nin", ("de", "en"), False),
        ("none", "nin", ("de",), True),
    ],
)
def test_comparison_holds_or_not(key, operator, value, fits) -> None:
    assert Comparison(key, operator, value).fits(ATTRIBUTES) is fits


def test_combination_holds_for_all_or_for_one() -> None:
    true, false = Comparison("lang", "eq", "en"), Comparison("lang", "eq", "de")
    assert not Combination(True, (true, false)).fits(ATTRIBUTES)
    assert Combination(False, (false, true)).fits(ATTRIBUTES)
    assert Combination(True, (true, Combination(False, (true,)))).fits(ATTRIBUTES)


def test_vector_store_expires_so_many_days_after_it_was_active() -> None:
    made = VectorStore(id="v", tenant="", created_at=1, active_at=5)
    assert made.expires_at is None
    made = VectorStore(id="v", tenant="", created_at=1, active_at=5, days=2)
    assert made.expires_at == 5 + 2 * 86_400
