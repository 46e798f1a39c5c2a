"""Values of files: uploads, vector stores, search results and filters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from .item import JSON

Attribute = str | float | bool


class StoredFile(Struct, frozen=True, kw_only=True):
    """The metadata of an uploaded file."""

    id: str
    tenant: str
    name: str
    purpose: str
    size: int
    created_at: int
    expires_at: int | None = None


class VectorStore(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A vector store: files that are searched together. It expires `days` after its last use.

    `counts` are its files by their status, `size` the bytes of text that is searched, and `seq` is
    what the store itself calls it.
    """

    id: str
    tenant: str
    created_at: int
    active_at: int
    name: str = ""
    description: str | None = None
    metadata: dict[str, JSON] = {}
    days: int | None = None
    counts: dict[str, int] = {}
    size: int = 0
    seq: int = 0

    @property
    def expires_at(self) -> int | None:
        """When it expires, if it does."""
        return None if self.days is None else self.active_at + self.days * 86_400


IndexStatus = Literal["in_progress", "completed", "failed"]


class IndexedFile(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file in a vector store: cut into chunks of at most `tokens`, of which each repeats the last
    `overlap` of the one before. `model` made their vectors, if they have any. `error` is a code of
    the protocol and a sentence."""

    store: str
    file: str
    name: str
    created_at: int
    status: IndexStatus = "in_progress"
    size: int = 0
    batch: str | None = None
    attributes: dict[str, Attribute] = {}
    tokens: int = 800
    overlap: int = 400
    model: str = ""
    error: tuple[str, str] | None = None
    seq: int = 0


class Found(Struct, frozen=True):
    """A chunk of a file that matches a query, with its score from 0 to 1."""

    file: str
    name: str
    text: str
    score: float
    attributes: dict[str, Attribute] = {}


Operator = Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]


class Comparison(Struct, frozen=True):
    """A condition on one attribute of a file. A missing attribute is unequal to every value."""

    key: str
    operator: Operator
    value: Attribute | tuple[Attribute, ...]

    def fits(self, attributes: Mapping[str, Attribute]) -> bool:
        """Whether a file with these attributes is meant.

        >>> Comparison("year", "gte", 2024).fits({"year": 2025.0})
        True
        """
        own, value = attributes.get(self.key), self.value
        if isinstance(value, tuple):
            return any(_same(own, each) for each in value) is (self.operator == "in")
        if self.operator in ("eq", "ne"):
            return _same(own, value) is (self.operator == "eq")
        if isinstance(own, bool) or isinstance(value, bool):
            return False
        order: int | None = None  # of what is of one type
        if isinstance(own, str):
            order = (own > value) - (own < value) if isinstance(value, str) else None
        elif own is not None and not isinstance(value, str):
            order = (own > value) - (own < value)
        return order in _ORDERS[self.operator]


class Combination(Struct, frozen=True):
    """Several conditions, all of which must hold, or one of them where it is not `every`."""

    every: bool
    conditions: tuple[Condition, ...]

    def fits(self, attributes: Mapping[str, Attribute]) -> bool:
        """Whether a file with these attributes is meant."""
        each = (condition.fits(attributes) for condition in self.conditions)
        return all(each) if self.every else any(each)


Condition = Comparison | Combination

_ORDERS = {"gt": (1,), "gte": (0, 1), "lt": (-1,), "lte": (-1, 0)}


def _same(one: object, other: object) -> bool:
    """Whether two values are equal; true is not 1."""
    return isinstance(one, bool) is isinstance(other, bool) and one == other
