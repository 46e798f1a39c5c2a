"""Words in the place of pictures, sound and files, for a model that cannot take them.

The words are always the same, so that a prompt stays the same prompt, and each replacement is
told. What a model can take is decided elsewhere.
"""

from __future__ import annotations

from msgspec.structs import replace

from .item import (
    Audio,
    CustomToolCallOutput,
    File,
    FunctionCallOutput,
    Image,
    Item,
    Message,
    Part,
    Text,
)
from .ledger import Ledger

Sense = type[Image] | type[Audio] | type[File]


def without(items: tuple[Item, ...], senses: tuple[Sense, ...], ledger: Ledger) -> tuple[Item, ...]:
    """The items with words for all parts of these kinds; the same tuple where there are none.

    >>> seen = (Message("user", (Text("What is this?"), Image("https://example.com/cat.png"))),)
    >>> without(seen, (Image,), Ledger())[0].text
    'What is this?[image: this model cannot see it]'
    """
    worded = tuple(_without(item, index, senses, ledger) for index, item in enumerate(items))
    return items if all(map(_same, items, worded)) else worded


def _same(old: object, new: object) -> bool:
    return old is new


def _without(item: Item, index: int, senses: tuple[Sense, ...], ledger: Ledger) -> Item:
    match item:
        case Message(content=tuple(parts)) if _any(parts, senses):
            where = "items[*].content[*]"
            return replace(item, content=_worded(parts, senses, ledger, where, index))
        case (
            FunctionCallOutput(output=tuple(parts)) | CustomToolCallOutput(output=tuple(parts))
        ) if _any(parts, senses):
            where = "items[*].output[*]"
            return replace(item, output=_worded(parts, senses, ledger, where, index))
        case _:
            return item


def _any(parts: tuple[Part, ...], senses: tuple[Sense, ...]) -> bool:
    return any(isinstance(part, senses) for part in parts)


def _worded(
    parts: tuple[Part, ...], senses: tuple[Sense, ...], ledger: Ledger, where: str, index: int
) -> tuple[Part, ...]:
    words: list[Part] = []
    for number, part in enumerate(parts):
        if not isinstance(part, senses):
            words.append(part)
            continue
        match part:
            case Audio(transcript=str(transcript)):
                words.append(Text(transcript))
                why = "this model cannot hear; the transcript is sent"
                ledger.note(where, "emulated", why, (index, number))
                continue
            case Image():
                text, why = "[image: this model cannot see it]", "this model cannot see"
            case Audio():
                text, why = "[audio: this model cannot hear it]", "this model cannot hear"
            case _:
                text, why = "[file: this model cannot read it]", "this model cannot read files"
        words.append(Text(text))
        ledger.note(where, "told", f"{why}; a placeholder is sent", (index, number))
    return tuple(words)
