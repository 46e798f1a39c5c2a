"""WebRTC calls, with aiortc as the client: on loopback, by a real port."""

import asyncio
import json
import re
from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from aioice import ice
from aiortc.mediastreams import MediaStreamError
from aiortc.rtp import RtpPacket
from av import AudioFrame
from openai import AsyncOpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from dragoman.core.error import FaultError
from dragoman.core.interfaces import Secret
from dragoman.core.item import Message, Text
from dragoman.core.session_values import ItemRetrieved, Playing
from dragoman.engines.remote import Remote
from dragoman.engines.router import Route, Router
from dragoman.net import webrtc
from dragoman.net.webrtc import FRAME
from dragoman.server import calls
from dragoman.server.calls import Playback
from dragoman.server.settings import Settings
from dragoman.wire.pieces import LONG
from tests.server.socket.phone import CALLS, SILENCE, TONE, Phone, calling, on_loopback
from tests.server.socket.test_realtime import RESPOND, USER
from tests.server.stubs import OPENING, Stub, saying, word

SDP = "application/sdp"


@pytest.fixture(autouse=True)
def _loopback(monkeypatch) -> None:
    on_loopback(monkeypatch)


async def test_a_text_turn_and_a_hangup() -> None:
    engine = Stub(*saying("Hello"))
    async with calling(engine, voiced=False, audio=False) as (app, phone):
        await phone.dial()
        await phone.say(USER, RESPOND)
        done = await phone.until("response.done")
        assert done["response"]["output"][0]["content"] == [
            {"type": "output_text", "text": "Hello"}
        ]
        assert phone.kinds[0] == "session.created"
        (request, caller) = engine.asked[0]
        assert ([item.text for item in request.items], caller.wire) == (["Hi"], "realtime")
        for frame in ("{", b"[]", json.dumps({"type": "nonsense"})):
            phone.channel.send(frame)
            assert (await phone.until("error"))["error"]["type"] == "invalid_request_error"
        assert await phone.hang_up() == 200
        await phone.closed.wait()
        assert await phone.hang_up() == 404
        assert app._realtime.calls == {}


async def test_a_spoken_turn_and_an_interruption() -> None:
    """Speech in as Opus, turns found, an answer out as Opus as fast as it is heard; and what was
    not heard of the next one is forgotten."""
    engine = Stub(*saying("Fine, thanks."))
    async with calling(engine) as (app, phone):
        await phone.dial()
        audio = {"input": {"transcription": {"model": "w"}, "format": {"type": "audio/pcmu"}}}
        await phone.say({"type": "session.update", "session": {"type": "realtime", "audio": audio}})
        updated = await phone.until("session.updated")
        assert updated["session"]["audio"]["input"]["format"]["type"] == "audio/pcm"
        phone.microphone.say(SILENCE * 20 + TONE * 40 + SILENCE * 30)
        await phone.until("conversation.item.input_audio_transcription.completed")
        await phone.until("output_audio_buffer.stopped")
        (call,) = app._realtime.calls.values()
        items = call.live.session.items
        assert len(items.sound.get((items.last, 0))) == 130 * 48
        marks = ["content_part.added", "buffer.started", "response.done", "buffer.stopped"]
        places = [next(n for n, k in enumerate(phone.kinds) if k.endswith(mark)) for mark in marks]
        assert places[0] < places[1] < places[3] > places[2]
        assert "response.output_audio.delta" not in phone.kinds
        while len(phone.heard) < 7:
            await asyncio.sleep(0.01)
        loud = [when for when, level in phone.heard if level > 3_000]
        assert len(loud) in (6, 7, 8)  # the codec's edges are soft
        assert {b - a for a, b in pairwise(loud)} == {960}

        engine.cues = saying("x " * 1_000)  # of twenty seconds
        await phone.say(RESPOND)
        done = await phone.until("response.done")
        item = done["response"]["output"][0]["id"]
        while phone.kinds.count("output_audio_buffer.started") < 2:  # also before it is done
            await asyncio.sleep(0.01)
        before = call.playback.size
        assert before > 19_000 * 48
        while call.playback.size > before - 10 * FRAME:
            await asyncio.sleep(0.01)
        phone.microphone.say(TONE * 30)
        await phone.until("input_audio_buffer.speech_started")
        cleared = await phone.until("output_audio_buffer.cleared")
        cut = await phone.until("conversation.item.truncated")
        assert cleared["response_id"] == done["response"]["id"]
        assert (cut["item_id"], call.playback.size) == (item, 0)
        # It is what was sent, to the frame, and the model is reminded of no more.
        assert 200 <= cut["audio_end_ms"] < 20_000
        assert cut["audio_end_ms"] % 20 == 0
        engine.cues = saying("")
        phone.microphone.say(SILENCE * 30)
        await phone.until("response.done")
        said = [item.text for item in engine.asked[-1][0].items if item.role == "assistant"]
        assert len(said[-1].split()) == cut["audio_end_ms"] // 20


