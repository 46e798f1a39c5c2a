"""Speech servers, names, addresses and calls that mean harm: what they send is bounded, and others
go on meanwhile."""

import asyncio
import gc
import json
import socket
import struct
import threading
import time
from collections import Counter
from typing import Any

import pytest
from aioice.stun import Class, Message, Method
from aiortc import rtcrtpreceiver
from aiortc.jitterbuffer import JitterFrame
from aiortc.rtcdtlstransport import RTCDtlsTransport
from aiortc.rtcrtpparameters import RTCRtpCodecParameters as Codec
from aiortc.rtp import RtcpReceiverInfo, RtcpRrPacket, RtcpRtpfbPacket, RtpPacket

from dragoman.core.error import FaultError
from dragoman.core.event import Failed
from dragoman.core.interfaces import Caller
from dragoman.engines.remote_session import RemoteSession
from dragoman.net import dial, webrtc
from dragoman.net.client import Client
from dragoman.net.dial import resolve
from dragoman.net.errors import ConnectError
from dragoman.net.threads import BusyError, Threads
from dragoman.net.url import parse_url
from dragoman.net.webrtc import Peer
from dragoman.net.websocket import RefusedError, open_websocket
from dragoman.server import calls
from dragoman.tools import page, search
from dragoman.tools.function import OutputType
from dragoman.tools.page import read
from dragoman.tools.run import ToolError
from dragoman.voice import remote, spoken
from dragoman.voice.sentences import Sentences, speakable
from tests.mock import Reply, mock
from tests.server.socket.phone import CALLS, calling, on_loopback
from tests.server.socket.test_realtime import RESPOND, USER
from tests.server.socket.test_relay import talking
from tests.server.stubs import Stub, saying
from tests.server.test_audio import heard_by, other, said_by
from tests.tools.browsing import Model, Site, web
from tests.voice.fakes import Speaker
from tests.voice.test_spoken import BEGUN, ENDED, Plays, heard, message

JSON, SSE = "application/json", "text/event-stream"


def event(kind: str, **fields: str) -> bytes:
    return b"data: " + json.dumps({"type": f"transcript.text.{kind}", **fields}).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("kind", "content", "problem"),
    [
        (JSON, json.dumps({"text": "x" * 2_001}).encode(), "more than 2000 characters"),
        (JSON, b'{"text": "' + b"\\u0078" * 2_000 + b'"}', "more than 10000 bytes"),
        (JSON, b'{"text": "", "x": [' + b"1," * 1_001 + b"1]}", "1000 values"),
        (JSON, b'{"text": "", "x": [' + b"[[[[]]]]," * 300 + b"1]}", "1000 values"),
        (JSON, b"", "has no text"),
        (SSE, event("delta", delta="word " * 50) * 9, "more than 2000 characters"),
        (SSE, event("delta", delta="") + event("x", y="," * 1_001), "1000 values"),
        (SSE, event("delta", delta="") + event("x", y=[[[[]]]] * 300), "1000 values"),
        (SSE, b"data: [DONE]\n\n", "has no text"),
    ],
)
async def test_a_transcript_is_bounded_and_not_missing(kind, content, problem, monkeypatch) -> None:
    monkeypatch.setattr(remote, "LONGEST_TRANSCRIPT", 2_000)
    monkeypatch.setattr(remote, "LONGEST_JSON", 10_000)
    monkeypatch.setattr(remote, "MOST_VALUES", 1_000)
    async with other(kind, content) as server:
        with pytest.raises(FaultError, match=problem):
            await heard_by(server)


def wav_at(rate: int) -> bytes:
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 0, b"WAVE", b"fmt ", 16, 1, 1, rate, 0, 2, 16)
    return head + b"data\0\0\0\0" + bytes(100)


@pytest.mark.parametrize(
    ("kind", "content", "problem"),
    [
        ("audio/wav", wav_at(1_000), "1000 Hz"),
        ("text/plain", b"An error happened here.", "answered with text/plain"),
        ("audio/pcm", b"ID3\4" + bytes(100), "answered with mp3"),
        ("audio/mpeg", b"\xff\xfb\x90\x64" + bytes(100), "answered with mp3"),
        ("audio/pcm", b"OggS" + bytes(100), "answered with ogg"),
        ("audio/pcm", bytes(1_001), "no end"),
    ],
)
async def test_what_is_no_sound_is_an_error(kind, content, problem, monkeypatch) -> None:
    monkeypatch.setattr(remote, "LONGEST_ANSWER", 1_000)
    async with other(kind, content) as server:
        with pytest.raises(FaultError, match=problem):
            await said_by(server)


