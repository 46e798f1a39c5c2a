"""Stores the items of a session in order, with their sound, and prepares them for the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from io import StringIO
from typing import cast

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from .error import Code, Fault, FaultError, bad_request, quoted
from .item import (
    Audio,
    Call,
    CallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Part,
    Reasoning,
    Text,
    Unknown,
    UnknownPart,
)
from .session_values import ROOT, SessionConfig
from .sound import BYTES_PER_MS, Arena, Sound, Spoken, from_base64, to_base64, wav_head

NO_RESULT = "There is no result yet."
"""A placeholder for a missing result of a call: most servers refuse a call without one."""
SILENCE, INAUDIBLE = "(silence)", "(inaudible)"
"""Placeholders for a user who said nothing, and for speech without words: many servers refuse a
conversation that begins or ends with the model, and a turn without words."""

_OURS = (Reasoning, FunctionCall, FunctionCallOutput, CustomToolCall, CustomToolCallOutput)
"""Items beside messages whose id and status are the session's."""


class Entry(Struct):
    """An item of the conversation. A `hidden` one is for the model alone; an `open` one is being
    answered. `spoken` is what its parts say, by their index; `transcript` is that so
    far of one that is being transcribed, and `fault` why it could not be. `size` is its weight."""

    item: Item
    hidden: bool = False
    open: bool = False
    spoken: dict[int, Spoken] = field(default_factory=dict)
    transcript: StringIO | None = None
    fault: Fault | None = None
    size: int = 0


