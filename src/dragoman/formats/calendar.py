"""A given date in the forms templates ask for, without a clock.

Only what stands in a date is known; a time of day is always midnight, and English is spoken.
"""

from __future__ import annotations

import re

_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_BEFORE = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")


def strftime(form: str, date: str) -> str:
    """An ISO date in this form; a text that is no such date as it is.

    >>> strftime("%A, %d %b %Y", "2026-11-21")
    'Saturday, 21 Nov 2026'
    """
    match = _DATE.match(date)
    if match is None or not 1 <= int(match[2]) <= 12:
        return date
    year, month, day = (int(part) for part in match.groups())
    leaps = (year - 1) // 4 - (year - 1) // 100 + (year - 1) // 400
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    number = _BEFORE[month - 1] + day + (leap and month > 2)
    weekday = _DAYS[(365 * (year - 1) + leaps + number - 1) % 7]
    name = _MONTHS[month - 1]
    known = {
        "Y": f"{year:04}",
        "y": f"{year % 100:02}",
        "m": f"{month:02}",
        "d": f"{day:02}",
        "B": name,
        "b": name[:3],
        "A": weekday,
        "a": weekday[:3],
        "j": f"{number:03}",
        "-d": str(day),
        "-m": str(month),
        "e": f"{day:2}",
        "F": date[:10],
        "%": "%",
        "H": "00",
        "M": "00",
        "S": "00",
        "I": "12",
        "p": "AM",
    }
    return re.sub(r"%(-?.)", lambda code: known.get(code[1], code[0]), form)
