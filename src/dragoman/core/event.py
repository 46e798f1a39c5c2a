"""The nine events of an answer.

Events are brackets: started … finished, item added … item done, part added … part done, with
deltas inside. Their legal order is a table in `lifecycle`. An event has no wire and no
sequence number: encoders number the frames they emit.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .error import Fault
from .item import JSON, Extra, Item, Part, Token
from .loss import Loss
from .response import Guarantee, Status, Usage

DeltaKind = Literal[
    "text",
    "refusal",
    "reasoning",
    "summary",
    "arguments",
    "input",
    "code",
    "audio",
    "transcript",
    "annotation",
    "command",
    "output",
]
State = Literal[
    "queued",
    "in_progress",
    "searching",
    "interpreting",
    "generating",
    "partial",
    "compacting",
    "completed",
    "failed",
    "alive",
    "raw",
]


class Started(Struct, frozen=True, omit_defaults=True, gc=False, tag="started"):
    """The answer has begun. `id` has no prefix (wires add theirs); times are Unix seconds.

    The upstream's own fields (its id, too) are in `extra["upstream"]`. `guarantee` is
    that of the constraints, where it is known already.
    """

    id: str
    created_at: int
    model: str
    losses: tuple[Loss, ...] = ()
    extra: Extra | None = None
    guarantee: Guarantee | None = None


class ItemAdded(Struct, frozen=True, omit_defaults=True, gc=False, tag="item_added"):
    """An item opened, still empty. Indices are dense from 0; `choice` counts alternatives."""

    index: int
    item: Item
    choice: int = 0


class PartAdded(Struct, frozen=True, omit_defaults=True, gc=False, tag="part_added"):
    """A part opened inside an item, still empty.

    Parts count from 0 inside their list; a reasoning item has two lists, content and summary.
    """

    index: int
    part_index: int
    part: Part


class Delta(Struct, frozen=True, omit_defaults=True, gc=False, tag="delta"):
    """The next piece of an open part or item.

    `data` is text; for `annotation` an `Annotation`; for `audio` base64 text that decodes by
    itself. `tokens` are the tokens the piece is made of, where known.
    """

    index: int
    part_index: int
    kind: DeltaKind
    data: JSON
    tokens: tuple[Token, ...] = ()


class PartDone(Struct, frozen=True, omit_defaults=True, gc=False, tag="part_done"):
    """A part closed; `part` is complete."""

    index: int
    part_index: int
    part: Part


class ItemDone(Struct, frozen=True, omit_defaults=True, gc=False, tag="item_done"):
    """An item closed; `item` is complete."""

    index: int
    item: Item


class Progress(Struct, frozen=True, omit_defaults=True, gc=False, tag="progress"):
    """Progress without content.

    `index` is the item it concerns, or None for the whole answer. State `raw` carries, by wire
    name, an upstream's event beside the protocol, which is emitted on that wire only.
    """

    index: int | None
    state: State
    data: JSON = None


class Finished(Struct, frozen=True, omit_defaults=True, gc=False, tag="finished"):
    """The answer ended well. `reasons` holds the finish reason of every choice; `stop_sequence` is
    the stop string that ended the first, where that is known."""

    status: Status
    reasons: tuple[str, ...] = ("stop",)
    usage: Usage | None = None
    completed_at: int | None = None
    losses: tuple[Loss, ...] = ()
    extra: Extra | None = None
    guarantee: Guarantee | None = None
    stop_sequence: str | None = None


class Failed(Struct, frozen=True, omit_defaults=True, gc=False, tag="failed"):
    """The answer failed. Items may be left open; earlier events remain valid."""

    fault: Fault
    usage: Usage | None = None
    completed_at: int | None = None
    extra: Extra | None = None


Event = Started | ItemAdded | PartAdded | Delta | PartDone | ItemDone | Progress | Finished | Failed
