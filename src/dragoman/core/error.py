"""Faults: what went wrong, on whose side, and which field it is about.

A `Fault` is a value: it travels in a `Failed` event and is encoded in the error shape of each
protocol. `FaultError` is the same fault as an exception. HTTP statuses are the business of wires;
a fault only has the status an upstream answered with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from .item import Extra

Blame = Literal["client", "upstream", "server"]

Code = Literal[
    "invalid_request",  # the client's request cannot be understood or does not make sense
    "unsupported",  # it makes sense, but what is asked cannot be carried here
    "authentication",  # no key, or a wrong one
    "permission",  # the key may not do this
    "not_found",  # no such path or object
    "model_not_found",
    "previous_response_not_found",
    "method_not_allowed",
    "upgrade_required",  # the path answers GET with a WebSocket only
    "connection_limit",  # a connection has lasted as long as one may
    "active_response",  # the conversation of a session is being answered already
    "not_active",  # there is no such answer in a session
    "item_exists",  # the conversation of a session has an item with this id
    "item_not_found",  # it has none that could be retrieved
    "empty_buffer",  # the input buffer of a session holds no sound
    "session_expired",
    "unsupported_media_type",
    "too_large",  # the body is over the limit
    "rate_limited",
    "overloaded",  # too much at once; try again later
    "upstream_error",  # the model's server failed, or its answer makes no sense
    "upstream_refused",  # the model's server refused the request, with a reason
    "upstream_authentication",  # our own key to the upstream was refused
    "upstream_unreachable",
    "upstream_timeout",
    "upstream_cut",  # the stream ended without an end
    "stalled",  # the client stopped reading
    "cancelled",
    "shutting_down",
    "store_unavailable",  # what is stored cannot be reached, or nothing be stored
    "internal",
]


LONGEST = 100
"""Characters that are quoted of what somebody sent."""
LONGEST_NAME = 4096
"""Characters of a model's name, or an item's id: each piece of a streamed answer repeats them."""
MAX_MESSAGE, MAX_FIELD = 4096, 256
"""Characters of a fault's message and of its other fields: what they quote may be of any length."""


class Fault(Struct, frozen=True, omit_defaults=True):
    """What happened, on whose side, and which field it is about.

    `code` is one of `Code` for our own faults and stays stable; `upstream_code` and
    `upstream_type` are the upstream's own. `status` is the HTTP status an upstream
    answered with. `retry_after` is that header's value (seconds, or an HTTP date).
    """

    code: Code
    message: str
    blame: Blame = "server"
    param: str | None = None
    status: int | None = None
    retry_after: str | None = None
    upstream_code: str | None = None
    upstream_type: str | None = None
    extra: Extra | None = None

    def __post_init__(self) -> None:
        if len(self.message) > MAX_MESSAGE:
            force_setattr(self, "message", cut(self.message, MAX_MESSAGE))
        for name in ("param", "retry_after", "upstream_code", "upstream_type"):
            value = getattr(self, name)
            if value is not None and len(value) > MAX_FIELD:
                force_setattr(self, name, cut(value, MAX_FIELD))


def cut(text: str, most: int) -> str:
    """The text, or the beginning of one with more characters.

    >>> cut("abc", 3), cut("abcd", 3)
    ('abc', 'ab…')
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def quoted(text: str) -> str:
    """Some text of a client's or an upstream's in quotes, which may be of any length: where it is
    long, its beginning."""
    return repr(cut(text, LONGEST))


def hint(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about a word that is not known: which of these it may stand for.

    >>> hint("prot", ["port", "host"]), hint("x", ["port"])
    ('; did you mean port?', '')
    """
    from difflib import get_close_matches  # slow to import, and seldom needed

    near = get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


class FaultError(Exception):
    """A fault, raised.

    >>> raise FaultError(bad_request("is not a number", "temperature"))
    Traceback (most recent call last):
        ...
    dragoman.core.error.FaultError: temperature: is not a number
    """

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def bad_request(problem: str, param: str | None = None) -> Fault:
    """The fault for a field the client got wrong; the message starts with the field's name."""
    message = f"{cut(param, MAX_FIELD)}: {problem}" if param else problem
    return Fault("invalid_request", message, "client", param)


def with_param(fault: Fault, param: str) -> Fault:
    """The same fault, with the field it is about by another name.

    >>> with_param(bad_request("is wrong", "items[0]"), "input[0]").message
    'input[0]: is wrong'
    """
    message = fault.message
    if fault.param is not None and message.startswith(f"{fault.param}:"):
        message = cut(param, MAX_FIELD) + message.removeprefix(fault.param)
    return replace(fault, param=param, message=message)


def unsupported(problem: str, param: str) -> Fault:
    """The fault for a field that is legal and that this route cannot carry."""
    return Fault("unsupported", f"{cut(param, MAX_FIELD)}: {problem}", "client", param)


CUT = Fault(
    "upstream_cut",
    "The model's server ended the stream before the answer was finished. "
    "What arrived before is all there is; ask again.",
    "upstream",
)
"""Why an answer failed whose end never came."""

MAX_ITEMS = 4_096
"""How many items an answer may have, and how many parts they."""

TOO_MANY = Fault(
    "upstream_error",
    f"The model's server sent more than {MAX_ITEMS} items, or parts of items, in one answer.",
    "upstream",
)
