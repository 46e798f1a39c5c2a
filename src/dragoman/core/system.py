"""System and developer messages in the role and at the place an upstream can read them.

Many chat templates know one system message, at the start, and reject or silently pass over any
other. Nothing is left out: texts are joined in their order, with a blank line between.
"""

from __future__ import annotations

from typing import Literal, TypeGuard

from msgspec.structs import replace

from .item import Item, Message, Part, Role, Text
from .ledger import Ledger
from .request import Request


def lower_system(
    request: Request, ledger: Ledger, *, role: Literal["developer", "system"], front: bool
) -> Request:
    """`role` is what developer messages are sent as; `front` asks for one message, before all.

    >>> late = (Message("user", "hi"), Message("developer", "Be brief."))
    >>> request = Request(model="m", instructions="Be kind.", items=late)
    >>> lower_system(request, Ledger(), role="system", front=True).items[0].text
    'Be kind.\\n\\nBe brief.'
    """
    spots = [index for index, item in enumerate(request.items) if _is_system(item)]
    if front and spots and (request.instructions or spots != [0]):
        ledger.note("items", "emulated", "all system messages are sent as one, before the others")
        return _merged(request, ledger, role)
    if role == "developer" or not any(_is_developer(request.items[spot]) for spot in spots):
        return request
    items = list(request.items)
    for spot in spots:
        if _is_developer(item := items[spot]):
            items[spot] = replace(item, role=role)
            ledger.note(
                "items[*].role", "emulated", "developer messages are sent as system", (spot,)
            )
    return replace(request, items=tuple(items))


def _merged(request: Request, ledger: Ledger, role: Literal["developer", "system"]) -> Request:
    match request.instructions:
        case tuple(lead):
            pass
        case text:
            lead = (Message("system", text),) if text else ()
    items = (*lead, *request.items)
    system = [item for item in items if _is_system(item)]
    if len(system) > 1 and any(item != Message(item.role, item.content) for item in system):
        why = "what system messages say beside their text is left out where they are joined"
        ledger.note("items", "told", why)
    if any(item.role == "system" for item in system):
        role = "system"
    first = replace(system[0], role=role) if len(system) == 1 else _joined(system, role)
    rest = (item for item in items if not _is_system(item))
    return replace(request, instructions=None, items=(first, *rest))


def _joined(messages: list[Message], role: Role) -> Message:
    """One message of several; a string, unless there is more in them than plain text."""
    spoken = [message.parts for message in messages if message.content]
    if all(
        isinstance(part, Text) and part == Text(part.text) for parts in spoken for part in parts
    ):
        texts = (message.text for message in messages)
        return Message(role, "\n\n".join(text for text in texts if text))
    content: list[Part] = []
    for parts in spoken:
        content += [Text("\n\n"), *parts] if content else parts
    return Message(role, tuple(content))


def _is_system(item: Item) -> TypeGuard[Message]:
    return isinstance(item, Message) and item.role in ("system", "developer")


def _is_developer(item: Item) -> TypeGuard[Message]:
    return isinstance(item, Message) and item.role == "developer"