async def test_a_speech_server_that_is_silent_or_refuses_a_key(monkeypatch) -> None:
    monkeypatch.setattr(remote, "_SPEAKS", 0.05)
    async with mock(lambda asked: Reply([], hang=True)) as server:
        with pytest.raises(FaultError, match="sent no response headers"):
            await said_by(server)
    async with other(JSON, b"{}", status=401) as server:
        with pytest.raises(FaultError, match=r"\(speech_key_env or transcription_key_env"):
            await said_by(server, key="k")


async def test_others_go_on_while_a_recogniser_sends_many_events() -> None:
    turns, ended = 0, False

    async def count() -> None:
        nonlocal turns
        while not ended:
            turns += 1
            await asyncio.sleep(0)

    async with other(SSE, b"data: 1\n\n" * 20_000 + event("done", text="Hi")) as server:
        counting = asyncio.ensure_future(count())
        assert await heard_by(server) == "Hi"
        ended = True
        await counting
    assert turns > 20


@pytest.mark.parametrize("unit", [".", "\n", "Mr. ", "!?", "[", "[a](", "| ", "x" * 50, "a. "])
def test_sentences_of_any_text_are_short_and_take_linear_time(unit) -> None:
    text, began = unit * (20_000 // len(unit)) + ". Yes", time.thread_time()
    splitter = Sentences()
    found = [*splitter.feed(text), splitter.close()]
    spent = [speakable(each) for each in found]
    assert time.thread_time() - began < 1  # it was 10 s
    assert "".join(found) == text
    assert max(map(len, found)) <= 400
    assert spent


async def test_the_sound_of_an_answer_is_bounded_and_long_sound_encoded_apart(monkeypatch) -> None:
    monkeypatch.setattr(spoken, "_LARGE", 1_000)
    engine = Plays(BEGUN, *message("Good day. "), ENDED)
    assert (await heard(engine, Speaker()))[-1] == ENDED
    monkeypatch.setattr(spoken, "MOST_SOUND", 1_000)
    assert (await heard(engine, Speaker()))[-1] == Failed(spoken.TOO_LONG)


@pytest.mark.parametrize("text", ["```json" + "\n" * 5_000, "```\n" + "\n " * 5_000, "```" * 5_000])
def test_fences_that_are_never_closed_take_no_time(text) -> None:
    with pytest.raises(ToolError, match="is no JSON"):
        OutputType(int).value(text)


# ---- addresses -------------------------------------------------------------------------------


async def test_a_realtime_server_redirects_to_nowhere() -> None:
    asked: list[str] = []

    def inner(request: object) -> Reply:
        asked.append(str(request))
        return Reply([b"HTTP/1.1 200 OK\r\n\r\n"])

    async with mock(inner, inner) as secret:
        for place in (f"ws://127.0.0.1:{secret.port}/x", "/other", "http://x", "ws://[::1"):
            head = f"HTTP/1.1 302 Found\r\nlocation: {place}\r\ncontent-length: 0\r\n\r\n".encode()
            redirect = Reply([head])
            async with mock(lambda _, reply=redirect: reply, lambda _, reply=redirect: reply) as up:
                with pytest.raises(RefusedError) as raised:
                    url = f"ws://127.0.0.1:{up.port}/v1/realtime"
                    await open_websocket(url, {}, within=5, max_size=1_000)
                assert raised.value.status == 302
    assert asked == []


async def test_others_have_their_turn_between_what_is_replayed(monkeypatch) -> None:
    turns, sent, send = 0, list[int](), RemoteSession.send

    def counted(self: Any, command: Any) -> None:
        sent.append(turns)
        send(self, command)

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with talking(Stub(*saying("Fine"))) as (cable, talk):
        await talk.until("conversation.created")
        for number in range(20):
            await talk.say({**USER, "item": {**USER["item"], "id": f"i{number}"}})
            await talk.until("conversation.item.done")
        monkeypatch.setattr(RemoteSession, "send", counted)
        running = asyncio.ensure_future(others())
        cable.cut()
        await talk.say(RESPOND)
        await talk.until("response.done")
        running.cancel()
    assert len(set(sent)) == len(sent) == 21


async def test_names_that_resolve_slowly_hold_up_no_others(monkeypatch) -> None:
    go, real = threading.Event(), socket.getaddrinfo

    def slowly(host, *more, **options):
        if host == "slow.test":
            go.wait(10)
            raise OSError(-2, "Name or service not known")
        return real(host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slowly)
    monkeypatch.setattr(dial, "MOST_LOOKUPS", 40)
    slow = [asyncio.ensure_future(resolve(parse_url("http://slow.test/"))) for _ in range(40)]
    await asyncio.sleep(0)
    with pytest.raises(ConnectError, match="too many names"):
        await resolve(parse_url("http://slow.test/"))
    async with asyncio.timeout(5):  # the loop's own threads are free
        assert await asyncio.get_running_loop().getaddrinfo("localhost", 80)
        assert await _answered_beside("slow.test")
    go.set()
    found = await asyncio.gather(*slow, return_exceptions=True)
    assert {type(each) for each in found} == {ConnectError}


async def _answered_beside(silent: str) -> bool:
    """Whether an upstream of the configuration is reached by its name, while that of another is
    asked for in vain."""

    async def get(host: str, port: int) -> int:
        url = parse_url(f"http://{host}:{port}/")
        async with client.stream("GET", url) as answer:
            return answer.status

    empty = Reply([b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"])
    async with mock(lambda _: empty, lambda _: empty) as up, Client() as client:
        waiting = [asyncio.ensure_future(get(silent, 80)) for _ in range(21)]
        await asyncio.sleep(0)
        answered = await get("localhost", up.port) == 200
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return answered


async def test_a_tenant_has_half_of_the_look_ups_that_others_leave(monkeypatch) -> None:
    go = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: go.wait(10) and [])
    monkeypatch.setattr(dial, "MOST_LOOKUPS", 8)

    def look_up(tenant: str) -> asyncio.Future[str]:
        return asyncio.ensure_future(resolve(parse_url("http://slow.test/"), (), tenant))

    several = [look_up("a") for _ in range(5)] + [look_up("b") for _ in range(3)] + [look_up("")]
    await asyncio.sleep(0)
    assert [place for place, each in enumerate(several) if each.done()] == [4, 7]
    go.set()
    await asyncio.gather(*several, return_exceptions=True)


async def test_threads_that_cannot_be_had_are_not_counted(monkeypatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = Threads("x")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        for _ in range(3):
            with pytest.raises(BusyError):
                await threads.run(int, 2)
    assert await threads.run(int, 2) == 0


# ---- pages -----------------------------------------------------------------------------------


async def test_tags_of_a_page_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(page, "MOST_TAGS", 100)
    body = b"<p>Begin</p>" + b"<a href=x>" * 98 + b"<p>End"
    assert read(body, "text/html", "http://a.test/").lines == ["Begin", "", page.LONGER]


@pytest.mark.parametrize("found", [[[]] * 200, [[[[[]]]]] * 40])
async def test_a_search_service_that_sends_many_values_has_failed(found, monkeypatch) -> None:
    monkeypatch.setattr(search, "MOST_VALUES", 100)
    async with Site() as site:
        site.found = found
        model = await Model(web(site)).begin()
        assert "does not answer" in await model.refused("search", query="x")


async def test_tenants_take_turns_at_the_pages_that_are_read(monkeypatch) -> None:
    order: list[str] = []

    def slowly(body: bytes, kind: str, url: str, **options: bool) -> page.Page:
        order.append(url[-1])
        time.sleep(0.02)
        return page.Page("t", ["x"])

    monkeypatch.setattr("dragoman.tools.web.read", slowly)
    pages = {f"/{name}": "<p>x" for name in "ab"}
    async with Site(pages) as site:
        tool = web(site)
        many = [await Model(tool, caller=Caller("a")).begin() for _ in range(6)]
        other = await Model(tool, caller=Caller("b")).begin()
        opened = [asyncio.ensure_future(each.shown("open", id=f"{site.base}/a")) for each in many]
        while not order:
            await asyncio.sleep(0.001)
        await other.shown("open", id=f"{site.base}/b")
        assert order.index("b") <= 3
        await asyncio.gather(*opened)


async def test_a_page_whose_client_left_is_waited_for(monkeypatch) -> None:
    reading = most = 0

    def slowly(body: bytes, kind: str, url: str, **options: bool) -> page.Page:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        time.sleep(0.03)
        reading -= 1
        return page.Page("t", ["x"])

    monkeypatch.setattr("dragoman.tools.web.read", slowly)
    async with Site({"/a": "<p>x"}) as site:
        tool = web(site)
        for _ in range(4):
            model = await Model(tool, caller=Caller("a")).begin()
            opened = asyncio.ensure_future(model.shown("open", id=f"{site.base}/a"))
            while not reading:
                await asyncio.sleep(0.001)
            opened.cancel()
            await asyncio.wait([opened])
        other = await Model(tool, caller=Caller("b")).begin()
        await other.shown("open", id=f"{site.base}/a")
    assert most == 1


# ---- calls -----------------------------------------------------------------------------------


def attribute(kind: int, value: bytes) -> bytes:
    """A binding request with one attribute (RFC 8489, 5 and 14)."""
    data = struct.pack("!HH", kind, len(value)) + value + bytes(-len(value) % 4)
    return struct.pack("!HHI12s", 1, len(data), 0x2112A442, b"transaction.") + data


async def test_datagrams_of_anyone_end_no_call_and_are_not_logged(monkeypatch, caplog) -> None:
    on_loopback(monkeypatch)
    async with calling(Stub(*saying("Hello")), voiced=False, audio=False) as (app, phone):
        await phone.dial()
        await phone.until("session.created")
        described = phone.peer.remoteDescription.sdp.splitlines()
        places = [line.split() for line in described if line.startswith("a=candidate:")]
        port = next(int(each[5]) for each in places if each[4] == "127.0.0.1")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for data in (b"", b"\x80", b"\x80\x6f" + bytes(9_000), b"\x80\xc8" + bytes(2_100)):
                stranger.sendto(data, ("127.0.0.1", port))
            for kind in (0x24, 0x8022, 0x8028, 0x8029, 0x802A):  # numbers, and a text
                stranger.sendto(attribute(kind, b"\xff"), ("127.0.0.1", port))
            (call,) = app._realtime.calls.values()
            ice = call.line.peer._connection.sctp.transport.transport._connection
            name = f"{ice.local_username}:{ice.remote_username}"
            message = Message(Method.BINDING, Class.REQUEST, attributes={"USERNAME": name})
            message.add_message_integrity(ice.local_password.encode())
            stranger.sendto(bytes(message), ("127.0.0.1", port))  # without its priority
            await asyncio.sleep(0.05)
        await phone.say(USER, RESPOND)
        assert (await phone.until("response.done"))["response"]["status"] == "completed"
    assert "Traceback" not in caplog.text


def chunk(kind: int, body: bytes, flags: int = 0) -> bytes:
    """One of SCTP (RFC 9260, 3.2)."""
    return bytes([kind, flags]) + (4 + len(body)).to_bytes(2, "big") + body


MANY = [
    b"".join(number.to_bytes(2, "big") * 2 for number in range(at, at + 250))
    for at in range(0, 1_250, 250)
]
"""Streams, as a peer names those of which it has given up messages (RFC 3758)."""


@pytest.mark.parametrize(
    "sent",
    [
        [chunk(4, b"\0\1\0\0")],  # a parameter without a length: an endless loop
        [chunk(3, bytes(8) + b"\0\x40\0\0" + b"\0\1\xff\xff" * 64)],  # 4 million numbers
        [chunk(4, b"\0\1\0\4") * 65],
        [chunk(130, b"\0\x0d\0\x11" + bytes(13))],  # half of a number
        [chunk(0, b"TSN." + b"\0\1\0\0\0\0\0\x33" + b"\xff", 7)],  # text that is no UTF-8
        [chunk(0, b"TSN." + b"\3\x09\0\0\0\0\0\x32" + b"\2", 7)],  # of no channel
        [chunk(192, b"TSN." + streams) for streams in (*MANY, b"")],
    ],
)
async def test_a_peer_that_breaks_a_protocol_ends_its_call(sent, monkeypatch, caplog) -> None:
    on_loopback(monkeypatch)
    async with calling(voiced=False, audio=False) as (app, phone):
        await phone.dial()
        await phone.until("session.created")
        association = phone.peer.sctp
        for number, data in enumerate(sent):
            tsn = (association._local_tsn + number) % 2**32
            await association._send_chunk(data.replace(b"TSN.", tsn.to_bytes(4, "big")))
        async with asyncio.timeout(5):
            while app._realtime.calls:
                await asyncio.sleep(0.005)
    assert "Traceback" not in caplog.text


async def test_a_message_without_end_ends_a_call(monkeypatch) -> None:
    on_loopback(monkeypatch)
    async with calling(voiced=False, audio=False) as (app, phone):
        await phone.dial()
        await phone.until("session.created")
        association = phone.peer.sctp
        for number in range(0, 1_100, 50):
            chunks = b""
            for tsn in range(association._local_tsn + number, association._local_tsn + number + 50):
                body = (tsn % 2**32).to_bytes(4, "big") + b"\0\1\0\0\0\0\0\x33x"
                chunks += chunk(0, body, 4) + bytes(3)
            await association._send_chunk(chunks)
            await asyncio.sleep(0.001)
        async with asyncio.timeout(5):
            while app._realtime.calls:
                await asyncio.sleep(0.005)


async def test_channels_that_are_opened_and_reset_are_bounded(monkeypatch) -> None:
    on_loopback(monkeypatch)
    async with calling(voiced=False, audio=False) as (app, phone):
        await phone.dial()
        await phone.until("session.created")
        (call,) = app._realtime.calls.values()
        association = call.line.peer._connection.sctp
        assert len(association._data_channels) == 1
        association._data_channels |= dict.fromkeys(range(100, 1_200))
        with monkeypatch.context() as patch:
            patch.setattr(association, "_data_channel_closed", association._data_channels.pop)
            await phone.say({"type": "x"})
            async with asyncio.timeout(5):
                while app._realtime.calls:
                    await asyncio.sleep(0.005)


async def test_sound_is_not_sent_again_and_a_client_is_at_few_addresses(monkeypatch) -> None:
    on_loopback(monkeypatch)
    async with calling() as (app, phone):
        await phone.dial()
        await phone.until("session.created")
        (call,) = app._realtime.calls.values()
        connection = call.line.peer._connection
        (transport,) = {each.receiver.transport.transport for each in connection.getTransceivers()}
        ice, sent = transport._connection, list[bytes]()
        message = Message(Method.BINDING, Class.REQUEST, attributes={"PRIORITY": 1})
        for port in range(20_000, 20_200):
            ice.check_incoming(message, ("127.0.0.1", port), ice._protocols[0])
        assert len(ice._remote_candidates) <= webrtc.MAX_PLACES + 1  # one is our placeholder
        (sender,) = connection.getSenders()
        sender._RTCRtpSender__rtp_history[7] = RtpPacket(96, sequence_number=7)

        async def send(data: bytes) -> None:
            sent.append(data)

        with monkeypatch.context() as patch:
            patch.setattr(sender.transport, "_send_rtp", send)
            await sender._handle_rtcp_packet(RtcpRtpfbPacket(1, 0, 0, [7] * 5_000))
        assert sent == []
        # Datagrams that come faster than they are taken are dropped, like those of a full socket.
        for _ in range(1_000):
            ice.data_received(b"\0", 1)
        assert ice._queue.qsize() <= webrtc.MAX_UNHANDLED


async def test_sound_that_comes_faster_than_it_is_decoded_is_dropped(monkeypatch) -> None:
    on_loopback(monkeypatch)
    decoded: list[object] = []

    class Slow:
        def decode(self, frame: object) -> list[object]:
            decoded.append(frame)
            time.sleep(0.001)
            return []

    monkeypatch.setattr(rtcrtpreceiver, "get_decoder", lambda codec: Slow())
    async with calling() as (app, phone):
        await phone.dial()
        await phone.until("session.created")
        (call,) = app._realtime.calls.values()
        (receiver,) = call.line.peer._connection.getReceivers()
        route, packet = receiver.transport._rtp_router.route_rtp, RtpPacket(96, ssrc=7)
        assert route(packet) is receiver
        for _ in range(2_000):
            receiver._RTCRtpReceiver__decoder_queue.put((Codec("audio/opus", 48_000), b""))
        assert route(packet) is None
        # The end of a call does not wait for what is left.
        receiver._handle_disconnect()
        assert len(decoded) < 1_000


async def test_commands_that_wait_are_bounded_though_they_are_empty(monkeypatch) -> None:
    on_loopback(monkeypatch)
    async with calling(voiced=False, audio=False) as (app, phone):
        await phone.dial()
        await phone.until("session.created")
        (call,) = app._realtime.calls.values()
        monkeypatch.setattr(calls, "MAX_UNREAD", 1_000)
        for _ in range(20):
            call.line.received("")
        assert (await phone.until("error"))["error"]["code"] == "request_too_large"


async def test_all_records_of_a_datagram_are_read(monkeypatch) -> None:
    on_loopback(monkeypatch)
    async with calling(voiced=False, audio=False) as (app, phone):
        await phone.dial()
        await phone.until("session.created")
        (call,) = app._realtime.calls.values()
        server, datagrams = call.line.peer._connection.sctp, list[int]()
        handle = server._handle_data

        async def counted(data: bytes) -> None:
            datagrams.append(server.transport._RTCDtlsTransport__rx_packets)
            await handle(data)

        monkeypatch.setattr(server, "_handle_data", counted)
        association, dtls, records = phone.peer.sctp, phone.peer.sctp.transport, b""

        async def gather(data: bytes) -> None:
            nonlocal records
            dtls._ssl.send(data)
            records += dtls._ssl.bio_read(1_500)

        with monkeypatch.context() as patch:
            patch.setattr(dtls, "_send_data", gather)
            for number in range(5):
                tsn = (association._local_tsn + number) % 2**32
                body = tsn.to_bytes(4, "big") + b"\0\1\0\0\0\0\0\x33" + b"{}"
                await association._send_chunk(chunk(0, body, 7) + b"\0\0")
        await dtls.transport._send(records)
        for _ in range(5):
            await phone.until("error")
        assert Counter(datagrams).most_common(1)[0][1] == 5


@pytest.mark.parametrize(
    ("old", "new"), [("a=fingerprint:", "a=x:"), ("a=sctp-port:5000", "a=sctp-port:99999")]
)
async def test_an_offer_that_cannot_be_connected_ends_its_call(
    old, new, monkeypatch, caplog
) -> None:
    on_loopback(monkeypatch)
    async with calling(voiced=False, audio=False) as (app, phone):
        offer = (await phone.offer()).replace(old, new)
        headers = {"content-type": "application/sdp"}
        answer = await phone.post(f"{CALLS}?model=stub", offer, **headers)
        await phone.take(answer.text)
        async with asyncio.timeout(10):
            while app._realtime.calls:
                await asyncio.sleep(0.005)
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_sound_that_cannot_be_decoded_is_not_logged(monkeypatch, caplog) -> None:
    on_loopback(monkeypatch)
    async with calling() as (app, phone):
        await phone.dial()
        await phone.until("session.created")
        (call,) = app._realtime.calls.values()
        (receiver,) = call.line.peer._connection.getReceivers()
        frame = JitterFrame(b"\xff" * 4, 0)
        receiver._RTCRtpReceiver__decoder_queue.put((Codec("audio/opus", 48_000), frame))
        async with asyncio.timeout(10):
            while not receiver._RTCRtpReceiver__decoder_error.is_set():
                await asyncio.sleep(0.005)
    assert "failed to decode" not in caplog.text


async def test_a_call_with_sound_whose_times_jump_ends(monkeypatch) -> None:
    on_loopback(monkeypatch)
    async with calling() as (app, phone):
        await phone.dial()
        await phone.until("session.created")
        (call,) = app._realtime.calls.values()
        (receiver,) = call.line.peer._connection.getReceivers()
        # Without its report the receiver would never end, nor would the call.
        far = RtcpReceiverInfo(1, 0, 0, 1, jitter=2**32, lsr=0, dlsr=0)
        await receiver._send_rtcp(RtcpRrPacket(ssrc=1, reports=[far]))


async def test_a_call_that_is_hung_up_while_it_connects_does_not_begin(monkeypatch) -> None:
    on_loopback(monkeypatch)
    real, shaken, go = RTCDtlsTransport._do_handshake, asyncio.Event(), asyncio.Event()

    async def handshake(self: RTCDtlsTransport) -> None:
        await real(self)
        if self is not phone.peer.sctp.transport:
            shaken.set()
            await go.wait()

    monkeypatch.setattr(RTCDtlsTransport, "_do_handshake", handshake)
    async with calling() as (app, phone):
        await phone.dial()
        await shaken.wait()
        (call,) = app._realtime.calls.values()
        (sender,) = call.line.peer._connection.getSenders()
        await phone.hang_up()
        while not (closed := call.line.peer._connection._RTCPeerConnection__isClosed):
            await asyncio.sleep(0.005)
        await closed
        go.set()
        await asyncio.sleep(0.05)
        assert not sender._RTCRtpSender__started


async def test_names_too_long_for_a_packet_keep_no_sound_from_being_played(
    monkeypatch, caplog
) -> None:
    on_loopback(monkeypatch)
    name = "m" * 300
    async with calling(Stub(*saying("Hello"))) as (_, phone):
        offer = (await phone.offer()).replace("a=mid:0", f"a=mid:{name}")
        offer = offer.replace("BUNDLE 0", f"BUNDLE {name}")
        headers = {"content-type": "application/sdp"}
        answer = await phone.post(f"{CALLS}?model=stub", offer, **headers)
        assert "a=extmap:" not in answer.text
        await phone.take(answer.text.replace(name, "0"))
        await phone.say(USER, RESPOND)
        async with asyncio.timeout(10):
            await phone.until("output_audio_buffer.stopped")
    assert "Traceback" not in caplog.text


async def test_what_is_sent_and_not_acknowledged_is_bounded(monkeypatch) -> None:
    acknowledged = chunk(3, bytes(12))
    webrtc.check_packet(bytes(12) + acknowledged, webrtc.MAX_ACKED)
    with pytest.raises(ConnectionError):
        webrtc.check_packet(bytes(12) + acknowledged * 2, webrtc.MAX_ACKED * 2 // 3)
    on_loopback(monkeypatch)
    async with calling(voiced=False, audio=False) as (app, phone):
        await phone.dial()
        await phone.until("session.created")
        (call,) = app._realtime.calls.values()
        monkeypatch.setattr(webrtc, "MAX_ACKED", 20)
        association = phone.peer.sctp
        first = association._last_received_tsn

        async def gaps() -> None:
            span = association._last_received_tsn - first
            body = first.to_bytes(4, "big") + b"\0\1\0\0" + b"\0\1\0\0" + b"\0\2"
            await association._send_chunk(chunk(3, body + max(span, 2).to_bytes(2, "big")))
            association._sack_needed = False

        monkeypatch.setattr(association, "_send_sack", gaps)
        async with asyncio.timeout(20):
            while app._realtime.calls:
                await phone.say({"type": "x"})
                await asyncio.sleep(0.005)
        assert len(call.line.peer._connection.sctp._sent_queue) < 100


async def test_calls_are_made_one_at_a_time(monkeypatch) -> None:
    on_loopback(monkeypatch)
    making, most, real = 0, 0, Peer.answer

    async def answer(self: Peer, offer: str, low: int) -> str:
        nonlocal making, most
        making += 1
        most = max(most, making)
        await asyncio.sleep(0)
        try:
            return await real(self, offer, low)
        finally:
            making -= 1

    monkeypatch.setattr(Peer, "answer", answer)
    async with calling(voiced=False, audio=False) as (_, phone):
        offer = await phone.offer()
        headers = {"content-type": "application/sdp"}
        path = f"{CALLS}?model=stub"
        answers = await asyncio.gather(*[phone.post(path, offer, **headers) for _ in range(4)])
        assert [each.status_code for each in answers] == [201] * 4
    assert most == 1
