"""Models that stream ids: broken, abandoned, never waiting, and what else they may do."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman.core.request import Sampling
from dragoman.engines.token import from_stream
from tests.engines.stage import answered
from tests.engines.token.asking import asked, serving


def stream_of(text: str, size: int = 1) -> Any:
    data = text.encode()

    async def ids(prompt: list[int], sampling: Sampling) -> AsyncIterator[int | list[int]]:
        for at in range(0, len(data), size):
            await asyncio.sleep(0)
            yield data[at] if size == 1 else list(data[at : at + size])

    return from_stream(ids)


async def test_streams_that_break_fail_the_answer_and_keep_what_came() -> None:
    async def broken(ids: list[int], sampling: Sampling) -> AsyncIterator[int]:
        yield 65
        raise ValueError("secret")

    async with serving(from_stream(broken)) as engine:
        response = await answered(engine, asked())
        assert (response.text, response.status) == ("A", "failed")
        assert response.error is not None
        assert "ValueError" in response.error.message
        assert "secret" not in response.error.message


async def test_a_stream_is_closed_when_it_is_not_wanted_any_more() -> None:
    closed: list[str] = []

    async def endless(ids: list[int], sampling: Sampling) -> AsyncIterator[int]:
        try:
            while True:
                yield 65
                await asyncio.sleep(0)
        finally:
            closed.append("closed")

    async with serving(from_stream(endless)) as engine:
        for n in (1, 2):
            assert (await answered(engine, asked(max_tokens=3, n=n))).text == "AAA"
            assert (await answered(engine, asked(stop=("AAAA",), n=n))).text == ""
            reading = asyncio.ensure_future(answered(engine, asked(n=n)))
            await asyncio.sleep(0.01)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
    assert len(closed) == 9


@pytest.mark.parametrize("n", [1, 2])
async def test_a_stream_that_never_waits_lets_others_go_on(n: int) -> None:
    async def eager(ids: list[int], sampling: Sampling) -> AsyncIterator[int]:
        while True:
            yield 65

    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(count_turns())
    async with serving(from_stream(eager)) as engine:
        await answered(engine, asked(n=n, max_tokens=100))
    other.cancel()
    assert turns > 90


async def test_a_plain_iterator_will_do_for_a_stream() -> None:
    class Two:
        def __init__(self) -> None:
            self.left = [66, 65]

        def __aiter__(self) -> "Two":
            return self

        async def __anext__(self) -> int:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop()

    async with serving(from_stream(lambda ids, sampling: Two())) as engine:
        assert (await answered(engine, asked())).text == "AB"


async def test_a_stream_that_objects_to_being_given_up_is_given_up() -> None:
    async def stubborn(ids: list[int], sampling: Sampling) -> AsyncIterator[int]:
        yield 65
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise RuntimeError("no") from error

    async with serving(from_stream(stubborn)) as engine:
        reading = asyncio.ensure_future(answered(engine, asked()))
        await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
