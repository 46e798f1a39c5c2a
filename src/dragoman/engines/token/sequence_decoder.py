"""Decodes the tokens of one sequence into events, ending it at stop strings."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence

from dragoman.core.error import Fault
from dragoman.core.event import Event
from dragoman.core.item import Token
from dragoman.core.loss import Loss
from dragoman.core.response import Usage
from dragoman.core.tool_calls import CallFragment
from dragoman.core.turn import Turn
from dragoman.engines.base import new_id, now

from .planner import Plan
from .source import Written


class StopScanner:
    """Finds the first of some strings to be complete, in text that comes in pieces of any size.

    >>> scanner = StopScanner(["END"])
    >>> scanner.feed("one E"), scanner.feed("N two E"), scanner.feed("ND three"), scanner.found
    ('one ', 'EN two ', '', True)
    """

    __slots__ = ("_held", "_stops", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.found = False

    def feed(self, text: str) -> str:
        """The text that is certain now; nothing any more once a string was found."""
        if self.found:
            return ""
        text = self._held + text
        places = [(at + len(s), at) for s in self._stops if (at := text.find(s)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)[1]]
        cut = min((_beginning(text, stop) for stop in self._stops), default=len(text))
        self._held = text[cut:]
        return text[:cut]

    def rest(self) -> str:
        """What was held back and is no stop string after all."""
        held, self._held = self._held, ""
        return held


def _beginning(text: str, stop: str) -> int:
    """Where the longest end of the text begins that is a beginning of the stop string."""
    at = text.find(stop[0], max(len(text) - len(stop) + 1, 0))
    while at >= 0 and not stop.startswith(text[at:]):
        at = text.find(stop[0], at + 1)
    return len(text) if at < 0 else at


class StoppingTurn(Turn):
    """A turn whose text ends at the first of the stop strings.

    `stopped` turns true when one is complete; after that nothing more is said.
    """

    def __init__(
        self,
        stops: Sequence[str],
        id: str,
        created_at: int,
        model: str,
        losses: tuple[Loss, ...] = (),
    ) -> None:
        super().__init__(id, created_at, model, losses=losses, think=None)
        self.stopped = False
        self._scanner = StopScanner(stops)
        self._waiting: list[Token] = []  # of text that is held back
        self._ahead = 0  # bytes of tokens given already whose text is still held back

    def text(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        """More of what the model says, as far as it is certain."""
        if self.stopped:
            return
        self._waiting += tokens
        said = self._scanner.feed(data)
        self.stopped = self._scanner.found
        if said or self.stopped:
            super().text(said, choice, self._spoken(said))

    def texts(self, pieces: list[str], choice: int = 0) -> None:
        """Several pieces of text in a row."""
        for piece in pieces:
            self.text(piece, choice)

    def refusal(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        """More of a refusal."""
        if self._goes_on(choice):
            super().refusal(data, choice, tokens)

    def reasoning(self, data: str, choice: int = 0, tokens: tuple[Token, ...] = ()) -> None:
        """More of the model's reasoning."""
        if self._goes_on(choice):
            super().reasoning(data, choice, tokens)

    def call(self, fragment: CallFragment, choice: int = 0) -> None:
        """A piece of a tool call."""
        if self._goes_on(choice):
            super().call(fragment, choice)

    def close_message(self, choice: int = 0) -> None:
        """What is being said is whole."""
        if self._goes_on(choice):
            super().close_message(choice)

    def finish(self, reason: str, choice: int = 0) -> None:
        """The end, at a stop string or at the model's own."""
        self._goes_on(choice)
        super().finish("stop" if self.stopped else reason, choice)

    def _goes_on(self, choice: int) -> bool:
        """Whether more may be said. A string cannot reach beyond the text it began in."""
        if self.stopped:
            return False
        if held := self._scanner.rest():
            super().text(held, choice, self._spoken(held))
        return True

    def _spoken(self, said: str) -> tuple[Token, ...]:
        """The tokens of what is said now: those that begin in it."""
        if not self._waiting:
            return ()
        room, count = len(said.encode("utf-8", "replace")) - self._ahead, 0
        for token in self._waiting:
            if room <= 0:
                break
            room -= len(token.bytes or b"")
            count += 1
        self._ahead = -room
        spoken, self._waiting = tuple(self._waiting[:count]), self._waiting[count:]
        return spoken


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
