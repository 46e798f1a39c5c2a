"""A client cannot tell an answer that was told from one that was awaited.

The same request goes to two servers that differ only in whether their engine tells, and the two
answers are compared to the byte. What they should say is tested where the awaited way is.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Failed, Finished
from dragoman.core.interfaces import Secret
from dragoman.core.loss import Loss
from dragoman.server import app as application
from dragoman.server.app import WIRES, App
from dragoman.server.settings import Settings
from tests.server.both import both, request
from tests.server.stubs import (
    FINISHED,
    OPENING,
    PATHS,
    STARTED,
    Stub,
    Teller,
    closing,
    saying,
    served,
    word,
)
from tests.server.talk import talking

BUSY = Fault("upstream_refused", "Slow down.", "upstream", status=429, retry_after="7")
STRANGER = Fault("authentication", "Who are you?", "upstream", status=401)
CUT = Fault("upstream_cut", "The stream ended early.", "upstream")
NO_SCHEMA = {"type": "json_object"}
DEMAND = {"chat": {"response_format": NO_SCHEMA}, "responses": {"text": {"format": NO_SCHEMA}}}


# ---- what the engine says ------------------------------------------------------------------

LOSSES = (Loss("seed", "dropped", "why"), Loss("top_k", "emulated", "how"))
SAID: dict[str, tuple[Any, ...]] = {
    "an answer": saying("Hello", ", world"),
    "no words": saying(),
    "one after the other": (*OPENING, word("a"), 0, word("b"), 0.01, *closing("ab")),
    "losses": (replace(STARTED, losses=LOSSES), *saying("a")[1:]),
    "late losses": (*saying("a")[:-1], replace(FINISHED, losses=LOSSES)),
    "all losses": (
        replace(STARTED, losses=LOSSES[:1]),
        *saying("a")[1:-1],
        replace(FINISHED, losses=LOSSES[1:]),
    ),
    "enforced": (
        replace(STARTED, guarantee="enforced"),
        *saying("{}")[1:-1],
        replace(FINISHED, guarantee="enforced"),
    ),
    "verified late": (*saying("{}")[:-1], replace(FINISHED, guarantee="verified")),
    "cut off": (*OPENING, word("a"), Finished("incomplete", ("length",))),
    "cancelled": (*OPENING, word("a"), Finished("cancelled")),
    "unfinished": (*OPENING, word("a"), Finished("in_progress")),
    "slow down": (Failed(BUSY),),
    "slow down, after a while": (0.01, Failed(BUSY)),
    "a stranger": (Failed(STRANGER),),
    "a failure right after the beginning": (STARTED, Failed(BUSY)),
    "a failure in the middle": (*OPENING, word("a"), Failed(CUT)),
    "a fault is raised": (FaultError(BUSY),),
    "a fault is raised in the middle": (*OPENING, word("a"), 0, FaultError(CUT)),
    "a mistake": (ValueError("on purpose"),),
    "a mistake after the beginning": (STARTED, ValueError("on purpose")),
    "a mistake in the middle": (*OPENING, word("a"), 0, ValueError("on purpose")),
}
ALL = [(wire, stream, name) for wire in PATHS for stream in (False, True) for name in SAID]


@pytest.mark.parametrize(("wire", "stream", "name"), ALL)
async def test_whatever_an_engine_says(wire: str, stream: bool, name: str) -> None:
    [answer] = await both(SAID[name], request(wire, stream=stream))
    assert not answer.closed


@pytest.mark.parametrize("stream", [False, True])
async def test_p24_a_failure_before_the_first_event_has_its_own_status(
    wire: str, stream: bool
) -> None:
    [busy] = await both([Failed(BUSY)], request(wire, stream=stream))
    assert busy.status == "HTTP/1.1 429 Too Many Requests"
    assert busy.header("retry-after") == "7"
    [stranger] = await both([Failed(STRANGER)], request(wire, stream=stream))
    assert stranger.header("www-authenticate") == "Bearer"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["an answer", "enforced", "verified late", "late losses"])
async def test_p34_how_sure_it_is(wire: str, stream: bool, name: str) -> None:
    [answer] = await both(SAID[name], request(wire, stream=stream, **DEMAND[wire]))
    assert answer.header("x-dragoman-guarantee")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("store", [None, True, False])
async def test_p37_what_this_server_does_not_do(
    wire: str, stream: bool, store: bool | None
) -> None:
    [answer] = await both(saying("a"), request(wire, stream=stream, store=store))
    assert answer.header("x-dragoman-loss") == ("dropped: store" if store else "")


@pytest.mark.parametrize("name", ["an answer", "a failure in the middle"])
async def test_the_other_dialect(wire: str, name: str) -> None:
    await both(SAID[name], request(wire, stream=True), dialect="open-responses")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("relay", [False, True])
@pytest.mark.parametrize("name", ["an answer", "late losses", "a mistake in the middle"])
async def test_a_server_with_a_memory(wire: str, stream: bool, relay: bool, name: str) -> None:
    packet = request(wire, stream=stream, store=False)
    [answer] = await both(SAID[name], packet, remembers=True, relay=relay)
    assert "store" not in answer.header("x-dragoman-loss")


# ---- what the engine says cannot be said ---------------------------------------------------

BOOM = "boom"
DOOM = "doom"


class Breaking:
    """An encoder that cannot say one word, in whatever event it stands, and nothing at all after
    another."""

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder
        self._broken = False

    def feed(self, events: Sequence[Any]) -> bytes:
        self._broken = self._broken or DOOM in repr(events)
        if self._broken or BOOM in repr(events):
            raise ValueError("on purpose")
        return self._encoder.feed(events)

    def heartbeat(self, *, data: bool = False) -> bytes:
        return self._encoder.heartbeat(data=data)


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(wire: Any) -> Any:
        def encode(response: Any, *rest: Any) -> bytes:
            if BOOM in repr(response):
                raise ValueError("on purpose")
            return wire.encode_response(response, *rest)

        return encode

    wires = [
        replace(
            wire,
            encoder=lambda *given, wire=wire: Breaking(wire.encoder(*given)),
            encode_response=whole(wire),
        )
        for wire in WIRES
    ]
    monkeypatch.setattr(application, "WIRES", tuple(wires))


LAST = Finished("completed", (BOOM,))
UNSAYABLE: dict[str, tuple[Any, ...]] = {
    "first": (replace(STARTED, model=BOOM), 0, *OPENING[1:], *closing("")),
    "in the middle": (*OPENING, word("a"), 0, word(BOOM), 0, *closing(f"a{BOOM}")),
    "last": (*OPENING, word("a"), 0, *closing("a")[:-1], 0, LAST),
    "last, with a comment": (
        *(*OPENING, word("a"), 0, *closing("a")[:-1], 0),
        replace(LAST, losses=LOSSES),
    ),
}


@pytest.mark.usefixtures("breaking")
@pytest.mark.parametrize("name", UNSAYABLE)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_encoder_that_raises(wire: str, stream: bool, name: str) -> None:
    [answer] = await both(UNSAYABLE[name], request(wire, stream=stream))
    assert b"Something went wrong in this server" in answer.body
    assert (" 500 " in answer.status) == (not stream or name == "first")


@pytest.mark.usefixtures("breaking")
async def test_an_end_that_cannot_be_said_either_drops_the_connection(wire: str) -> None:
    cues = (*OPENING, word("a"), 0, word(DOOM), asyncio.Event())
    for stub in (Teller(*cues), Stub(*cues)):
        async with served(App(stub, Settings())) as port, talking(port) as talk:
            talk.send(request(wire, stream=True))
            await talk.head()
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                while await talk.chunk():
                    pass
                pytest.fail("it ended well")


# ---- what is asked, and how ----------------------------------------------------------------

KEYS = {"keys": (Secret("right"),)}
PAGES = {"cors_origins": ("https://app.example",)}
BIG = {"chat": {"messages": [{"role": "user", "content": "x" * 70_000}]}}
BIG["responses"] = {"input": "x" * 70_000}

GOOD: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "the connection is to be closed": (("connection: close",), {}),
    "a charset": ((), {"type": "application/json; charset=utf-8"}),
    "no coding": (("content-encoding: identity",), {}),
    "a key": (("authorization: Bearer right",), KEYS),
    "another way to bring a key": (("x-api-key: right",), KEYS),
    "a key that is not asked for": (("authorization: Bearer any",), {}),
    "a page": (("origin: https://app.example",), PAGES),
    "a page with a key": (("origin: https://app.example", "x-api-key: right"), KEYS | PAGES),
    "no page, where pages may come": ((), PAGES),
    "a page of this machine": (("origin: http://localhost:3000",), {}),
    "some hops": (("x-dragoman-hops: 8",), {}),
    "hops that are no number": (("x-dragoman-hops: many",), {}),
    "an insane request id": (("x-request-id: r1",), {}),
    "a version before": ((), {"line": "POST {} HTTP/1.0"}),
    "a query": ((), {"line": "POST {}?a=b HTTP/1.1"}),
    "a path written otherwise": ((), {"line": "POST {}%73 HTTP/1.1"}),
    "in chunks": ((), {"sized": False}),
    "fields that nobody knows": ((), {"what": {"is": "this"}}),
}
REQUEST = ("type", "line", "sized", "body", "what")


def split(wire: str, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What belongs to the request, and what to the settings."""
    fields = {name: options[name] for name in options if name in REQUEST}
    if "line" in fields:
        path = PATHS[wire][:-1] if "%" in fields["line"] else PATHS[wire]
        fields["line"] = fields["line"].format(path)
    return fields, {name: options[name] for name in options if name not in REQUEST}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", GOOD)
