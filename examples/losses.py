"""Reading losses: fields that the other protocol lacks are dropped (reported), emulated or refused.

The engine is a function with the interface of Chat Completions; the client uses Responses.
"""

from collections.abc import Iterator
from typing import Any

import httpx2
import openai

import dragoman
from dragoman.engines.function import Function


def parrot(messages: list[Any], **fields: Any) -> Iterator[str]:
    """Represents a server with Chat Completions only."""
    yield f"{len(messages)} messages; asked with: {', '.join(sorted(fields))}"


engine = Function(parrot, models=("parrot",))
http = httpx2.Client(transport=dragoman.transport(engine))
with openai.OpenAI(base_url="http://dragoman/v1", api_key="none", http_client=http) as client:
    raw = client.responses.with_raw_response.create(
        model="parrot", input="Hello!", max_tool_calls=3
    )
    print(raw.parse().output_text)
    print(raw.headers["x-dragoman-loss"])

    # A field that would change the answer is refused by its name.
    try:
        client.responses.create(model="parrot", input="Hello!", prompt={"id": "pmpt_1"})
    except openai.BadRequestError as error:
        print(error.param, error.code)

# The same list from Python.
with dragoman.connect_sync(engine) as caller:
    answer = caller.respond("Hello!", max_tool_calls=3)
    for loss in answer.response.losses:
        print(loss.field, "was", loss.action, "because", loss.why)

# Run, it prints:
#     1 messages; asked with: model, store
#     dropped: max_tool_calls
#     prompt unsupported_parameter
#     max_tool_calls was dropped because Chat runs no tools by itself
