"""A model that plays answers one after the other, and notes what it was asked."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.core.error import Fault
from dragoman.core.item import FunctionCall, Item, Message
from dragoman.core.request import Request
from dragoman.core.response import Response, Usage
from dragoman.engines.script import Script, spoken

Answer = str | Item | Sequence[Item] | Fault | Response
USAGE = Usage(input_tokens=10, output_tokens=5, total_tokens=15)


def call(name: str, id: str = "c1", **arguments: Any) -> FunctionCall:
    """A call of a function."""
    return FunctionCall(id, name, json.dumps(arguments))


class Model(Script):
    """Plays these answers; the last one is played again and again. Each takes 15 tokens."""

    def __init__(self, *answers: Answer | Callable[[Request], Answer]) -> None:
        super().__init__(self.play)
        self.asked: list[Request] = []
        self._answers = list(answers)

    def play(self, request: Request) -> Any:
        self.asked.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if callable(answer):
            answer = answer(request)
        match answer:
            case str():
                return replace(spoken(answer), usage=USAGE)
            case Fault():
                failed = Response(id="1", created_at=0, model="m", status="failed", error=answer)
                return replace(failed, reasons=())
            case Response():
                return answer
        items = tuple(answer) if isinstance(answer, Sequence) else (answer,)
        called = any(not isinstance(item, Message) for item in items)
        return Response(
            id="1",
            created_at=0,
            model="m",
            status="completed",
            output=items,
            reasons=("tool_calls" if called else "stop",),
            usage=USAGE,
        )
