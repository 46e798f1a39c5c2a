"""Answers as values."""

from typing import Any

from dragoman.core.item import Item
from dragoman.core.response import Response


def answer(*output: Item, reasons: tuple[str, ...] = ("stop",), **fields: Any) -> Response:
    """A completed answer of these items."""
    given = {"id": "r", "created_at": 5, "model": "m", "status": "completed", **fields}
    return Response(output=output, reasons=reasons, **given)
