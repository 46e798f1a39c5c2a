"""Answers of the table with values in them that belong to no protocol: nothing raises.

Whatever a server sends becomes legal events, and whatever those are can be said on every wire and
read by a strict client. The mutations are drawn from a seed, so that a failure can be repeated.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from dragoman.core.event import Event
from dragoman.core.fold import fold
from dragoman.core.lifecycle import check
from dragoman.core.request import Request
from dragoman.core.turn import Turn
from dragoman.wire.protocol import STANDARD
from dragoman.wire.registry import WIRES
from tests.chaos.cases import WIRES as PLAYED
from tests.chaos.cases import load
from tests.chaos.received import blocks
from tests.samples import samples

ASKED = Request(model="m", stream=True)
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 7, 0.5, 1e300, 10**30),
    *("", "x", "0", "\x00", "\ud800", "a\nb\r\n\r\n", "call_a", "null"),
    *([], {}, [None], [[]], [{}], {"a": 1}, {"type": "x"}, {"text": "t"}, {"message": "m"}),
)
"""What stands in place of a value."""


def answers() -> Iterator[tuple[str, list[Any]]]:
    """The wire and the JSON values of each row that has some; a whole body is one value."""
    for case in load():
        raw = b"".join(case.pieces)
        _, _, body = raw.partition(b"\r\n\r\n")
        if len(body) < 20_000:
            lines = body.decode("utf-8", "replace").splitlines()
            found = [value for line in lines if (value := _value(line)) is not None]
            if found:
                yield case.wire, found


def _value(line: str) -> Any:
    try:
        value = json.loads(line.removeprefix("data: "))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a value."""
    inner = value.items() if isinstance(value, dict) else ()
    for key, each in enumerate(value) if isinstance(value, list) else inner:
        yield (*path, key)
        yield from places(each, (*path, key))


def mutated(rng: random.Random, value: Any) -> Any:
    """A copy of a value with a few others put in, left out or doubled."""
    value = _copy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        paths = list(places(value))
        if not paths:
            break
        *way, key = rng.choice(paths)
        holder = value
        for step in way:
            holder = holder[step]
        chance = rng.random()
        if chance < 0.15 and isinstance(holder, dict):
            del holder[key]
        elif chance < 0.25 and isinstance(holder, list):
            holder.append(_copy(holder[key]))
        else:
            holder[key] = _copy(rng.choice(ODD))
    return value


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def spoilt(rng: random.Random, values: list[Any], *, whole: bool) -> bytes:
    """The bytes of an answer in which one value was mutated, and some perhaps moved or doubled."""
    at = rng.randrange(len(values))
    values = [*values[:at], mutated(rng, values[at]), *values[at + 1 :]]
    if whole and len(values) == 1:
        return json.dumps(values[0]).encode()
    if rng.random() < 0.2:
        values.insert(rng.randrange(len(values)), rng.choice(values))
    if rng.random() < 0.1:
        rng.shuffle(values)
    text = "".join(f"data: {json.dumps(value)}\n\n" for value in values)
    return (text + "data: [DONE]\n\n" * rng.choice((0, 1))).encode()


def received(wire: str, data: bytes, size: int) -> list[Event]:
    """The events of an answer that comes in pieces of one size."""
    turn = Turn("abc", 1, "m")
    decoder = WIRES[wire].decoder(turn)
    events = [
        event for at in range(0, len(data), size) for event in decoder.feed(data[at : at + size])
    ]
    return [*events, *decoder.close(), *turn.take()]


@pytest.mark.parametrize("seed", range(4))
def test_random_upstream_bytes_break_nothing(seed) -> None:
    rng = random.Random(seed)
    known = list(answers())
    for number in range(samples(60, 20_000)):
        wire, values = rng.choice(known)
        data = spoilt(rng, values, whole=rng.random() < 0.5)
        try:
            events = received(wire, data, rng.choice((7, 100, 100_000)))
            check(events)
            say_all(events)
        except Exception as error:
            error.add_note(f"seed {seed}, answer {number} over {wire}: {data!r}")
            raise


def say_all(events: list[Event]) -> None:
    """Say the events on every wire, whole and streamed; the streams can be taken apart again."""
    response = fold(events)
    for wire in map(WIRES.__getitem__, PLAYED):
        if response.status != "failed":
            json.loads(wire.encode_response(response, ASKED, STANDARD))
        encoder = wire.encoder(ASKED, STANDARD)
        said = b"".join(encoder.feed((event,)) for event in events)
        for name, data in blocks(said):
            event = {} if data == "[DONE]" else json.loads(data)
            assert name in (None, event.get("type"))