async def test_clearing_what_is_played_cancels_the_answer_that_it_is_of() -> None:
    engine = Stub(*OPENING, word("x" * 500), asyncio.Event())
    async with calling(engine) as (_, phone):
        await phone.dial()
        await phone.say(RESPOND)
        await phone.until("output_audio_buffer.started")
        await phone.say({"type": "output_audio_buffer.clear"})
        done = await phone.until("response.done")
        assert done["response"]["status"] == "cancelled"
        await phone.until("output_audio_buffer.cleared")
        await phone.until("conversation.item.truncated")
        await asyncio.wait_for(engine.cancelled.wait(), 5)


async def test_another_connection_joins_a_call_and_leaves_it() -> None:
    key, other = "k" * 20, "o" * 20
    settings = Settings(keys=(Secret(key), Secret(other)))
    async with calling(Stub(*saying("Hello")), settings, voiced=False) as (app, phone):
        head = {"Authorization": f"Bearer {key}"}
        await phone.dial(**head)
        await phone.until("conversation.created")
        id = phone.location.rpartition("/")[2]
        url = f"ws://127.0.0.1:{phone.port}/v1/realtime?call_id={id}"
        stranger = {"Authorization": f"Bearer {other}"}
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, additional_headers=stranger)
        assert refused.value.response.status_code == 404
        plain = {"content-type": "application/json", **head}
        made = await phone.post("/v1/realtime/client_secrets", "{}", **plain)
        page = {"Authorization": f"Bearer {made.json()['value']}"}
        with pytest.raises(InvalidStatus) as refused:  # whoever has it, has it for one session
            await connect(url, additional_headers=page)
        assert refused.value.response.status_code == 401
        async with connect(url, additional_headers=head) as side:
            created = json.loads(await side.recv())
            assert created["session"]["id"] == phone.events[0]["session"]["id"]
            await side.recv()
            update = {
                "type": "session.update",
                "session": {"type": "realtime", "instructions": "X"},
            }
            await side.send(json.dumps(update))
            await side.send("{")
            await phone.say({"type": "response.cancel", "event_id": "mine"}, RESPOND)
            await phone.until("response.done")
            kinds = []
            while kinds[-1:] != ["response.done"]:
                kinds.append(json.loads(await side.recv())["type"])
            # Each has its own errors, and all else is the same for both.
            mine = [kind for kind in phone.kinds[2:] if kind != "error"]
            assert [kind for kind in kinds if kind != "error"] == mine
            assert kinds.count("error") == phone.kinds.count("error") == 1
        await phone.say(RESPOND)  # the call goes on
        await phone.until("response.done")
        hangup = f"{phone.location}/hangup"
        assert (await phone.post(hangup, **stranger)).status_code == 404
        async with connect(url, additional_headers=head) as side:
            assert (await phone.post(hangup, **head)).status_code == 200
            with pytest.raises(ConnectionClosed):
                while True:
                    await side.recv()
        assert app._realtime.calls == {}


