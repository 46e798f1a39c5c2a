"""What a type checker must see of the synchronous face: read by mypy, never run."""

from typing import assert_type

import dragoman
from dragoman.client import SyncClient, SyncStream
from dragoman.core.event import Event
from dragoman.core.interfaces import Model


def a_client_without_async() -> None:
    with dragoman.connect_sync("script") as client:
        assert_type(client, SyncClient)
        assert_type(client.respond("Hi", temperature=0.5), dragoman.Answer)
        assert_type(client.models(), tuple[Model, ...])
        with client.stream("Hi") as stream:
            assert_type(stream, SyncStream)
            for event in stream:
                assert_type(event, Event)
            assert_type("".join(stream.text), str)
            assert_type(stream.answer, dragoman.Answer)
    assert_type(dragoman.connect("script").sync, SyncClient)
