"""Makes the roles of messages alternate, for models whose chat templates take nothing else.

Agents such as Codex send several messages of the user in a row, and a user who stopped an agent
speaks behind results of tools; the templates of Mistral and Gemma refuse both.
"""

from __future__ import annotations

import re
from itertools import groupby

from msgspec.structs import replace

from .item import CustomToolCall, FunctionCall, Item, Message, Reasoning, Role
from .lower import joined
from .request import Request

ALTERNATING, NO_SYSTEM = 1, 2
"""How strict a template is: user and assistant must alternate, and it may have no system role."""
BETWEEN: dict[Role, Message] = {
    "user": Message("assistant", "Understood."),
    "assistant": Message("user", "Continue."),
}
"""The message inserted before one of this role that is out of turn, as behind results of tools."""
WHY = {
    ALTERNATING: "messages are joined, as the model takes none but alternating roles",
    NO_SYSTEM: "system messages are sent as the user's, as the model takes none",
}
"""What is reported as a loss of the items."""
READ = 2_000
"""Characters of a refusal that are read."""

_CALLS = (FunctionCall, CustomToolCall)
_ALTERNATE = re.compile(r"roles must alternate|Unexpected role '\w{1,20}' after role", re.I)
_ONLY = re.compile(r"system role (is )?not supported|roles are supported, got system", re.I)


def strictness(refusal: str) -> int:
    """How strict a template is that refused a conversation in these words; 0: it was refused for
    something else.

    >>> strictness("System role not supported") == NO_SYSTEM
    True
    """
    text = refusal[:READ]
    return NO_SYSTEM if _ONLY.search(text) else ALTERNATING if _ALTERNATE.search(text) else 0


def alternating(request: Request, strict: int = ALTERNATING) -> Request:
    """The request with alternating roles, the user's first; the same where they do so already.
    Calls of tools and their results are no turns: they stay where they are.

    >>> twice = (Message("user", "<cwd>/tmp</cwd>"), Message("user", "hi"))
    >>> alternating(Request(model="m", items=twice)).items[0].text
    '<cwd>/tmp</cwd>\\n\\nhi'
    """
    items, lead = request.items, request.instructions
    if strict == NO_SYSTEM:
        first = (Message("user", lead),) if isinstance(lead, str) else lead or ()
        lead, items = None, tuple(map(_as_user, (*first, *items)))
    found: list[Item] = []
    spoke: Role | None = None  # who spoke last
    for role, group in groupby(items, _speaker):
        said = list(group)
        messages = [each for each in said if isinstance(each, Message)]
        if role is not None and messages:
            if role == (spoke or "assistant"):  # a user begins
                found.append(BETWEEN[role])
            spoke = role
            if len(messages) > 1:
                one = replace(messages[0], content=joined(messages, role).content)
                said = [*(each for each in said if isinstance(each, Reasoning)), one]
        elif spoke == "assistant" and any(isinstance(each, _CALLS) for each in said):
            spoke = "user"  # what the assistant said before its calls is one message with them
        found += said
    if (made := tuple(found)) == request.items and lead == request.instructions:
        return request
    return replace(request, instructions=lead, items=made)


def _speaker(item: Item) -> Role | None:
    match item:
        case Message(role="user" | "assistant" as role):
            return role
        case Reasoning():  # before what is said, or called
            return "assistant"
    return None


def _as_user(item: Item) -> Item:
    system = isinstance(item, Message) and item.role in ("system", "developer")
    return replace(item, role="user") if system else item
