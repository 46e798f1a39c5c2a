"""What stands after the question mark of an address, read strictly.

It knows numbers, flags and pages, and nothing of what is listed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar
from urllib.parse import parse_qsl

from dragoman.core.error import FaultError, bad_request
from dragoman.server.exchange import Exchange
from dragoman.stores.base import Order, Paging

T = TypeVar("T")

MOST = 100
"""Entries on a page at the most."""
_NUMBER = re.compile(r"-?[0-9]{1,18}")


class Query:
    """The parameters of a request's address."""

    def __init__(self, exchange: Exchange) -> None:
        text = exchange.scope.get("query_string", b"").decode("latin-1")
        self._pairs = parse_qsl(text, keep_blank_values=True)
        self._values = dict(self._pairs)

    def text(self, name: str) -> str | None:
        """A parameter as it is."""
        return self._values.get(name)

    def texts(self, name: str) -> tuple[str, ...]:
        """All that is given for a parameter that may be there more than once, as `name` or as
        `name[]`."""
        return tuple(value for key, value in self._pairs if key.partition("[")[0] == name)

    def entries(self, name: str) -> dict[str, str]:
        """What is given as `name[key]=value`."""
        return {
            key.removeprefix(f"{name}[").removesuffix("]"): value
            for key, value in self._values.items()
            if key.startswith(f"{name}[") and key.endswith("]")
        }

    def flag(self, name: str) -> bool:
        """A parameter that is true or false; absent is false."""
        value = self._values.get(name, "false").lower()
        if value not in ("true", "false", "1", "0"):
            raise FaultError(bad_request(f"is {value!r}, and must be true or false", name))
        return value in ("true", "1")

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number within bounds."""
        text = self._values.get(name, str(default))
        if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
            problem = f"is {text[:40]!r}, and must be a whole number from {least} to {most}"
            raise FaultError(bad_request(problem, name))
        return int(text)

    def paging(self, order: Order = "desc") -> Paging:
        """Which part of a list is wanted; `order` is what holds where nothing is said of it."""
        said = self._values.get("order", order)
        if said not in ("asc", "desc"):
            raise FaultError(bad_request(f"is {said!r}, and must be asc or desc", "order"))
        limit = self.number("limit", 20, 1, MOST)
        order = "asc" if said == "asc" else "desc"
        return Paging(after=self._values.get("after"), limit=limit, order=order)


def paged(entries: Sequence[tuple[str | None, T]], paging: Paging) -> tuple[list[T], bool]:
    """The part of a list that is asked for, and whether more follows it; each entry has its id."""
    ordered = entries if paging.order == "asc" else entries[::-1]
    if paging.after is not None:
        places = [place for place, (id, _) in enumerate(ordered) if id == paging.after]
        ordered = ordered[places[0] + 1 :] if places else ()
    return [entry for _, entry in ordered[: paging.limit]], len(ordered) > paging.limit
