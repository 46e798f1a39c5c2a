"""What a prompt leaves open: the header and the first words of a message the model goes on with.

Both sides need it, the one that writes the prompt and the one that reads the answer. Which
messages are unfinished is decided in `policy`.
"""

from __future__ import annotations

from msgspec import Struct

from dragoman.core.item import Message
from dragoman.core.request import NamedTool, Request

from .policy import COMMENTARY_PHASE, partial
from .tools import FUNCTIONS


class Opening(Struct, frozen=True):
    """A header, and the text already said under it."""

    channel: str
    recipient: str | None = None
    content_type: str | None = None
    text: str = ""


def opening(request: Request) -> Opening | None:
    """The message the prompt of a request ends in the midst of, if it does.

    A tool that must be called is called at once, and only its arguments are left to the model.

    >>> opening(Request(model="m", tool_choice=NamedTool("roll"))).recipient
    'functions.roll'
    """
    unfinished = partial(request)
    if unfinished is not None:
        match unfinished:
            case Message(phase=phase, text=text):
                channel = "commentary" if phase == COMMENTARY_PHASE else "final"
                return Opening(channel, text=text)
            case _:
                return Opening("analysis", text=unfinished.text)
    match request.tool_choice:
        case NamedTool(name=name, kind=kind, namespace=namespace):
            content_type = "json" if kind == "function" else None
            return Opening("commentary", recipient(name, namespace), content_type)
        case _:
            return None


def recipient(name: str, namespace: str | None) -> str:
    """How a tool is addressed."""
    return f"{namespace or FUNCTIONS}.{name}"