class Items:
    """The conversation of a session: bounded, ordered, each item under its id.

    >>> items = Items(most=8, most_text=100, most_audio=0)
    >>> items.insert(Message("user", "One", id="a"), None).item.id
    'a'
    >>> items.insert(Message("user", "Two", id="b"), ROOT).item.id, items.before("a")
    ('b', 'b')
    """

    def __init__(self, *, most: int, most_text: int, most_audio: int) -> None:
        self._most = most
        self._most_text = most_text
        self._order: list[str] = []
        self._entries: dict[str, Entry] = {}
        self.sound = Arena(most_audio)
        self.text = 0
        """Characters of text, or nearly."""

    def __contains__(self, id: object) -> bool:
        return id in self._entries

    def entries(self) -> list[Entry]:
        """The items in their order."""
        return [self._entries[id] for id in self._order]

    def get(self, id: str | None) -> Entry | None:
        """The item with this id, if there is one."""
        return self._entries.get(id or "")

    def find(self, id: str, param: str = "item_id", code: Code = "not_found") -> Entry:
        """The item with this id, which a client may name. Raises FaultError."""
        entry = self._entries.get(id)
        if entry is None or entry.hidden:
            message = f"{param}: there is no item {quoted(id)} in the conversation"
            raise FaultError(Fault(code, message, "client", param))
        return entry

    def before(self, id: str) -> str | None:
        """The id of the previous visible item."""
        return self._seen(self._order.index(id))

    @property
    def last(self) -> str | None:
        """The id of the last visible item."""
        return self._seen(len(self._order))

    def _seen(self, place: int) -> str | None:
        for id in reversed(self._order[:place]):
            if not self._entries[id].hidden:
                return id
        return None

    def check_room(self, more: int) -> None:
        """Raise FaultError where there is no room for an item with so many characters."""
        if len(self._order) >= self._most or self.text + more > self._most_text:
            message = (
                f"The conversation has {len(self._order)} items of {self.text} characters, which is"
                " as many as a session may have: delete some (conversation.item.delete)."
            )
            raise FaultError(Fault("too_large", message, "client", "item"))

    def check_place(self, item: Item, previous: str | None) -> None:
        """Raise FaultError where an item cannot be inserted there."""
        if item_id(item) == ROOT:
            raise taken(ROOT, "the place before the first item")
        if item_id(item) in self._entries:
            raise taken(item_id(item), "another item")
        if previous is not None and previous != ROOT:
            self.find(previous, "previous_item_id")

    def insert(
        self, item: Item, previous: str | None, *, open: bool = False, hidden: bool = False
    ) -> Entry:
        """Put an item behind another one, at the beginning (ROOT), or at the end."""
        place = len(self._order)
        if previous is not None:
            place = 0 if previous == ROOT else self._order.index(previous) + 1
        self._order.insert(place, item_id(item))
        entry = self._entries[item_id(item)] = Entry(item, hidden, open, size=weight(item))
        self.text += entry.size
        return entry

    def complete(self, item: Item) -> None:
        """An item that was open, or not transcribed, is this."""
        entry = self._entries[item_id(item)]
        size = weight(item)
        self.text += size - entry.size
        entry.item, entry.open, entry.size = item, False, size
        for number, spoken in entry.spoken.items():
            self._set_transcript(entry, number, spoken)

    def delete(self, id: str) -> None:
        """Remove an item. Raises FaultError."""
        entry = self.find(id)
        if entry.open:
            problem = "is still being answered; cancel the answer first (response.cancel)"
            raise FaultError(bad_request(problem, "item_id"))
        del self._entries[id]
        self._order.remove(id)
        self.text -= entry.size
        self.sound.drop(id)

    def truncate(self, id: str, number: int, end: int) -> None:
        """Cut a spoken part, sound and transcript, at a position. Raises FaultError."""
        entry = self.find(id)
        spoken = entry.spoken.get(number)
        if spoken is None:
            problem = "is no part of the item that the model spoke"
            raise FaultError(bad_request(problem, "content_index"))
        if not 0 <= end <= spoken.length:
            problem = f"is {end}, and must be between 0 and {spoken.length}, the length in ms"
            raise FaultError(bad_request(problem, "audio_end_ms"))
        spoken.cut(end)
        self.sound.cut((id, number), end * BYTES_PER_MS)
        if not entry.open:
            self._set_transcript(entry, number, spoken)

    def _set_transcript(self, entry: Entry, number: int, spoken: Spoken) -> None:
        """Give a spoken part the transcript that is left of it."""
        item = cast(Message, entry.item)  # only messages have sound
        parts = [*item.parts]
        parts[number] = replace(parts[number], transcript=spoken.text)
        entry.item = replace(item, content=tuple(parts))

    def whole(self, item: Item, most: int) -> tuple[Item, int]:
        """An item with the sound that is stored of it, and the bytes of that; without its sound,
        where that has more than `most`."""
        if not isinstance(item, Message):
            return item, 0
        places = [(item_id(item), number) for number in range(len(item.parts))]
        size = sum(map(self.sound.length, places))
        if size > most:
            return item, size
        parts = [*item.parts]
        for number, sound in enumerate(map(self.sound.get, places)):
            if isinstance(part := parts[number], Audio) and sound:
                parts[number] = replace(part, data=to_base64(sound))
        return replace(item, content=tuple(parts)), size

    def size_for_model(self, entries: Sequence[Entry]) -> int:
        """Characters of items and bytes of their sound, each as often as it is referred to: what
        the model gets of them, or nearly."""
        sizes: dict[int, int] = {}  # an item may be large, and be referenced often
        for entry in entries:
            if id(entry) not in sizes:
                item = entry.item
                places = range(len(item.parts)) if isinstance(item, Message) else ()
                sounds = (self.sound.length((item_id(item), number)) for number in places)
                sizes[id(entry)] = (entry.size or weight(item)) + sum(sounds)
        return sum(sizes[id(entry)] for entry in entries)

    def for_model(
        self, entries: Sequence[Entry], *, hears: bool = True
    ) -> tuple[tuple[Item, ...], tuple[Sound, ...]]:
        """Items as models get them: transcripts as text, and for a model that `hears` sound without
        a transcript as parts without data, which `with_sounds` adds; without ids and states, which
        are the session's. Each call is followed by its result, wherever that was created; one that
        was cut short and has none is left out, as most servers refuse half its arguments. So is
        reasoning whose answer was left out, and where the user has said nothing, that is said."""
        sounds: list[Sound] = []
        items = [self._for_model(entry.item, sounds, hears=hears) for entry in entries]
        results: dict[str, list[CallOutput]] = {}
        for item in items:
            if isinstance(item, CallOutput):
                results.setdefault(item.call_id, []).append(item)
        calls = [entry.item for entry in entries if isinstance(entry.item, Call)]
        whole = Counter([call.call_id for call in calls if call.status != "incomplete"])
        known = {call.call_id for call in calls}
        arranged: list[Item] = []
        owed: list[Item] = []  # the results of the previous calls, which stay together
        for entry, item in zip(entries, items, strict=True):
            if isinstance(item, Call):
                found = results.get(item.call_id, ())  # some servers repeat the ids of calls
                short = isinstance(entry.item, Call) and entry.item.status == "incomplete"
                if short and len(found) <= whole[item.call_id]:
                    continue
                whole[item.call_id] -= not short
                arranged.append(item)
                owed.append(found.pop(0) if found else _no_result(item))
            elif not (item == _NOTHING or (isinstance(item, CallOutput) and item.call_id in known)):
                arranged += [*owed, item]
                owed = []
        return _with_silence(with_answers([*arranged, *owed])), tuple(sounds)

    def _for_model(self, item: Item, sounds: list[Sound], *, hears: bool) -> Item:
        if not isinstance(item, Message):
            return replace(item, id=None, status=None) if isinstance(item, _OURS) else item
        parts: list[Part] = []
        for number, part in enumerate(item.parts):
            if isinstance(part, Audio):
                sound = self.sound.get((item_id(item), number))
                if part.transcript is not None or not sound or not hears:
                    part = Text(part.transcript or "")
                else:
                    sounds.append(sound)
                    part = _WAV
            if part != _SILENCE:
                parts.append(part)
        if not parts and item.role == "assistant":  # cancelled before its first text
            return _NOTHING
        unheard = item.role == "user" and any(isinstance(part, Audio) for part in item.parts)
        parts = parts or [Text(INAUDIBLE) if unheard else _SILENCE]
        return replace(item, id=None, status=None, content=tuple(parts))