async def test_however_it_is_asked(wire: str, stream: bool, name: str) -> None:
    headers, options = GOOD[name]
    fields, settings = split(wire, options)
    [answer] = await both(saying("a"), request(wire, *headers, stream=stream, **fields), **settings)
    assert " 200 " in answer.status


REFUSED: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "no JSON": ("400", (), {"body": b"{"}),
    "no body": ("400", (), {"body": b""}),
    "no object": ("400", (), {"body": b"[]"}),
    "wrong fields": ("400", (), {"body": b'{"model": 1}'}),
    "text": ("415", (), {"type": "text/plain"}),
    "no type": ("415", (), {"type": ""}),
    "a coding": ("415", ("content-encoding: gzip",), {}),
    "too large": ("413", (), {"body_limit": 10}),
    "too large, and nobody said so": ("413", (), {"body_limit": 10, "sized": False}),
    "no key": ("401", (), KEYS),
    "a wrong key": ("401", ("authorization: Bearer wrong",), KEYS),
    "a wrong key of a page": (
        "401",
        ("origin: https://app.example", "x-api-key: no"),
        KEYS | PAGES,
    ),
    "another page": ("403", ("origin: https://evil.example",), PAGES),
    "any page": ("403", ("origin: https://evil.example",), {}),
    "another name": ("403", ("host: evil.example",), {}),
    "a ring": ("400", ("x-dragoman-hops: 9",), {}),
    "no such path": ("404", (), {"line": "POST {}/none HTTP/1.1"}),
    "no such way": ("405", (), {"line": "PUT {} HTTP/1.1"}),
    "a socket, half asked for": ("404", ("upgrade: websocket",), {}),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_refused(wire: str, name: str) -> None:
    status, headers, options = REFUSED[name]
    fields, settings = split(wire, options)
    packet = request(wire, *headers, **fields)
    [answer] = await both(saying("a"), packet, told=0, **settings)
    assert f" {status} " in answer.status


