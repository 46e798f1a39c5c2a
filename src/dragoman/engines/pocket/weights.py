"""Reads weights from a `.safetensors` file: a header in JSON, and numbers behind it.

Only plain arrays come out; what they mean is the network's affair.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, convert, json
from numpy.typing import NDArray

Array = NDArray[np.float32]

_KINDS = {"F16": np.float16, "F32": np.float32}


class _Place(Struct, frozen=True):
    """Where in the file an array stands, as bytes counted from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read(file: Path) -> dict[str, Array]:
    """The arrays by their names, in single precision. Raises ValueError for a file that is none."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    try:
        header = json.decode(data[8 : 8 + size], type=dict[str, dict[str, Any]])
        header.pop("__metadata__", None)
        return {name: _array(data, 8 + size, place) for name, place in header.items()}
    except (ValueError, KeyError) as error:
        raise ValueError(f"{file.name} holds no weights: {error}") from None


def _array(data: bytes, start: int, described: dict[str, Any]) -> Array:
    place = convert(described, _Place)
    first, last = place.data_offsets
    found = np.frombuffer(data[start + first : start + last], _KINDS[place.dtype])
    return found.reshape(place.shape).astype(np.float32)