def with_answers(items: list[Item]) -> list[Item]:
    """Items without reasoning that nothing of the model's follows."""
    found: list[Item] = []
    for item in reversed(items):
        lone = not found or isinstance(found[-1], CallOutput) or _role(found[-1]) in _GIVEN
        if not (lone and isinstance(item, Reasoning)):
            found.append(item)
    return found[::-1]


def _with_silence(items: list[Item]) -> tuple[Item, ...]:
    """Items with what the user did not say before the first answer, and before the next one."""
    turns = [n for n, item in enumerate(items) if not _is_beside(item)]
    silent = Message("user", (Text(SILENCE),))
    if not turns or _role(items[turns[-1]]) == "assistant":
        items = [*items, silent]
    if turns and not (isinstance(first := items[turns[0]], CallOutput) or _role(first) == "user"):
        items = [*items[: turns[0]], silent, *items[turns[0] :]]
    return tuple(items)


def _is_beside(item: Item) -> bool:
    """Whether nobody speaks in an item: it is for the system, or says which tools there are."""
    listing = isinstance(item, Unknown) and item.kind == "mcp_list_tools"
    return listing or _role(item) in _GIVEN[1:]


def _role(item: Item) -> str | None:
    return item.role if isinstance(item, Message) else None


def with_sounds(items: tuple[Item, ...], sounds: tuple[Sound, ...]) -> tuple[Item, ...]:
    """Items for a model with their sounds as WAV. It is slow: call it in a thread."""
    if not sounds:
        return items
    rest = iter(sounds)

    def whole(part: Part) -> Part:
        if part is not _WAV:
            return part
        return replace(part, data=to_base64(sound := next(rest), wav_head(len(sound))))

    return tuple(
        replace(item, content=tuple(map(whole, item.parts))) if isinstance(item, Message) else item
        for item in items
    )


def taken(id: str, what: str) -> FaultError:
    """The error for a duplicate item id."""
    problem = f"item.id: {quoted(id)} is the id of {what}"
    return FaultError(Fault("item_exists", problem, "client", "item.id"))


def take_sounds(item: Item) -> tuple[Item, dict[int, bytes]]:
    """An item without the sound in it, and that by the index of its part. Raises FaultError for
    what is no sound."""
    sounds: dict[int, bytes] = {}
    if not isinstance(item, Message):
        return item, sounds
    parts = [*item.parts]
    for number, part in enumerate(parts):
        if isinstance(part, Audio) and part.data is not None:
            try:
                sounds[number] = from_base64(part.data)
            except ValueError:
                path = f"item.content[{number}].audio"
                raise FaultError(bad_request("is not base64", path)) from None
            parts[number] = replace(part, data=None)
    return (replace(item, content=tuple(parts)) if sounds else item), sounds


