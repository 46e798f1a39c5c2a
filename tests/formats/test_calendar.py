"""Dates in the forms that templates ask for, against the standard library."""

from datetime import date

from hypothesis import given
from hypothesis import strategies as st

from dragoman.formats.template import strftime


@given(st.dates(date(1000, 1, 1)))
def test_dates_are_written_as_everybody_writes_them(day: date) -> None:
    form = "%A %a %d %m %Y %y %B %b %j %% %e %F"
    assert strftime(form, day.isoformat()) == day.strftime(form)
    assert strftime("%-d %-m %H:%M:%S %q", day.isoformat()) == f"{day.day} {day.month} 00:00:00 %q"


def test_what_is_no_date_stays() -> None:
    assert strftime("%Y", "soon") == "soon"
    assert strftime("%Y", "2026-13-01") == "2026-13-01"
