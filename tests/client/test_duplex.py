"""Full duplex with servers that misbehave: it ends, and says why."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.item import Audio, Message
from dragoman.core.session import NO_SOUND
from dragoman.core.session_values import Command, ConversationItemAdded, Respond, ResponseDone
from tests.client.test_conversation import (
    SPEAKS,
    TOLD,
    begun,
    collect,
    commits,
    delta,
    responds,
    scripted,
    sounds,
)


@pytest.mark.parametrize("config", [None, TOLD], ids=["answer", "transcript"])
async def test_what_never_comes_is_not_awaited_for_ever(config) -> None:
    def only_begins(command: Command) -> Any:
        return [begun(command, "r1")] if isinstance(command, Respond) else None

    rule = only_begins if config is None else SPEAKS  # TOLD: nothing is transcribed
    talk, session = scripted(commits(), rule, patience=0.1)
    session.config = config or session.config
    async with talk, asyncio.timeout(10):
        with pytest.raises(FaultError, match="nothing for"):
            await collect(talk.full_duplex(sounds(1)))


async def test_silence_while_the_source_goes_on_is_no_error() -> None:
    async def source():
        yield bytes(4_800)
        await asyncio.sleep(0.3)

    talk, _ = scripted(commits(), SPEAKS, patience=0.1)
    async with talk, asyncio.timeout(10):
        assert len(await collect(talk.full_duplex(source()))) == 2


async def test_sound_that_is_none_is_a_fault() -> None:
    talk, _ = scripted(commits(), responds(lambda id: delta(id, "a1", "audio", "A")))
    async with talk, asyncio.timeout(10):
        with pytest.raises(FaultError) as raised:
            await collect(talk.full_duplex(sounds(1), lambda _: None))
        assert raised.value.fault == NO_SOUND
        with pytest.raises(FaultError) as raised:
            await talk.say("Hi", play=lambda _: None)
        assert raised.value.fault == NO_SOUND


async def test_a_message_that_is_added_twice_is_one_speech() -> None:
    def twice(command: Command) -> Any:
        heard = Message("user", (Audio(format="pcm16"),), id="u1")
        added = [ConversationItemAdded(heard, None)] * 2
        return commits()(command) and [*added, *commits()(command)]

    talk, _ = scripted(twice, SPEAKS)
    async with talk, asyncio.timeout(10):
        speeches = await collect(talk.full_duplex(sounds(1)))
        assert [await speech for speech in speeches] == ["", "Good day"]


async def test_an_answer_that_fails_at_once_is_a_speech_with_its_fault() -> None:
    fault = Fault("authentication", "The model's server refused the key.", "upstream")

    def fails(command: Command) -> Any:
        if not isinstance(command, Respond):
            return None
        created = begun(command, "r1")
        failed = replace(created.response, status="failed", fault=fault)
        return [created, ResponseDone(failed)]

    talk, _ = scripted(commits(), fails)
    async with talk, asyncio.timeout(10):
        _, answer = await collect(talk.full_duplex(sounds(1)))
        assert (answer.role, await answer, answer.fault) == ("assistant", "", fault)