@pytest.mark.parametrize("quietly", [False, True])
async def test_a_client_that_is_gone_ends_its_call(quietly, monkeypatch) -> None:
    """One that says so, and one whose consent to be sent anything expires (RFC 7675)."""
    engine = Stub(*OPENING, asyncio.Event())
    if quietly:
        monkeypatch.setattr(ice, "CONSENT_INTERVAL", 0.05)
        monkeypatch.setattr(ice, "CONSENT_FAILURES", 2)
    async with calling(engine, voiced=False) as (app, phone):
        await phone.dial()
        await phone.say(RESPOND)
        await asyncio.wait_for(engine.begun.wait(), 5)
        (call,) = app._calls._tasks.values()
        if quietly:
            transport = phone.peer.sctp.transport.transport
            for protocol in transport._connection._protocols:
                protocol.transport.abort()
        else:
            await phone.peer.close()
        await asyncio.wait_for(call, 30)
        assert engine.cancelled.is_set()
        assert app._realtime.calls == {}


async def test_the_openai_sdk_makes_a_call_with_a_client_secret() -> None:
    settings = Settings(keys=(Secret("k" * 20),))
    async with calling(None, settings, audio=False) as (_, phone):
        client = AsyncOpenAI(api_key="k" * 20, base_url=f"{phone.url}/v1")
        session = {"type": "realtime", "model": "stub", "instructions": "Be brief."}
        secret = (await client.realtime.client_secrets.create(session=session)).value
        page = client.with_options(api_key=secret)
        changed = {"type": "realtime", "output_modalities": ["text"]}
        answer = await page.realtime.calls.create(sdp=await phone.offer(), session=changed)
        await phone.take(answer.text)
        created = await phone.until("session.created")
        assert created["session"]["instructions"] == "Be brief."
        assert created["session"]["output_modalities"] == ["text"]
        call = answer.response.headers["location"].rpartition("/")[2]
        await client.realtime.calls.hangup(call)
        await phone.closed.wait()
        await client.close()
        again = await phone.post(
            CALLS, "v=0", authorization=f"Bearer {secret}", **{"content-type": SDP}
        )
        assert again.status_code == 401


async def test_a_call_ends_with_the_server_and_without_a_connection(monkeypatch) -> None:
    async with calling(voiced=False, audio=False) as (app, phone):
        await phone.dial()
        await phone.until("conversation.created")
        await app.drain(0)
        assert (await phone.until("error"))["error"]["code"] == "shutting_down"
        answer = await phone.post(CALLS, await Phone(0).offer(), **{"content-type": SDP})
        assert answer.status_code == 503
    monkeypatch.setattr(calls, "CONNECT_SECONDS", 0.05)
    async with calling(voiced=False, audio=False) as (app, phone):
        answer = await phone.post(f"{CALLS}?model=m", await phone.offer(), **{"content-type": SDP})
        assert answer.status_code == 201
        await asyncio.wait_for(asyncio.gather(*app._calls._tasks.values()), 30)
        assert app._realtime.calls == {}


