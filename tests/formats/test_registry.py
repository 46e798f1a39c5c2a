"""Formats by name, and dates in the forms that templates ask for."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.engines.find_format import NAMES, by_name
from dragoman.formats.template import strftime


@pytest.mark.parametrize("name", NAMES)
def test_a_format_is_called_what_it_is_found_by(name) -> None:
    assert by_name(name).name == name


def test_unknown_format_name_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"no format 'morse'\. Formats: .*hermes"):
        by_name("morse")


@given(st.dates(date(1000, 1, 1)))
def test_dates_are_written_as_everybody_writes_them(day) -> None:
    form = "%A %a %d %m %Y %y %B %b %j %% %e %F"
    assert strftime(form, day.isoformat()) == day.strftime(form)
    assert strftime("%-d %-m %H:%M:%S %q", day.isoformat()) == f"{day.day} {day.month} 00:00:00 %q"


def test_invalid_date_stays() -> None:
    assert strftime("%Y", "soon") == "soon"
    assert strftime("%Y", "2026-13-01") == "2026-13-01"
