"""Streams: what can be read while an answer comes, and that closing gives it up at once."""

import asyncio
import time
from contextlib import aclosing

import pytest

from dragoman.client import AnswerError, Client, Stream
from dragoman.core.event import Delta, Failed, Finished, Started
from dragoman.core.fold import unfold
from dragoman.core.interfaces import ANYONE
from dragoman.core.item import Message, Text
from dragoman.core.turn import CUT
from dragoman.engines.script import Cue, Script
from tests.answers import answer
from tests.engines.stage import ASKED, others

TWO = answer(
    Message("assistant", (Text("first answer"),), id="a", status="completed"),
    Message("assistant", (Text("second"),), id="b", status="completed"),
    choices=(0, 1),
    reasons=("stop", "stop"),
)


def stalled(*before: Cue) -> Script:
    """A script that says so much and then waits for ever."""
    start = list(unfold(TWO))[:3]
    return Script([*start, *before, asyncio.Event().wait])


async def test_r1_10_a_stream_opens_with_one_beginning_and_closes_with_one_end() -> None:
    async with Client(Script("Hello there")).stream("Hi") as stream:
        events = [event async for event in stream]
    assert [e for e in events if isinstance(e, Started | Finished)] == [events[0], events[-1]]
    assert stream.response.text == "Hello there"


async def test_the_text_of_the_first_choice_comes_in_pieces() -> None:
    async with Client(Script(TWO)).stream(ASKED) as stream:
        assert [piece async for piece in stream.text] == ["first", " answer"]
        assert (stream.answer.text, stream.answer.end) == ("first answer", "stop")


async def test_the_answer_so_far_can_be_read_at_any_time() -> None:
    async with Client(Script(TWO)).stream(ASKED) as stream:
        assert stream.answer.usage.latency == 0.0
        async for event in stream:
            if isinstance(event, Delta):
                break
        assert (stream.answer.text, stream.answer.end) == ("first", "unfinished")
        assert (await stream.finish()).text == "first answer"
        assert (await stream.finish()).text == "first answer"


async def test_latency_and_first_token_are_measured() -> None:
    start, *rest = list(unfold(TWO))
    began = time.perf_counter()
    async with Client(Script([start, 0.02, *rest, 0.0])).stream(ASKED) as stream:
        answer = await stream.finish()
    usage, whole = stream.answer.usage, time.perf_counter() - began
    assert usage.time_to_first_token is not None
    assert 0.02 <= usage.time_to_first_token <= usage.latency <= whole
    assert answer.usage == usage
    assert usage.round_trips == 1
    assert Client(Script("x")).stream("Hi").answer.usage.time_to_first_token is None


async def test_r1_w11_cut_raises_in_the_text_iterator() -> None:
    cut = [*list(unfold(TWO))[:4]]
    async with Client(Script(cut)).stream(ASKED) as stream:
        with pytest.raises(AnswerError) as raised:
            assert [piece async for piece in stream.text] == ["never compared"]
    assert raised.value.fault == CUT
    assert (raised.value.answer.text, raised.value.answer.end) == ("first answer", "truncated")


async def test_event_iterator_yields_a_failure_and_does_not_raise() -> None:
    events = [event async for event in Client(Script([])).stream(ASKED)]
    assert events == [Failed(CUT)]


async def test_close_ends_the_iteration_of_the_reader() -> None:
    stream = Client(stalled()).stream(ASKED)
    seen = []

    async def read() -> str:
        async for event in stream:
            seen.append(event)
        return "the loop ended"

    reader = asyncio.ensure_future(read())
    while len(seen) < 3:
        await asyncio.sleep(0)
    began = time.perf_counter()
    await stream.close()
    assert await reader == "the loop ended"
    assert time.perf_counter() - began < 10.0
    assert not others()
    assert (stream.answer.status, stream.answer.end) == ("cancelled", "cancelled")
    await stream.close()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


@pytest.mark.parametrize("closed", [True, False])
async def test_cancelling_the_reader_cancels_it_alone_and_closing_does_not_hide_it(closed) -> None:
    stream = Client(stalled()).stream(ASKED)
    reader = asyncio.ensure_future(stream.finish())
    for _ in range(20):
        await asyncio.sleep(0)
    reader.cancel()
    if closed:
        await stream.close()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert not others()


async def test_close_between_events_cancels_the_answer() -> None:
    async with Client(stalled()).stream(ASKED) as stream:
        await anext(stream)
    assert stream.answer.end == "cancelled"
    finished = Client(Script("Hi")).stream(ASKED)
    await finished.finish()
    await finished.close()
    assert finished.answer.end == "stop"


async def test_a_stream_is_an_asynchronous_generator() -> None:
    async with aclosing(Client(Script("Hi")).stream(ASKED)) as stream:
        assert isinstance(stream, Stream)
        assert isinstance(await stream.asend(None), Started)
        with pytest.raises(KeyError):
            await stream.athrow(KeyError("x"))
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


class Slow(Script):
    """An engine that takes a moment to stop."""

    def __init__(self) -> None:
        super().__init__("")
        self.stopping = asyncio.Event()

    async def stream(self, request, caller=ANYONE):
        try:
            for event in list(unfold(TWO))[:3]:
                yield event
            await asyncio.Event().wait()
        finally:
            self.stopping.set()
            for _ in range(50):
                await asyncio.sleep(0)


@pytest.mark.parametrize("reading", [True, False])
async def test_several_tasks_close_a_stream_and_all_wait_for_its_end(reading) -> None:
    engine = Slow()
    stream = Client(engine).stream(ASKED)
    await anext(stream)
    reader = asyncio.ensure_future(stream.finish()) if reading else None
    for _ in range(20):
        await asyncio.sleep(0)
    closing = [asyncio.ensure_future(stream.close()) for _ in range(3)]
    await engine.stopping.wait()
    if reader is not None:
        closing.pop(0).cancel()  # which cancels neither the others nor the reader
    await asyncio.gather(*closing)
    if reader is not None:
        assert (await reader).end == "cancelled"
    assert not others()
