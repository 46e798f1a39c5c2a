"""Puts `reasoning_details` together from the pieces a stream gives.

Some servers want these back, unchanged, with the next request: texts, summaries, signatures and
sealed blobs, each with an index. Pieces of one index and type are one entry; the rest is as given.
"""

from __future__ import annotations

from dragoman.core.item import JSON

_READABLE = ("text", "summary")
_JOINED = (*_READABLE, "data")


class Details:
    """The entries of one choice so far.

    >>> details = Details()
    >>> details.add([{"index": 0, "type": "reasoning.text", "text": "Hm"}])
    >>> details.add([{"index": 0, "type": "reasoning.text", "text": "m", "signature": "s"}])
    >>> details.take()
    [{'index': 0, 'type': 'reasoning.text', 'text': 'Hmm', 'signature': 's'}]
    """

    __slots__ = ("_entries", "_places")

    def __init__(self) -> None:
        self._entries: list[JSON] = []
        self._places: dict[tuple[int, str], int] = {}

    def add(self, pieces: list[JSON]) -> None:
        """The pieces of one chunk."""
        for piece in pieces:
            match piece:
                case {"index": int(index), "type": str(kind)}:
                    self._merge(piece, (index, kind))
                case _:
                    self._entries.append(piece)

    def take(self) -> list[JSON]:
        """The entries since the last call."""
        entries, self._entries, self._places = self._entries, [], {}
        return [_joined(entry) for entry in entries]

    def _merge(self, piece: dict[str, JSON], key: tuple[int, str]) -> None:
        place = self._places.setdefault(key, len(self._entries))
        if place == len(self._entries):
            self._entries.append({})
        entry = self._entries[place]
        for name, value in piece.items():
            if name in _JOINED and isinstance(value, str):
                if not isinstance(entry.get(name), _Pieces):
                    entry[name] = _Pieces()
                entry[name].append(value)
            elif value is not None or name not in entry:
                entry[name] = value


def words(pieces: list[JSON]) -> list[str]:
    """What can be read in the pieces of one chunk.

    >>> words([{"type": "reasoning.text", "text": "Hm"}, {"type": "reasoning.encrypted"}])
    ['Hm']
    """
    told = (piece.get(n) for piece in pieces if isinstance(piece, dict) for n in _READABLE)
    return [text for text in told if isinstance(text, str) and text]


class _Pieces(list[str]):
    """A text that is not joined yet."""


def _joined(entry: JSON) -> JSON:
    if not isinstance(entry, dict):
        return entry
    return {k: "".join(v) if isinstance(v, _Pieces) else v for k, v in entry.items()}
