"""Faults: the error, whose side it is on, and its field.

A `Fault` is a value: it is part of a `Failed` event and is encoded as the error of each
protocol. `FaultError` is the same fault as an exception. HTTP statuses belong to wires;
a fault only has the status of an upstream.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from .item import Extra

Blame = Literal["client", "upstream", "server"]

Code = Literal[
    "invalid_request",  # the client's request is malformed or invalid
    "unsupported",  # it is valid, but not supported here
    "authentication",  # no key, or a wrong one
    "permission",  # the key lacks the permission
    "not_found",  # no such path or object
    "model_not_found",
    "previous_response_not_found",
    "method_not_allowed",
    "upgrade_required",  # the path answers GET with a WebSocket only
    "connection_limit",  # a connection has reached its time limit
    "active_response",  # the conversation of a session is being answered already
    "not_active",  # there is no such answer in a session
    "item_exists",  # the conversation of a session has an item with this id
    "item_not_found",  # the item cannot be retrieved
    "empty_buffer",  # the input buffer of a session holds no sound
    "session_expired",
    "unsupported_media_type",
    "too_large",  # the body is over the limit
    "rate_limited",
    "overloaded",  # too much at once; try again later
    "upstream_error",  # the model's server failed, or its answer is invalid
    "upstream_refused",  # the model's server refused the request, with a reason
    "upstream_authentication",  # our own key to the upstream was refused
    "upstream_unreachable",
    "upstream_timeout",
    "upstream_cut",  # the stream ended without a terminal event
    "stalled",  # the client stopped reading
    "cancelled",
    "shutting_down",
    "store_unavailable",  # the store cannot be used
    "internal",
]


LONGEST = 100
"""Characters of foreign text that are quoted."""
LONGEST_NAME = 4096
"""Characters of a model's name, or an item's id, which each piece of a streamed answer repeats."""
MAX_MESSAGE, MAX_FIELD = 4096, 256
"""Characters of a fault's message and of its other fields, which may quote long text."""


class Fault(Struct, frozen=True, omit_defaults=True):
    """An error: what happened, on whose side, and in which field.

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
        if self.code not in get_args(Code):  # which no wire can spell
            known = ", ".join(get_args(Code))
            raise ValueError(f"a fault has no code {self.code!r}; there is {known}")
        if len(self.message) > MAX_MESSAGE:
            force_setattr(self, "message", cut(self.message, MAX_MESSAGE))
        for name in ("param", "retry_after", "upstream_code", "upstream_type"):
            value = getattr(self, name)
            if value is not None and len(value) > MAX_FIELD:
                force_setattr(self, name, cut(value, MAX_FIELD))


def cut(text: str, most: int) -> str:
    """The text, cut to so many characters.

    >>> cut("abc", 3), cut("abcd", 3)
    ('abc', 'ab…')
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def quoted(text: str) -> str:
    """Some text of a client's or an upstream's in quotes, which may be of any length: where it is
    long, its beginning."""
    return repr(cut(text, LONGEST))


_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str, line: bool = False) -> str:
    """A text of others for a terminal: what would command it, or turn letters round, is replaced by
    what it looks like; on one line, what would end that, too.

    >>> visible("a\\x1b[2Jb\\r\\n"), visible("a\\nb", True)
    ('a␛[2Jb\\n', 'a␊b')
    """
    text = _CONTROL.sub(_picture, text)
    return re.sub("[\t\n]", _picture, text) if line else text


def _picture(found: re.Match[str]) -> str:
    if found[0] == "\r":  # of a line's end, as a rule
        return ""
    code = ord(found[0])  # Unicode has pictures of the first 32 control characters
    return chr(0x2400 + code) if code < 32 else "\ufffd"


def hint(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the similar known ones.

    >>> hint("prot", ["port", "host"]), hint("x", ["port"])
    ('; did you mean port?', '')
    """
    from difflib import get_close_matches  # slow to import, and rarely needed

    near = get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


TOO_LONG = "context_length_exceeded"
"""The code for a prompt that exceeds the model's context, at which clients shorten it."""

_EXCEEDS = re.compile(
    r"^(?!.{0,100}max(_completion|_output)?_tokens.{0,40} too large)"
    r"(?!.*(please wait|rate.?limit|(per|a) (minute|day)))(?=.*(\d|exceed|too (long|many)))"
    r".*(context.?(length|window|size)|maximum context|(prompt|input) is too long"
    r"|too many (input )?tokens|exceeds? the (available context|maximum number of tokens))",
    re.IGNORECASE | re.DOTALL,
)


def exceeds_context(message: str) -> bool:
    """Whether a server that has no code for it says that a prompt exceeds the context.

    >>> exceeds_context("This model's maximum context length is 8 tokens. You requested 9.")
    True
    >>> exceeds_context("'max_tokens' is too large: 9. The model's context length is 8 tokens.")
    False
    """
    return _EXCEEDS.search(message) is not None


class FaultError(Exception):
    """A fault as an exception.

    >>> raise FaultError(bad_request("is not a number", "temperature"))
    Traceback (most recent call last):
        ...
    dragoman.core.error.FaultError: temperature: is not a number
    """

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is copied by calling its class with `args`: the message is no fault.
        return Exception.__new__, (type(self), *self.args), self.__dict__


def bad_request(problem: str, param: str | None = None) -> Fault:
    """The fault for an invalid field; the message starts with the field's name."""
    message = f"{cut(param, MAX_FIELD)}: {problem}" if param else problem
    return Fault("invalid_request", message, "client", param)


def with_param(fault: Fault, param: str) -> Fault:
    """The same fault, with another name of its field.

    >>> with_param(bad_request("is wrong", "items[0]"), "input[0]").message
    'input[0]: is wrong'
    """
    message = fault.message
    if fault.param is not None and message.startswith(f"{fault.param}:"):
        message = cut(param, MAX_FIELD) + message.removeprefix(fault.param)
    return replace(fault, param=param, message=message)


def unsupported(problem: str, param: str) -> Fault:
    """The fault for a valid field that this route does not support."""
    return Fault("unsupported", f"{cut(param, MAX_FIELD)}: {problem}", "client", param)


CUT = Fault(
    "upstream_cut",
    "The model's server ended the stream before the answer was finished. "
    "What arrived before is all there is; ask again.",
    "upstream",
)
"""The fault for an answer without an end."""

MAX_ITEMS = 4_096
"""The most items of an answer, and parts of an item."""

TOO_MANY = Fault(
    "upstream_error",
    f"The model's server sent more than {MAX_ITEMS} items, or parts of items, in one answer.",
    "upstream",
)