NEEDING: dict[str, dict[str, Any]] = {
    "an answer before": {"previous_response_id": "resp_none"},
    "a conversation": {"conversation": "conv_none"},
    "the background": {"background": True, "store": False},
    "an item": {"input": [{"type": "item_reference", "id": "msg_none"}]},
}


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("name", NEEDING)
async def test_what_builds_on_what_is_not_there(name: str, remembers: bool) -> None:
    fields = {"store": False} | NEEDING[name]
    packet = request("responses", **fields)
    [answer] = await both(saying("a"), packet, told=0, remembers=remembers)
    assert answer.status.split()[1] in ("400", "404")


# ---- in which pieces -----------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_large_request_in_one_go(wire: str, stream: bool) -> None:
    """It may come in several pieces all the same."""
    [answer] = await both(saying("a"), request(wire, stream=stream, **BIG[wire]), told=None)
    assert " 200 " in answer.status


@pytest.mark.parametrize("cut", [10, -1, -20])
async def test_a_request_in_two_pieces(wire: str, cut: int) -> None:
    packet = request(wire)
    for stub in (Teller(), Stub()):
        async with served(App(stub, Settings())) as port, talking(port) as talk:
            talk.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" + packet[:cut])
            assert (await talk.answer()).body == b'{"status":"ok"}'
            talk.send(packet[cut:])
            assert " 200 " in (await talk.answer()).status


async def test_a_client_that_waits_to_be_told_to_go_on(wire: str) -> None:
    packet = request(wire, "expect: 100-continue")
    size = packet.index(b"\r\n\r\n") + 4
    for stub in (Teller(), Stub()):
        async with served(App(stub, Settings())) as port, talking(port) as talk:
            talk.send(packet[:size])
            assert (await talk.head())[0] == "HTTP/1.1 100 Continue"
            talk.send(packet[size:])
            assert " 200 " in (await talk.answer()).status
    await both(saying("a"), packet, told=0)


HEALTH = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-request-id: r2\r\n\r\n"


@pytest.mark.parametrize("stream", [False, True])
async def test_another_request_behind_it_in_the_same_packet(wire: str, stream: bool) -> None:
    packet = request(wire, stream=stream)
    answers = await both(saying("a"), packet + HEALTH, answers=2)
    assert answers[1].body == b'{"status":"ok"}'
    answers = await both(saying("a"), packet + packet, answers=2, told=1)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("stream", [False, True])
async def test_another_request_before_it_in_the_same_packet(wire: str, stream: bool) -> None:
    answers = await both(saying("a"), HEALTH + request(wire, stream=stream), answers=2, told=0)
    assert answers[0].body == b'{"status":"ok"}'


@pytest.mark.parametrize("stream", [False, True])
async def test_another_request_while_it_is_answered(wire: str, stream: bool) -> None:
    packet = request(wire, stream=stream)
    cues = (*OPENING, word("a"), 0.01, *closing("a"))
    answers = await both(cues, packet, HEALTH + packet, answers=3)
    assert answers[0] == answers[2]


async def test_one_after_the_other_on_one_connection(wire: str) -> None:
    teller = Teller()
    async with served(App(teller, Settings())) as port, talking(port) as talk:
        for number in range(1, 21):
            talk.send(request(wire, stream=bool(number % 2)))
            assert " 200 " in (await talk.answer()).status
            assert teller.told == number
