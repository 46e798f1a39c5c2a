"""Short ways to write requests down: as the wire has them, and as items."""

import json
from typing import Any

import pytest

from dragoman.core.error import Fault, FaultError
from dragoman.core.item import Item, Message
from dragoman.core.loss import Loss
from dragoman.core.request import Request
from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import Dialect

USER = {"role": "user", "content": "hello"}
HELLO = Message("user", "hello")
PLAIN = Dialect(ask_usage=False)
"""Adds nothing of its own to a request."""


def hear(*messages: Any, **fields: Any) -> Request:
    """The request in a body with these messages."""
    body = {"model": "m", "messages": list(messages) or [USER], **fields}
    return CHAT.decode_request(json.dumps(body).encode())


def items(*messages: Any) -> tuple[Item, ...]:
    """The items in these messages."""
    return hear(*messages).items


def refused(*messages: Any, **fields: Any) -> Fault:
    """The fault with which a body with these messages is refused; it names the client."""
    with pytest.raises(FaultError) as caught:
        hear(*messages, **fields)
    fault = caught.value.fault
    assert (fault.code, fault.blame) == ("invalid_request", "client")
    return fault


def tell(request: Request, dialect: Dialect = PLAIN) -> dict[str, Any]:
    """The body that asks for this."""
    body: dict[str, Any] = json.loads(CHAT.encode_request(request, dialect)[0])
    return body


def losses(request: Request, dialect: Dialect = PLAIN) -> dict[str, str]:
    """What is lost in asking, by field."""
    return {each.field: each.action for each in lost(request, dialect)}


def lost(request: Request, dialect: Dialect = PLAIN) -> tuple[Loss, ...]:
    return CHAT.encode_request(request, dialect)[1]


def messages(*said: Item, dialect: Dialect = PLAIN, **fields: Any) -> list[dict[str, Any]]:
    """The messages that say these items."""
    told: list[dict[str, Any]] = tell(Request(model="m", items=said, **fields), dialect)["messages"]
    return told
