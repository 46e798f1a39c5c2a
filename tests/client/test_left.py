"""Answers that are left before they began: they are cancelled, and the next turn is answered."""

import asyncio
from typing import Any

import pytest

from dragoman.client.conversation import Conversation
from dragoman.core.error import Fault
from dragoman.core.session_values import Cancel, Command, Refused, Respond
from tests.client.test_conversation import answer, begun, delta, said, scripted

BUSY = Fault("upstream_error", "The conversation is being answered already.", "upstream")


class Far:
    """The rule of a server that is far away: what it sends is held until a test lets it go."""

    def __init__(self) -> None:
        self.running = ""
        self.count = 0
        self.held: list[Any] | None = None
        self.refuses = False

    def __call__(self, command: Command) -> list[Any] | None:
        events: list[Any] = []
        match command:
            case Respond() if self.refuses or self.running:
                events = [Refused(BUSY, command.event_id)]
            case Respond():
                self.count += 1
                self.running = f"r{self.count}"
                events = [begun(command, self.running)]
                if self.held is None:
                    events.append(answer(self.running, said("Good day")))
                    self.running = ""
            case Cancel(response_id=id) if id == self.running:
                self.running = ""
                events = [answer(id, status="cancelled")]
            case _:
                return None
        if self.held is not None:
            self.held += events
            events = []
        return events

    def let_go(self) -> list[Any]:
        held, self.held = self.held, None
        return held or []


async def left(talk: Conversation, far: Far) -> None:
    far.held = []
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(talk.say("Hi"), 0.05)


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_turn_left_before_it_began_is_cancelled_and_the_next_one_answered(
    refuses: bool,
) -> None:
    far = Far()
    far.refuses = refuses
    talk, session = scripted(far)
    async with talk:
        await left(talk, far)
        following = asyncio.ensure_future(talk.say("Hello?"))
        await asyncio.sleep(0.01)
        assert len(session.of(Respond)) == 1  # the next waits for the end of the first
        far.refuses = False
        session.tell(*far.let_go())
        assert (await asyncio.wait_for(following, 5)).text == "Good day"
    assert [each.response_id for each in session.of(Cancel)] == ([] if refuses else ["r1"])


async def test_a_turn_left_as_its_beginning_arrives_is_cancelled() -> None:
    far = Far()
    talk, session = scripted(far)
    async with talk:
        far.held = []
        turn = asyncio.ensure_future(talk.say("Hi"))
        while not session.of(Respond):
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        talk.receive(far.let_go())
        turn.cancel()
        await asyncio.wait([turn])
        assert (await talk.say("Hello?")).text == "Good day"
    assert [each.response_id for each in session.of(Cancel)] == ["r1"]


async def test_another_answer_is_not_cancelled_in_place_of_one_left() -> None:
    far = Far()
    talk, session = scripted(far)
    async with talk:
        await talk.say("Hi")  # by which the labels are known
        await left(talk, far)
        talk.receive([begun(Respond(), "detected"), delta("detected", "i", "text", "x")])
        assert session.of(Cancel) == []
        talk.receive([answer("detected")])
        session.tell(*far.let_go())
        assert (await talk.say("Hello?")).text == "Good day"
    assert [each.response_id for each in session.of(Cancel)] == ["r2"]


async def test_a_cancellation_that_comes_too_late_does_not_fail_the_next_turn() -> None:
    def late(command: Command) -> list[Any] | None:
        if not isinstance(command, Cancel):
            return None
        refusal = Refused(BUSY, command.event_id)
        return [answer(command.response_id or "", said("Good")), refusal]

    far = Far()
    talk, session = scripted(late, far)
    async with talk:
        far.held = []
        stream = talk.events("Hi")
        begin = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.01)
        session.tell(*far.let_go(), delta("r1", "i", "text", "x"))
        await begin
        far.running = ""
        await stream.aclose()
        assert (await talk.say("Hello?")).text == "Good day"
    assert talk.errors == []


async def test_a_session_lost_meanwhile_ends_the_wait() -> None:
    far = Far()
    talk, _ = scripted(far)
    async with talk:
        await left(talk, far)
        following = asyncio.ensure_future(talk.say("Hello?"))
        await asyncio.sleep(0.01)
        talk.ended(BUSY)
        with pytest.raises(Exception, match="answered already"):
            await asyncio.wait_for(following, 5)
