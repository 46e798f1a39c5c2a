"""A custom engine, called in process or served.

python examples/own_engine.py           # one request, in this process
python examples/own_engine.py serve     # serves it at http://127.0.0.1:8000/v1
"""

import sys
from collections.abc import AsyncGenerator

import httpx2
import openai

import dragoman
from dragoman.core.event import Event
from dragoman.core.interfaces import ANYONE, Caller, Capabilities, Model
from dragoman.core.item import Message
from dragoman.core.turn import Turn
from dragoman.engines.base import enforce_contract, new_id, now


class Shout:
    """Repeats the last message in capitals."""

    def stream(
        self, request: dragoman.Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        # An exception becomes a failed answer.
        return enforce_contract(self._answer(request), request.model)

    async def _answer(self, request: dragoman.Request) -> AsyncGenerator[Event, None]:
        texts = [item.text for item in request.items if isinstance(item, Message)]
        turn = Turn(new_id(), now(), request.model)
        for word in texts[-1].upper().split():
            turn.text(f"{word} ")
            for event in turn.take():
                yield event
        turn.end(complete=True)
        for event in turn.take():
            yield event

    async def models(self, caller: Caller = ANYONE) -> tuple[Model, ...]:
        return (Model("shout"),)

    async def capabilities(self, model: str) -> Capabilities:
        return Capabilities(images=False, tools=False)

    async def close(self) -> None:
        pass


if sys.argv[1:] == ["serve"]:
    dragoman.serve(Shout())
else:
    http = httpx2.Client(transport=dragoman.transport(Shout()))
    with openai.OpenAI(base_url="http://dragoman/v1", api_key="none", http_client=http) as client:
        print([model.id for model in client.models.list()])
        for event in client.responses.create(model="shout", input="good morning", stream=True):
            if event.type == "response.output_text.delta":
                print(event.delta, end="")
        print()

# Run, it prints:
#     ['shout']
#     GOOD MORNING
