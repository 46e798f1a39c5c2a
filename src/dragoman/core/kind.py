"""What kind of thing a value is, in a word for people: the type by which a wire names it.

Only the name is made here; which kinds a route can carry is for the route to say.
"""

from __future__ import annotations

from .item import Item, Part, Unknown, UnknownPart
from .request import Tool, UnknownTool

LONGEST = 64
"""Letters of a name, which may be anything that a client made up."""


def kind_of(value: Item | Part | Tool) -> str:
    """The type of an item, a part or a tool, in quotes.

    >>> from dragoman.core.item import ItemReference
    >>> kind_of(ItemReference("msg_1")), kind_of(Unknown("responses", "web_search_call", {}))
    ("'item_reference'", "'web_search_call'")
    """
    match value:
        case Unknown(kind=kind) | UnknownTool(kind=kind):
            pass
        case UnknownPart(value=said):
            kind = str(said.get("type"))
        case _:
            kind = str(value.__struct_config__.tag)
    return repr(kind if len(kind) <= LONGEST else f"{kind[:LONGEST]}…")