async def test_a_closing_that_was_cancelled_half_way_is_not_waited_for_for_ever(
    monkeypatch,
) -> None:
    """aiortc closes a connection by itself when its client leaves, and a loop that ends cancels
    that."""
    monkeypatch.setattr(webrtc, "CLOSING", 0.1)
    async with calling(voiced=False) as (app, phone):
        await phone.dial()
        await phone.until("session.created")
        (call,) = app._realtime.calls.values()
        closing = asyncio.ensure_future(call.line.peer._connection.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait_for(app._calls.close(), 5)
        assert app._realtime.calls == {}


async def test_a_client_is_sent_nothing_before_it_has_sent_something(monkeypatch) -> None:
    """Addresses in an offer could be anybody's."""
    seen = []

    class Nobody(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, address: Any) -> None:
            seen.append(data)

    loop = asyncio.get_running_loop()
    victim, _ = await loop.create_datagram_endpoint(Nobody, local_addr=("127.0.0.1", 0))
    port = victim.get_extra_info("sockname")[1]
    async with calling(voiced=False, audio=False) as (_, phone):
        offer = await phone.offer()
        line = f"a=candidate:1 1 udp 2130706431 127.0.0.1 {port} typ host\r\n"
        offer += line + line.replace("127.0.0.1", "some.local") + f"a=x\f{line}"
        sent = {"content-type": SDP}
        answer = await phone.post(f"{CALLS}?model=m", offer, **sent)
        await phone.take(answer.text)
        await phone.until("conversation.created")
        ours = [each.split()[4] for each in answer.text.splitlines() if "candidate:" in each]
        assert {*ours} == {"127.0.0.1"}
    victim.close()
    assert seen == []
    offer = await Phone(0, audio=False).offer()
    peer = webrtc.Peer(SimpleNamespace(), ())
    answer = await peer.answer(offer, 1)
    assert "127.0.0.1" in answer  # one of all that the machine has
    await peer.close()
    peer = webrtc.Peer(SimpleNamespace(), ("192.0.2.77",))
    with pytest.raises(FaultError, match="call_host"):
        await peer.answer(offer, 1)
    await peer.close()


async def test_an_early_event_that_the_client_does_not_take_is_refused() -> None:
    async with calling(voiced=False, audio=False) as (app, phone):
        offer = await phone.offer()
        assert "a=max-message-size:" in offer
        offer = re.sub("(a=max-message-size:).*", r"\g<1>2000", offer)
        answer = await phone.post(f"{CALLS}?model=stub", offer, **{"content-type": SDP})
        (call,) = app._realtime.calls.values()
        while not call.clients:
            await asyncio.sleep(0)
        call.receive([ItemRetrieved(Message("user", (Text("x" * 5_000),), id="i"))])
        await phone.take(answer.text)
        assert "no message of" in (await phone.until("error"))["error"]["message"]
        assert "conversation.item.retrieved" not in phone.kinds
        await phone.say({"type": "input_audio_buffer.clear"})
        await phone.until("input_audio_buffer.cleared")


async def test_gaps_are_silence_and_a_second_channel_is_closed() -> None:
    """A client need send nothing while there is nothing to hear (RFC 7587, 3.1.3)."""
    heard: list[bytes] = []
    peer = webrtc.Peer(SimpleNamespace(audio_received=heard.append), ("127.0.0.1",))
    frames = []
    for pts in (0, 960, 960 * 52, 48_000 * 100):
        frame = AudioFrame(format="s16", layout="stereo", samples=960)
        frame.planes[0].update(bytes(3_840))
        frame.sample_rate, frame.pts = 48_000, pts
        frames.append(frame)

    async def recv() -> AudioFrame:
        if not frames:
            raise MediaStreamError
        return frames.pop(0)

    await peer._hear(SimpleNamespace(recv=recv))
    assert [round(len(pcm) / 960) for pcm in heard] == [1, 1, 51, 101]
    closed: list[str] = []
    first, second = (
        SimpleNamespace(readyState="open", bufferedAmount=0, on=lambda *_: None, send=closed.append)
        for _ in range(2)
    )
    second.close = lambda: closed.append("second")
    peer._low = 1
    assert peer.send("early") == 5
    peer._channel_made(first)
    peer._channel_made(second)
    assert closed == ["early", "second"]
    first.readyState = "closed"
    assert peer.send("late") == 0
    await peer.close()


OFFER = "v=0\r\nm=audio 9 UDP/TLS/RTP/SAVPF 96\r\na=mid:0\r\na=rtpmap:96 opus/48000/2\r\n"


async def test_sound_of_many_sources_does_not_keep_a_call_from_ending() -> None:
    async with calling() as (app, phone):
        await phone.dial()
        await phone.until("session.created")
        call = next(iter(app._realtime.calls.values()))
        receiver = call.line.peer._connection.getReceivers()[0]
        sender = phone.peer.getSenders()[0]
        while not receiver._RTCRtpReceiver__remote_streams:
            for ssrc in range(1, 100):
                packet = RtpPacket(96, ssrc=ssrc, payload=b"\xf8\xff\xfe")
                await sender.transport._send_rtp(
                    packet.serialize(sender._RTCRtpSender__rtp_header_extensions_map)
                )
            await asyncio.sleep(0.01)
        assert len(receiver._RTCRtpReceiver__remote_streams) <= webrtc.MAX_SOURCES
        assert await phone.hang_up() == 200
        await phone.closed.wait()


def form(**fields: str) -> tuple[str, dict[str, str]]:
    lines = [
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    return "".join(lines) + "--x--\r\n", {"content-type": "multipart/form-data; boundary=x"}


async def test_what_cannot_be_answered_is_refused_and_says_why(monkeypatch) -> None:
    plain = {"content-type": SDP}
    video = OFFER.replace("audio", "video")
    mute = OFFER.replace("opus/48000", "PCMU/8000")
    several = Settings(workers=2)
    upstream = Router([Route(Remote("http://127.0.0.1:1/v1"), ("stub",), realtime="ga")])
    rows: list[tuple[str, str, dict[str, str], int, str]] = [
        ("?model=m", "", {"content-type": "application/json"}, 415, f"{SDP} or multipart/form"),
        ("?model=m", "hello", plain, 400, "no session description"),
        ("?model=m", OFFER + video, plain, 400, "one audio track"),
        ("?model=m", mute, plain, 400, "offers no Opus"),
        ("?model=m", OFFER, plain, 400, "cannot be answered: ValueError"),
        ("", OFFER, plain, 400, "model"),
        ("?model=m", "x" * 300_000, plain, 413, "262144"),
        ("?model=m", OFFER + "a=ssrc:1 a:b\r\n" * 300, plain, 400, "lines, and may have 300"),
        ("", *form(session="{}"), 400, "sdp: is missing"),
        ("", *form(sdp=OFFER, session="[]"), 400, "object"),
        ("", *form(sdp=OFFER, session='{"model": 1}'), 400, "model"),
        ("/rtc_1/accept", "", plain, 400, "SIP"),
        ("/rtc_1/dance", "", plain, 404, "hangup"),
        ("/rtc_1/hangup", "", plain, 404, "no call"),
    ]
    offer = (await Phone(0).offer()).replace("BUNDLE 0", "BUNDLE 9")
    rows.append(("?model=m", offer, plain, 400, "names one"))
    rows.append(("?model=m", offer.replace("BUNDLE 9", "BUNDLE 0 0"), plain, 400, "names one"))
    places: list[tuple[Any, Settings, list[Any]]] = [
        (None, Settings(), rows),
        (None, several, [("?model=m", OFFER, plain, 400, "workers = 1")]),
        (upstream, Settings(), [("?model=stub", OFFER, plain, 400, "by WebSocket only")]),
    ]
    for engine, settings, rows in places:
        async with calling(engine, settings) as (app, phone):
            for query, body, headers, status, words in rows:
                answer = await phone.post(CALLS + query, body, **headers)
                assert (answer.status_code, words in answer.text) == (status, True), answer.text
                assert app._realtime.calls == {}
    monkeypatch.setattr(webrtc, "available", lambda: False)
    async with calling() as (_, phone):
        answer = await phone.post(f"{CALLS}?model=m", OFFER, **plain)
        assert "pip install '.[webrtc]'" in answer.text
    monkeypatch.undo()
    async with calling(None, Settings(call_host="a..b"), voiced=False) as (_, phone):
        answer = await phone.post(f"{CALLS}?model=m", OFFER, **plain)
        assert "call_host: is 'a..b', which has no address" in answer.text
    on_loopback(monkeypatch)
    async with calling(None, Settings(max_calls=1), voiced=False) as (_, phone):
        await phone.dial()
        answer = await phone.post(f"{CALLS}?model=m", OFFER, **plain)
        assert (answer.status_code, "max_calls" in answer.text) == (429, True)


async def test_calls_that_begin_at_once_are_counted() -> None:
    settings = Settings(max_calls=1, call_host="localhost")
    async with calling(None, settings, voiced=False, audio=False) as (app, phone):
        offer, plain = await phone.offer(), {"content-type": SDP}
        made = [phone.post(f"{CALLS}?model=m", offer, **plain) for _ in range(4)]
        answers = [answer.status_code for answer in await asyncio.gather(*made)]
        assert sorted(answers) == [201, 429, 429, 429]
        assert len(app._realtime.calls) == 1


# ---- without a connection ------------------------------------------------------------------------


def test_what_is_played_is_known_to_the_frame() -> None:
    told: list[Playing] = []
    play = Playback(told.append)
    assert (play.next_frame(), play.clear()) == (None, [])
    play.add("r1", "i1", 0, b"a" * FRAME + b"b" * 480)
    assert play.next_frame() == b"a" * FRAME
    assert play.next_frame() is None  # half a frame waits for its other half
    play.add("r1", "i1", 1, b"c" * FRAME)  # and the next part for its turn
    play.add("r1", "i1", 0, b"b" * 480)
    assert play.next_frame() == b"b" * FRAME
    play.end_part("i1", 0)
    assert play.next_frame() == b"c" * FRAME
    play.add("r1", "i1", 1, b"d" * 48)
    play.end("r1")
    assert play.next_frame() == b"d" * 48 + bytes(FRAME - 48)
    assert told == [Playing("r1", "started")]
    assert play.next_frame() is None
    assert told[1:] == [Playing("r1", "stopped")]
    play.end("r2")  # it had no sound
    assert (play.next_frame(), len(told), play.size) == (None, 2, 0)
    # One answer behind another, and both cut: what was heard of the first, nothing of the second.
    play.add("r3", "i3", 0, b"e" * FRAME * 3)
    play.end("r3")
    play.add("r4", "i4", 0, b"f" * FRAME)
    assert play.next_frame() == b"e" * FRAME
    assert bytes(play._queue[0].sound) == b"e" * FRAME * 2  # what was heard takes no memory
    cuts = [(cut.item_id, cut.content_index, cut.audio_end_ms) for cut in play.clear()]
    assert cuts == [("i3", 0, 20), ("i4", 0, 0)]
    assert told[2:] == [Playing("r3", "started"), Playing("r3", "cleared")]
    play.add("r4", "i4", 0, b"g" * FRAME)  # nobody wants to hear the rest
    play.end("r4")
    assert (play.next_frame(), play.responses) == (None, set())
    # One answer follows another without a gap.
    play.add("r5", "i5", 0, b"h" * FRAME)
    play.end("r5")
    play.add("r6", "i6", 0, b"i" * FRAME)
    assert [play.next_frame() for _ in range(2)] == [b"h" * FRAME, b"i" * FRAME]
    assert [event.state for event in told[4:]] == ["started", "stopped", "started"]
    play.end("r6")  # it was cancelled, with text that was not spoken yet
    assert [(cut.item_id, cut.audio_end_ms) for cut in play.clear()] == [("i6", 20)]


class Wire:
    """A peer whose client takes messages as a test says."""

    plays = True

    def __init__(self, line: Any, addresses: Any) -> None:
        self.line = line
        self.sent: list[str] = []
        self.unread = 0
        self.longest = 1_000_000

    def send(self, text: str) -> int:
        if len(text) > self.longest:
            raise calls.FaultError(calls.Fault("too_large", "too long", "client"))
        self.sent.append(text)
        return self.unread

    def play(self) -> None:
        pass

    async def close(self) -> None:
        pass


async def test_a_client_that_does_not_read_pauses_the_answers_and_loses_the_call(
    monkeypatch,
) -> None:
    monkeypatch.setattr(calls, "Peer", Wire)
    async with calling(voiced=True) as (app, _):
        exchange = SimpleNamespace(path="/", id="req_1")

        async def call() -> Any:
            given = calls.Caller("", None), calls.SessionConfig(model="stub")
            voice = await app._realtime.voice(given[1])
            made = calls.Call(app._calls._service, *given, voice, exchange, ())
            await made.join(made.line)
            return made

        slow = await call()
        wire = slow.line.peer
        wire.unread = calls.BUFFER + 1
        slow.receive([Playing("r", "started")])
        assert slow.live._paused
        assert slow.line._timer is not None
        slow.line.drained()
        assert not slow.live._paused
        wire.unread = calls.MAX_UNREAD + 1
        slow.receive([Playing("r", "stopped")])
        assert slow.line.over.is_set()

        fast = await call()
        fast.line.received("x" * (calls.MAX_UNREAD + 1))
        assert fast.line.over.is_set()
        assert "faster than they are taken" in fast.line.peer.sent[-1]

        small = await call()
        small.line.peer.longest = 400
        small.receive([Playing("r" * 400, "started")])
        assert "too long" in small.line.peer.sent[-1]
        before = len(small.line.peer.sent)
        for size in (LONG + 1, calls.MAX_EVENT + 1):
            small.line.peer.longest = calls.MAX_EVENT
            item = Message("user", (Text("x" * size),), id="i")
            small.receive([ItemRetrieved(item)])
        whole, refused = small.line.peer.sent[before:]
        assert len(whole) > LONG
        assert "join the call by WebSocket" in refused
        small.line.peer.longest = 10
        small.receive([Playing("r", "started")])
        assert small.line.over.is_set()

        ahead = await call()
        ahead.playback.add("r", "i", 0, bytes(calls.AHEAD_MS * 48 + FRAME))
        ahead.receive([Playing("r", "started")])
        assert ahead.live._paused
        while ahead.live._paused:
            assert ahead.next_frame() is not None
        assert 0 < ahead.playback.size <= calls.AHEAD_MS * 24

        deaf = await call()

        def fail(audio: bytes) -> None:
            raise RuntimeError("no detector")

        deaf.live._detector_now = lambda: SimpleNamespace(feed=fail)
        deaf.audio_received(TONE)
        assert deaf.line.over.is_set()
        assert "internal" in deaf.line.peer.sent[-1]
        for each in (slow, fast, small, ahead, deaf):
            await each.line.finish()
            await each.close()


async def test_an_answer_of_a_call_has_the_sound_of_calls_whatever_format_it_asks_for() -> None:
    async with calling(Stub(*saying("Fine."))) as (_, phone):
        await phone.dial()
        audio = {"output": {"format": {"type": "audio/pcmu"}}}
        await phone.say({"type": "response.create", "response": {"audio": audio}})
        created = await phone.until("response.created")
        assert created["response"]["audio"]["output"]["format"]["type"] == "audio/pcm"
        await phone.until("output_audio_buffer.stopped")


@pytest.mark.parametrize(("waiting", "ends"), [(1_000, False), (1_001, True)])
async def test_a_chunk_behind_a_loss_counts_once(waiting, ends) -> None:
    handled: list[bytes] = []

    async def handle(data: bytes) -> None:
        handled.append(data)

    behind = SimpleNamespace(reassembly=list(range(waiting - 1)))
    sctp: Any = SimpleNamespace(
        _handle_data=handle,
        _inbound_streams={0: behind},
        _sack_misordered=set(range(waiting - 1)),
        _data_channels={},
        _sent_queue=(),
    )
    webrtc._bound_association(sctp)
    with pytest.raises(ConnectionError) if ends else nullcontext():
        await sctp._handle_data(bytes(12) + b"\x0b\x00\x00\x04")
    assert bool(handled) != ends
