"""What may only shrink does not grow: modules, lines, modules with one importer, our calls.

Limits are in ratchets.toml. A value above its limit fails, and so does one well below: lower the
limit with `python -m tests.architecture --write`, so that what was gained stays.
"""

from tests.architecture import ratchets


def test_modules_and_lines_are_within_their_limits() -> None:
    wrong = ratchets.complaints(ratchets.tree_figures())
    assert not wrong, "\n".join([*wrong, "See `python -m tests.architecture --help`."])


def test_calls_are_within_their_limits() -> None:
    wrong = ratchets.complaints(ratchets.call_figures())
    assert not wrong, "\n".join([*wrong, "See `python -m tests.architecture --help`."])


def test_a_value_above_its_limit_fails() -> None:
    assert ratchets.complaint(100, 101) == "101 is above its limit of 100"


def test_a_value_a_little_below_its_limit_passes() -> None:
    assert ratchets.complaint(100, 95) is None


def test_a_value_well_below_its_limit_fails_and_names_the_new_limit() -> None:
    words = ratchets.complaint(100, 94)
    assert words == "94 is well below its limit of 100: lower it to 94"
