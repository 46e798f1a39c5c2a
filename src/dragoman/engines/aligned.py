"""Tokens that are those of their text: what a server trimmed off the beginning is not among them.

A server that takes white space or a fence away from before an answer still weighs the tokens they
were made of. By the protocols, the tokens of a text put together are the text, so that these are
left out, and one that reaches into the text is cut. Who trims is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.core.event import Delta, Event, ItemDone, PartDone
from dragoman.core.item import Item, Message, Part, Text, Token


def fitted(tokens: Sequence[Token], text: str) -> tuple[Token, ...]:
    """The tokens from where a text begins in them; all of them where it is not found.

    >>> [token.text for token in fitted([Token("```"), Token(' {"')], '{"')]
    ['{"']
    """
    said, joined = _bytes(text), b"".join(map(_octets, tokens))
    # What came last is the text, unless the server holds some of it back.
    extra = len(joined) - len(said) if joined.endswith(said) else joined.find(said)
    kept: list[Token] = []
    for token in tokens:
        octets = _octets(token)
        if extra <= 0:
            kept.append(token)
        elif len(octets) > extra:
            rest = octets[extra:]
            kept.append(replace(token, text=rest.decode("utf-8", "replace"), bytes=rest))
        extra -= len(octets)
    return tuple(kept)


class Aligner:
    """Feed it the events of one answer; it gives them with tokens that fit."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], list[Token]] = {}  # of texts that have said nothing yet
        self._kept: dict[tuple[int, int], list[Token]] = {}  # of those that have

    def feed(self, event: Event) -> Event | None:
        """The event as it should be; None for one that says nothing."""
        match event:
            case Delta(kind="text"):
                return self._delta(event)
            case PartDone(index, place, part):
                return replace(event, part=self._part(index, place, part))
            case ItemDone(index, item):
                return replace(event, item=self._item(index, item))
        return event

    def _delta(self, delta: Delta) -> Delta | None:
        place = (delta.index, delta.part_index)
        if (kept := self._kept.get(place)) is not None:
            kept += delta.tokens
            return delta
        held = self._held.setdefault(place, [])
        held += delta.tokens
        if not delta.data:
            return None
        tokens = fitted(held, delta.data)
        self._kept[place] = list(tokens)
        return replace(delta, tokens=tokens)

    def _part(self, index: int, place: int, part: Part) -> Part:
        if not isinstance(part, Text) or (index, place) not in self._held:
            return part
        return replace(part, tokens=tuple(self._kept.get((index, place), ())))

    def _item(self, index: int, item: Item) -> Item:
        if not isinstance(item, Message) or isinstance(item.content, str):
            return item
        parts = (self._part(index, place, part) for place, part in enumerate(item.content))
        return replace(item, content=tuple(parts))


def _octets(token: Token) -> bytes:
    return token.bytes if token.bytes is not None else _bytes(token.text)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
