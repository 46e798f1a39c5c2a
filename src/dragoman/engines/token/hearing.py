"""Hears one sequence of a model into one answer: tokens in, events out.

The format's parser says what the tokens mean; here they are counted, stopped where a client or a
format said so in words, and summed up as usage. It knows neither model nor schedule.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence

from dragoman.core.error import Fault
from dragoman.core.event import Event
from dragoman.core.response import Usage
from dragoman.core.turn import Turn
from dragoman.engines.mint import new_id, now

from .plan import Plan
from .run import Written
from .stop import StoppingTurn, StopScanner

_utf8 = getincrementaldecoder("utf-8")


class Hearing:
    """One alternative of an answer. The first counts the tokens of the prompt; the others read the
    same ones."""

    def __init__(self, plan: Plan, number: int, piece: Callable[[int], bytes]) -> None:
        stops, named = plan.request.sampling.stop, (new_id(), now(), plan.request.model)
        self._turn: Turn
        if stops:
            self._turn = StoppingTurn(stops, *named, plan.losses)
        else:
            self._turn = Turn(*named, losses=plan.losses, think=None)
        self._parser = plan.parser(self._turn)
        self._first = number == 0
        self._prompt = len(plan.jobs[0].prompt) if self._first else 0
        self._count = 0
        self._echo = plan.echo
        self._scored = plan.jobs[0].scored
        self._markers = _Markers(plan.markers, piece) if plan.markers else None
        self._over = False

    def take(self, written: Written) -> list[Event]:
        """The events of what was written."""
        self._turn.begin()
        if self._echo is not None and (written.prompt is not None or not self._scored):
            # Past the stop strings: they are looked for in what the model adds.
            Turn.text(self._turn, self._echo, 0, tuple(written.prompt or ()))
            self._echo = None
        if self._markers is not None or isinstance(self._turn, StoppingTurn):
            self._step(written)
        elif written.ids:
            self._parser.feed(written.ids, written.tokens)
            self._count += len(written.ids)
        if not self._over and written.end is not None:
            self._end(written.end, written.cached)
        return self._turn.take()

    def _step(self, written: Written) -> None:
        """One token after the other, so as to count none beyond the one that ends the answer."""
        for place, id in enumerate(written.ids):
            self._parser.feed((id,), written.tokens[place : place + 1])
            self._count += 1
            if self._stopped(id):
                written.enough = True
                self._end("stop", written.cached)
                return

    def _stopped(self, id: int) -> bool:
        if isinstance(self._turn, StoppingTurn) and self._turn.stopped:
            return True
        return self._markers is not None and self._markers.found(id)

    def _end(self, end: str | Fault, cached: int | None) -> None:
        self._over = True
        self._turn.usage = Usage(
            input_tokens=self._prompt,
            output_tokens=self._count,
            total_tokens=self._prompt + self._count,
            cached_tokens=cached if self._first or cached is None else 0,
            reasoning_tokens=self._parser.reasoning_tokens,
        )
        if isinstance(end, Fault):
            self._turn.fail(end)
        else:
            self._parser.close(end)


class _Markers:
    """Looks for the ends of a format in a vocabulary that has no tokens for them."""

    def __init__(self, texts: Sequence[str], piece: Callable[[int], bytes]) -> None:
        self._scanner = StopScanner(texts)
        self._decoder = _utf8("replace")
        self._piece = piece

    def found(self, id: int) -> bool:
        """Whether one is complete with this token."""
        self._scanner.feed(self._decoder.decode(self._piece(id)))
        return self._scanner.found
