"""Formats have the names they are listed under."""

import pytest

from dragoman.formats.registry import NAMES, by_name


@pytest.mark.parametrize("name", NAMES)
def test_a_format_is_called_what_it_is_found_by(name: str) -> None:
    assert by_name(name).name == name


def test_a_name_that_is_none_is_told_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"no format 'morse'\. Formats: .*hermes"):
        by_name("morse")
