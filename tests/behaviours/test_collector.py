"""Every behaviour that is promised has a sentence and a test, and nothing else bears a number.

The promise is docs/reference/behaviours.md; what the tests of a number assert is their own affair.
"""

import pytest

from tests.behaviours.numbers import DOCUMENT, REQUIRED, by_number, described, numbers_of


def test_every_required_number_is_described() -> None:
    sentences = described(DOCUMENT.read_text())
    assert not [number for number in REQUIRED if not sentences.get(number, "").endswith(".")]


def test_every_described_number_has_a_test() -> None:
    tests = by_number()
    missing = [number for number in described(DOCUMENT.read_text()) if number not in tests]
    assert not missing, "numbers without a test: " + ", ".join(missing)


def test_every_numbered_test_is_described() -> None:
    tests = by_number()
    assert not {number: tests[number] for number in tests.keys() - described(DOCUMENT.read_text())}


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("test_r1_1_defaults", ["R1 1"]),
        ("test_r1_13_order", ["R1 13"]),
        ("test_r1_w5_calls_without_index", ["R1 w5"]),
        ("test_d8_only_what_is_set", ["D8"]),
        ("test_r4_w12_o10_a_dead_server", ["R4 w12", "O10"]),
        ("test_p21_r4_21_it_is_durable", ["P21", "R4 21"]),
        ("test_p_17_is_no_number", []),
        ("test_r1_is_no_number", []),
        ("test_v10", []),
        ("helper_v10_text", []),
    ],
)
def test_the_numbers_are_read_off_the_name(name, numbers) -> None:
    assert numbers_of(name) == numbers


def test_a_sentence_may_run_over_lines_and_a_number_stands_once() -> None:
    text = "- **R1 7** Arguments are\n  read.\n\n- **V10** Text is kept.\n"
    assert described(text) == {"R1 7": "Arguments are read.", "V10": "Text is kept."}
    with pytest.raises(ValueError, match="R1 7 stands twice"):
        described(text + "- **R1 7** Again.\n")
