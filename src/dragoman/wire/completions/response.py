"""Says a whole answer: the text of each choice, and why it ended.

What a reader of the stream would have put together, as one object.
"""

from __future__ import annotations

from dragoman.core.item import JSON, Item, Message, Text
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.wire import body
from dragoman.wire.dialect import Dialect

from . import finish, logprobs, usage
from .extras import CHOICES, join, kept

OBJECT = "text_completion"
"""What the protocol calls an answer, and a chunk of one."""
ID_PREFIX = "cmpl-"


def encode(response: Response, request: Request, dialect: Dialect) -> bytes:
    """The body of an answer."""
    extra = dict(kept(response.extra))
    ends = {each["index"]: each for each in extra.pop(CHOICES, ())}
    asked = bool(request.sampling.logprobs)
    choices = [
        join(_choice(number, reason, response.choice(number), asked), ends.get(number, {}))
        for number, reason in enumerate(response.reasons)
    ]
    said: dict[str, JSON] = {
        "id": ID_PREFIX + response.id,
        "object": OBJECT,
        "created": response.created_at,
        "model": response.model,
        "choices": choices,
    }
    if response.usage is not None:
        said["usage"] = usage.encode(response.usage)
    return body.dump(join(said, extra))


def _choice(number: int, reason: str, items: tuple[Item, ...], asked: bool) -> dict[str, JSON]:
    parts = [part for item in items if isinstance(item, Message) for part in item.parts]
    texts = [part for part in parts if isinstance(part, Text)]
    tokens = [token for part in texts for token in part.tokens]
    return {
        "text": "".join(part.text for part in texts),
        "index": number,
        "logprobs": logprobs.encode(tokens, 0) if tokens or asked else None,
        "finish_reason": finish.encode(reason),
    }
