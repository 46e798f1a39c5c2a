"""A gateway in code: two upstreams behind one address, an alias, and a wrapper that counts answers.

python examples/gateway.py                # in this process, in front of two scripts
python examples/gateway.py URL URL        # serves two real servers at http://127.0.0.1:8000/v1
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing

import dragoman
from dragoman.core.event import Event, Finished
from dragoman.core.interfaces import ANYONE, Caller
from dragoman.engines.base import Wrapper
from dragoman.engines.remote import Remote
from dragoman.engines.router import Route, Router
from dragoman.engines.script import Script


class Counted(Wrapper):
    """Wraps an engine and counts the finished answers of each model."""

    def __init__(self, engine: dragoman.Engine) -> None:
        super().__init__(engine)
        self.answers: Counter[str] = Counter()

    async def stream(
        self, request: dragoman.Request, caller: Caller = ANYONE
    ) -> AsyncGenerator[Event, None]:
        async with aclosing(super().stream(request, caller)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    self.answers[request.model] += 1
                yield event


def gateway(first: dragoman.Engine, second: dragoman.Engine) -> Counted:
    """Routes `small` and `fast` to the first engine, every other name to the second."""
    return Counted(
        Router(
            [
                Route(first, models=("small",), aliases={"fast": "small"}),
                Route(second),
            ]
        )
    )


async def main() -> None:
    engine = gateway(Script("I am the small one."), Script("I am the other."))
    async with dragoman.connect(engine) as client:
        for model in ("small", "fast", "anything"):
            answer = await client.respond("Who are you?", model=model)
            print(f"{model}: {answer.text}")
    print(dict(engine.answers))


if len(sys.argv) == 3:
    dragoman.serve(gateway(Remote(sys.argv[1]), Remote(sys.argv[2])))
else:
    asyncio.run(main())

# Run, it prints:
#     small: I am the small one.
#     fast: I am the small one.
#     anything: I am the other.
#     {'small': 1, 'fast': 1, 'anything': 1}
