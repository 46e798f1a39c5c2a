"""The smallest things that can happen while an engine answers: exactly nine.

Events are a language of brackets: started … finished, item added … item done, part added … part
done, with deltas inside. Their legal order is a table in `lifecycle`. An event knows no wire and
carries no sequence number: those belong to the encoder that says it.
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


class Started(Struct, frozen=True, omit_defaults=True, tag="started"):
    """The answer has begun. `id` has no prefix (wires add theirs); times are Unix seconds.

    What the upstream said of itself (its own id among it) is in `extra["upstream"]`. `guarantee`
    is how sure it is that the answer will be what was demanded, where that is known already.
    """

    id: str
    created_at: int
    model: str
    losses: tuple[Loss, ...] = ()
    extra: Extra | None = None
    guarantee: Guarantee | None = None


class ItemAdded(Struct, frozen=True, omit_defaults=True, tag="item_added"):
    """An item opened, still empty. Indices are dense from 0; `choice` counts alternatives."""

    index: int
    item: Item
    choice: int = 0


class PartAdded(Struct, frozen=True, omit_defaults=True, tag="part_added"):
    """A part opened inside an item, still empty.

    Parts count from 0 inside their list; a reasoning item has two lists, content and summary.
    """

    index: int
    part_index: int
    part: Part


class Delta(Struct, frozen=True, omit_defaults=True, tag="delta"):
    """A piece more of what is open.

    `data` is text; for `annotation` an `Annotation`; for `audio` base64 text that decodes by
    itself. `tokens` are the tokens the piece is made of, where known.
    """

    index: int
    part_index: int
    kind: DeltaKind
    data: JSON
    tokens: tuple[Token, ...] = ()


class PartDone(Struct, frozen=True, omit_defaults=True, tag="part_done"):
    """A part closed; it is here whole."""

    index: int
    part_index: int
    part: Part


class ItemDone(Struct, frozen=True, omit_defaults=True, tag="item_done"):
    """An item closed; it is here whole."""

    index: int
    item: Item


class Progress(Struct, frozen=True, omit_defaults=True, tag="progress"):
    """Something is going on that adds nothing to the answer's items.

    `index` is the item it concerns, or None for the whole answer. State `raw` carries, by wire
    name, what an upstream said beside the protocol: it is said again on that wire only.
    """

    index: int | None
    state: State
    data: JSON = None


class Finished(Struct, frozen=True, omit_defaults=True, tag="finished"):
    """The end, and a good one. `reasons` holds the finish reason of every choice."""

    status: Status
    reasons: tuple[str, ...] = ("stop",)
    usage: Usage | None = None
    completed_at: int | None = None
    losses: tuple[Loss, ...] = ()
    extra: Extra | None = None
    guarantee: Guarantee | None = None


class Failed(Struct, frozen=True, omit_defaults=True, tag="failed"):
    """The end, and a bad one. Items may be left open; what came before stands."""

    fault: Fault
    usage: Usage | None = None
    completed_at: int | None = None
    extra: Extra | None = None


Event = Started | ItemAdded | PartAdded | Delta | PartDone | ItemDone | Progress | Finished | Failed