def as_text(item: Item) -> Item | None:
    """An item as it can be put into a session: with text where its sound is elsewhere; None where
    nothing of it is left."""
    if not isinstance(item, Message):
        return item
    parts = [
        Text(part.transcript or "") if isinstance(part, Audio) and part.data is None else part
        for part in item.parts
    ]
    parts = [part for part in parts if part != Text("")]
    return replace(item, content=tuple(parts)) if parts else None


def merged(old: Item, new: Item) -> Item:
    """An item that is done: transcripts that came before stay."""
    if not isinstance(old, Message) or not isinstance(new, Message):
        return new
    parts = [
        replace(part, transcript=before.transcript)
        if isinstance(part, Audio) and part.transcript is None and isinstance(before, Audio)
        else part
        for part, before in zip(new.parts, [*old.parts, *new.parts[len(old.parts) :]], strict=False)
    ]
    return replace(new, content=tuple(parts))


def _no_result(call: Call) -> CallOutput:
    if isinstance(call, FunctionCall):
        return FunctionCallOutput(call.call_id, NO_RESULT)
    return CustomToolCallOutput(call.call_id, NO_RESULT)


_SILENCE = Text("")
_WAV = Audio(format="wav")
_NOTHING = Message("assistant")
_GIVEN = ("user", "system", "developer")


def item_id(item: Item) -> str:
    """The id of an item of a session, which always has one."""
    return item.id or ""


def type_of(item: Item) -> str:
    """The type of an item."""
    return item.kind if isinstance(item, Unknown) else str(item.__struct_config__.tag)


def weight(item: Item) -> int:
    """Characters in an item, or nearly; each counts as some besides."""
    size = 64 + other_weight(item)
    match item:
        case Message():
            return size + sum(map(_part_weight, item.parts))
        case FunctionCall(arguments=text) | CustomToolCall(input=text):
            return size + len(text)
        case FunctionCallOutput(output=output) | CustomToolCallOutput(output=output):
            return size + (
                len(output) if isinstance(output, str) else sum(map(_part_weight, output))
            )
        case Reasoning():
            return size + len(item.text) + len(item.encrypted or "")
        case _:
            return size


def other_weight(item: Item) -> int:
    """Characters of an item beside its texts: ids, names, and what is not known.

    >>> other_weight(FunctionCall("c" * 10, "f" * 20, "{}"))
    30
    """
    size = sum(len(getattr(item, name, None) or "") for name in ("id", "call_id", "name"))
    if item.extra:
        size += _json_weight(item.extra)
    if isinstance(item, Unknown):
        size += _json_weight(item.value)
    elif isinstance(item, Message):
        size += sum(map(_other_part_weight, item.parts))
    return size


def _other_part_weight(part: Part) -> int:
    value = part.value if isinstance(part, UnknownPart) else part.extra
    return _json_weight(value) if value else 0


def _json_weight(value: object) -> int:
    data = _encoded(value)
    return len(data) + 16 * sum(map(data.count, (b",", b":", b"[", b"{")))


def config_weight(config: SessionConfig, most: int) -> int:
    """Characters of a configuration, or nearly. Raises FaultError where there are more."""
    rest = (config.tools, config.transcription, config.prompt, config.voice, config.truncation)
    others = (config.tracing, config.noise_reduction, config.include, config.extra)
    size = len(config.instructions) + len(_encoded((rest, others)))
    if size > most:
        message = (
            f"The instructions, tools and options have {size} characters, and a session may have "
            f"{most} of them."
        )
        raise FaultError(Fault("too_large", message, "client", "session"))
    return size


def _encoded(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError, TypeError):  # lone surrogates, long integers
        return repr(value).encode("utf-8", "replace")


def _part_weight(part: Part) -> int:
    texts: Sequence[str | None] = [
        getattr(part, name, None) for name in ("text", "url", "transcript", "data")
    ]
    return 64 + sum(len(text) for text in texts if text)
