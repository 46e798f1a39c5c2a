"""Connects one client by WebRTC (aiortc): a data channel for text, and Opus both ways.

A client is never sent a packet that has not sent one first: the candidates in its offer are left
out, so that no offer makes this server send to an address of its choice or ask for names on the
network. It finds us at our candidates, and is answered where it came from (RFC 8445, 7.3.1.3).
"""

from __future__ import annotations

import asyncio
import logging
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from dragoman.core.error import Fault, FaultError, bad_request, unsupported
from dragoman.core.sound import BYTES_PER_MS, RATE

FRAME_MS = 20
FRAME = FRAME_MS * BYTES_PER_MS
"""Bytes of sound in one packet."""
TRAIL = 5
"""Frames of silence behind sound: receivers wait for so many before they play one."""
CLOCK = 48_000
"""What the time of Opus counts in, whatever is encoded (RFC 7587, 4.1)."""
BIT_RATE = 32_000
"""Bits a second of what is sent: speech in one channel (RFC 7587, 3.1.1)."""
MAX_GAP_MS = 2_000
"""Silence that is inserted for packets that are lost, or were not sent because of DTX
(RFC 7587, 3.1.3)."""
LAST_WORDS = 1.0
"""Seconds that a client has to take what it is sent last."""
CLOSING = 5.0
"""Seconds that aiortc has to close a connection: another waits for ever for one that was cancelled
half way, as all tasks are when a loop ends."""
LATE = 0.2
"""Seconds that playing may be late; after more of them it does not catch up."""
MISSING = Fault(
    "unsupported",
    "This server takes no WebRTC calls: pip install '.[webrtc]' in its checkout, or open a "
    "WebSocket (GET /v1/realtime).",
    "server",
)
MAX_LINES = 300
"""Lines of an offer, without candidates: browsers write about a hundred, and aiortc compares each
source, format and feedback with all others."""
MAX_DATAGRAM = 1_500
"""Bytes of a datagram: what a network carries. libsrtp takes 2,048, and aiortc at least one."""
MAX_SOURCES = 8
"""Sources of a call (SSRC): aiortc remembers each, and fails where a report has more than 31."""
MAX_PLACES = 64
"""Addresses that a client is at: aioice sorts them, and sends to each."""
MAX_UNHANDLED = 256
"""Datagrams that wait for their turn."""
MAX_CHUNKS = 64
"""Chunks of SCTP in one datagram."""
MAX_ACKED = 10_000
"""Chunks that the acknowledgements in a datagram are compared with: those that their gaps span, and
for each acknowledgement those that were sent and are not acknowledged without a gap."""
MAX_WAITING = 1_000
"""Chunks of messages that are not whole, chunks behind a loss, streams and channels: aiortc looks
at most of them for each chunk. The window it grants, 1 MiB, has room for fewer of usual size."""
_LEFT_OUT = ("a=candidate:", "a=end-of-candidates", "a=extmap:")
"""Lines of an offer that are not read. Packets of sound have no header extensions: one stream needs
none, and aiortc stops sending where the client's names or numbers do not fit into them."""
_OPUS = re.compile(r"a=rtpmap:\d+ opus/48000/2\s*", re.IGNORECASE)


class PeerListener(Protocol):
    """Callbacks for a client's messages and sound, and the source of its sound; run on the loop."""

    def connected(self) -> None:
        """ICE and DTLS are complete: the client is the one that made the offer."""
        ...

    def received(self, text: str | bytes) -> None:
        """Called with a message of the data channel."""
        ...

    def drained(self) -> None:
        """The send buffer is below its low-water mark."""
        ...

    def refused(self, fault: Fault) -> None:
        """The client takes no message as long as one that was sent before there was a channel."""
        ...

    def audio_received(self, audio: bytes) -> None:
        """Called with sound: PCM16, 24 kHz."""
        ...

    def next_frame(self) -> bytes | None:
        """The next `FRAME` bytes to play, or None; then it is called again after `play`."""
        ...

    def ended(self) -> None:
        """The client has hung up or the connection is lost. Nothing else is called after that."""
        ...


def available() -> bool:
    """Whether what this needs is installed."""
    return find_spec("aiortc") is not None


def read_offer(sdp: str) -> tuple[list[str], list[str]]:
    """The lines of an offer without its candidates, and the kinds of media in it. Raises FaultError
    for one that asks for what is not here."""
    lines = [line for line in sdp.splitlines() if not line.startswith(_LEFT_OUT)]
    if len(lines) > MAX_LINES:
        problem = f"has {len(lines)} lines, and may have {MAX_LINES}"
        raise FaultError(bad_request(problem, "sdp"))
    kinds = [line[2:].partition(" ")[0] for line in lines if line.startswith("m=")]
    if lines[:1] != ["v=0"] or not kinds:
        raise FaultError(bad_request("is no session description (RFC 8866)", "sdp"))
    if not {*kinds} <= {"audio", "application"} or len({*kinds}) < len(kinds):
        problem = "may offer one audio track and one data channel, and nothing else"
        raise FaultError(unsupported(problem, "sdp"))
    mids = [line.removeprefix("a=mid:") for line in lines if line.startswith("a=mid:")]
    groups = [line.split()[1:] for line in lines if line.startswith("a=group:BUNDLE")]
    bundled = [mid for group in groups for mid in group]
    if len({*mids}) != len(kinds) or not {*bundled} <= {*mids} or len({*bundled}) < len(bundled):
        # aiortc would raise in a task of its own.
        raise FaultError(bad_request("has a medium without a name, or names one it has not", "sdp"))
    if "audio" in kinds and not any(map(_OPUS.fullmatch, lines)):
        raise FaultError(unsupported("offers no Opus (opus/48000/2)", "sdp"))
    return lines, kinds


class Peer:
    """One connection. `addresses` are those of this machine where it is awaited, by UDP; empty
    stands for all that it has."""

    def __init__(self, listener: PeerListener, addresses: tuple[str, ...]) -> None:
        if not available():
            raise FaultError(MISSING)
        aiortc = import_module("aiortc")
        self._listener: PeerListener | None = listener
        self._addresses = addresses
        # An empty list: without one aiortc asks a STUN server of Google's.
        self._connection: Any = aiortc.RTCPeerConnection(aiortc.RTCConfiguration(iceServers=[]))
        self._connection.on("connectionstatechange", self._state_changed)
        self._connection.on("datachannel", self._channel_made)
        self._connection.on("track", self._track_made)
        self._connect = self._connection._RTCPeerConnection__connect
        self._connection._RTCPeerConnection__connect = self._connect_or_end
        # A line for each packet of sound that cannot be decoded would fill a disk.
        logging.getLogger("aiortc.rtcrtpreceiver").setLevel(logging.ERROR)
        self._connecting = set[Any]()
        self._answered = False
        self._channel: Any = None
        self._early: list[str] | None = []  # what is sent before there is a channel; None for none
        self._early_size = 0
        self.plays = False
        """Whether the client wants to hear anything."""
        self._hearing: asyncio.Task[None] | None = None
        self._wakeup = asyncio.Event()

    async def answer(self, offer: str, low: int) -> str:
        """The answer to an offer; `drained` is called below `low` bytes. Raises FaultError for an
        offer that makes no sense."""
        lines, kinds = read_offer(offer)
        if "application" not in kinds:
            self._early = None
        self._low = low
        aiortc, connection = import_module("aiortc"), self._connection
        addresses = self._addresses or tuple(_all_addresses())
        # ICE fails at once without remote candidates; our own discard port is a placeholder.
        placeholder = f"\r\na=candidate:0 1 udp 1 {addresses[0]} 9 typ host"
        lines = [line + placeholder if line.startswith("m=") else line for line in lines]
        sdp = "\r\n".join([*lines, ""])
        try:
            if "audio" in kinds:
                aiortc.MediaStreamTrack.register(Sound)  # it is known only now
                connection.addTrack(Sound(self._listener, self._wakeup))
                codecs = aiortc.RTCRtpSender.getCapabilities("audio").codecs
                opus = [codec for codec in codecs if codec.mimeType == "audio/opus"]
                connection.getTransceivers()[0].setCodecPreferences(opus)
            await connection.setRemoteDescription(aiortc.RTCSessionDescription(sdp, "offer"))
            for transport in self._transports():
                _awaited_at(transport.iceGatherer._connection, addresses)
            await connection.setLocalDescription(await connection.createAnswer())
            for transport in self._transports():
                for protocol in transport.iceGatherer._connection._protocols:
                    protocol.datagram_received = _dropping_odd(protocol.datagram_received)
            for transceiver in connection.getTransceivers():
                self.plays = transceiver.currentDirection in ("sendrecv", "sendonly")
        except Exception as error:  # aiortc raises errors of many kinds for an odd offer
            problem = f"cannot be answered: {type(error).__name__}: {error}"
            raise FaultError(bad_request(problem[:300], "sdp")) from error
        for transceiver in connection.getTransceivers():
            dtls = transceiver.receiver.transport
            _bound_sound(transceiver.receiver)
            _take_turns(dtls)
            # Sound is not sent again: the answer offers no NACK.
            transceiver.sender._retransmit = _ignored
        if connection.sctp:
            _bound_association(connection.sctp)
            if not connection.getTransceivers():  # else they share it
                _take_turns(connection.sctp.transport)
        self._answered = True
        if not any(each.iceGatherer.getLocalCandidates() for each in self._transports()):
            where = ", ".join(addresses)
            problem = (
                f"This server cannot await calls at {where}: set call_host to an address of it."
            )
            raise FaultError(Fault("internal", problem))
        return str(connection.localDescription.sdp)

    def send(self, text: str) -> int:
        """Send a message. The bytes that the client has not taken. Raises FaultError for a message
        that is longer than the client takes."""
        channel = self._channel
        if channel is None and self._early is not None:
            self._early.append(text)
            self._early_size += len(text)
            return self._early_size
        if channel is None or channel.readyState != "open":
            return 0  # the client has not asked for it, or has closed it
        try:
            channel.send(text)
        except ValueError as error:
            problem = f"The client takes no message of {len(text)} bytes by its data channel"
            raise FaultError(Fault("too_large", f"{problem}: {error}.", "client")) from error
        return int(channel.bufferedAmount)

    def play(self) -> None:
        """Wake the track: there is a frame to play."""
        self._wakeup.set()

    async def close(self) -> None:
        """Close the connection, once what was sent is on its way; nothing is called any more."""
        self._listener = None
        if self._hearing is not None:
            self._hearing.cancel()
        patience = LAST_WORDS
        while self._channel is not None and self._channel.bufferedAmount and patience > 0:
            await asyncio.sleep(0.02)
            patience -= 0.02
        for task in self._connecting:  # else it would start to send and receive after the end
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        closing = asyncio.ensure_future(self._connection.close())
        await asyncio.wait((closing,), timeout=CLOSING)  # which does not cancel it
        closing.cancel()
        for problem in await asyncio.gather(closing, return_exceptions=True):
            # An odd offer left it half made, without sockets: it cannot be closed.
            if self._answered and isinstance(problem, Exception):
                raise problem

    def _transports(self) -> list[Any]:
        connection = self._connection
        found = [each.receiver.transport.transport for each in connection.getTransceivers()]
        return found + ([connection.sctp.transport.transport] if connection.sctp else [])

    def _state_changed(self) -> None:
        state, listener = self._connection.connectionState, self._listener
        if listener is not None and state == "connected":
            listener.connected()
        elif state in ("failed", "closed"):
            self._ended()

    def _ended(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.ended()

    async def _connect_or_end(self) -> None:
        """Have an odd offer end the call: aiortc would end its task with a traceback."""
        self._connecting.add(asyncio.current_task())
        try:
            await self._connect()
        except Exception:
            self._ended()

    def _channel_made(self, channel: Any) -> None:
        if self._channel is not None:
            channel.close()  # one is enough
            return
        self._channel = channel
        channel.bufferedAmountLowThreshold = self._low
        channel.on("bufferedamountlow", self._drained)
        channel.on("message", self._received)
        early, self._early = self._early or [], None
        for text in early:
            try:
                self.send(text)
            except FaultError as problem:  # raised here, it would end aiortc's connection
                if self._listener is not None:
                    self._listener.refused(problem.fault)

    def _received(self, message: str | bytes) -> None:
        if self._listener is not None:
            self._listener.received(message)

    def _drained(self) -> None:
        if self._listener is not None:
            self._listener.drained()

    def _track_made(self, track: Any) -> None:
        self._hearing = asyncio.get_running_loop().create_task(self._hear(track))

    async def _hear(self, track: Any) -> None:
        """Hand on what the track brings, with silence where it has gaps."""
        av, aiortc = import_module("av"), import_module("aiortc")
        convert = av.AudioResampler(format="s16", layout="mono", rate=RATE)
        due = None  # the time of the next frame, of `CLOCK`
        with suppress(aiortc.mediastreams.MediaStreamError):  # the track has ended
            while True:
                frame = await track.recv()
                gap = 0 if due is None else (frame.pts - due) * 1_000 // CLOCK
                due = frame.pts + frame.samples * CLOCK // frame.sample_rate
                frame.pts = None  # the resampler would fill gaps too, however long
                audio = b"".join(
                    [bytes(each.planes[0])[: 2 * each.samples] for each in convert.resample(frame)]
                )
                if gap > 0:
                    audio = bytes(min(gap, MAX_GAP_MS) * BYTES_PER_MS) + audio
                if self._listener is not None:
                    self._listener.audio_received(audio)
                await asyncio.sleep(0)  # others first: what waits is received without a pause


def _all_addresses() -> list[str]:
    addresses: list[str] = import_module("aioice").ice.get_host_addresses(True, True)
    return [*dict.fromkeys(("127.0.0.1", *addresses))]


def _awaited_at(connection: Any, here: tuple[str, ...]) -> None:
    """Have an ICE connection use these addresses: aioice would take all of the machine's but
    loopback. And have it drop datagrams at which aiortc ends a call: anyone can send them."""
    received, waiting = connection.data_received, connection._queue
    connection.data_received = lambda data, component: (
        received(data, component)
        if 0 < len(data) <= MAX_DATAGRAM and waiting.qsize() < MAX_UNHANDLED
        else None
    )
    check, places = connection.check_incoming, set[Any]()

    def bounded(message: Any, address: Any, protocol: Any) -> None:
        if len(places) < MAX_PLACES or address in places:
            places.add(address)
            check(message, address, protocol)

    connection.check_incoming = bounded
    gather = connection.get_component_candidates
    connection.get_component_candidates = lambda component, addresses: gather(
        component=component, addresses=[*here]
    )


def _dropping_odd(received: Any) -> Any:
    """Have what is no STUN message, or lacks a part, be dropped: anyone can send it, and asyncio
    would log each with a traceback."""

    def dropping(data: bytes, address: Any) -> None:
        with suppress(struct.error, KeyError):
            received(data, address)

    return dropping


def _bound_sound(receiver: Any) -> None:
    """Have packets of more sources, or that come faster than they are decoded, go nowhere, and
    reports that cannot be written not sent."""
    router, encoded = receiver.transport._rtp_router, receiver._RTCRtpReceiver__decoder_queue
    route, known = router.route_rtp, set[int]()
    stop, send = receiver._RTCRtpReceiver__stop_decoder, receiver._send_rtcp

    def bounded(packet: Any) -> Any:
        if len(known) < MAX_SOURCES:
            known.add(packet.ssrc)
        waiting = encoded.qsize() + receiver.track._queue.qsize()
        return route(packet) if packet.ssrc in known and waiting < MAX_UNHANDLED else None

    def stop_now() -> None:
        while not encoded.empty():  # aiortc blocks the loop until all are decoded
            encoded.get_nowait()
        stop()

    async def report(packet: Any) -> None:
        with suppress(struct.error):  # the jitter of times that jump: the call would never end
            await send(packet)

    router.route_rtp = bounded
    receiver._send_rtcp = report
    receiver._RTCRtpReceiver__stop_decoder = stop_now


def _take_turns(dtls: Any) -> None:
    """Have others run between datagrams, and have one that breaks a protocol end the call: aiortc
    would end its task with a traceback. It reads one record of each, and would store the others."""
    receive, ssl = dtls._recv_next, import_module("OpenSSL.SSL")

    async def receive_one() -> None:
        try:
            await receive()
            with suppress(ssl.WantReadError):
                while dtls.encrypted and (data := dtls._ssl.recv(MAX_DATAGRAM)):
                    if dtls._data_receiver is not None:
                        await dtls._data_receiver._handle_data(data)
        except ConnectionError:
            raise
        except Exception as error:
            raise ConnectionError from error
        await asyncio.sleep(0)

    dtls._recv_next = receive_one


async def _ignored(sequence_number: int) -> None:
    """No-op."""


def _bound_association(sctp: Any) -> None:
    """Have a peer end the call that sends what takes aiortc long, or forever."""
    handle = sctp._handle_data

    async def bounded(data: bytes) -> None:
        streams = sctp._inbound_streams.values()
        # Those behind a loss are in both.
        waiting = max(sum(len(each.reassembly) for each in streams), len(sctp._sack_misordered))
        waiting += len(streams) + len(sctp._data_channels)
        if waiting > MAX_WAITING:
            raise ConnectionError
        check_packet(data, len(sctp._sent_queue))
        await handle(data)

    sctp._handle_data = bounded
    # Nothing is given up, whatever the peer's channel asks for: each time takes a search.
    sctp._maybe_abandon = lambda chunk: False


_SACK = 3
_PARAMETERS = {1: 20, 2: 20, 4: 4, 5: 4, 6: 4, 9: 4, 130: 4}
"""The kinds of chunks that have parameters, and where those begin."""


def check_packet(data: bytes, sent: int = 0) -> None:
    """Raise ConnectionError for a packet of SCTP that takes aiortc long, or forever (RFC 9260, 3).
    `sent` chunks are compared with each acknowledgement.

    >>> check_packet(bytes(12) + b"\\x04\\x00\\x00\\x08" + b"\\x00\\x01\\x00\\x04")
    >>> check_packet(bytes(12) + b"\\x04\\x00\\x00\\x08" + b"\\x00\\x01\\x00\\x00")
    Traceback (most recent call last):
    ConnectionError
    """
    chunks, acked = [*_parts(data, 12)], 0
    for chunk in chunks:
        if (begin := _PARAMETERS.get(chunk[0])) is not None:
            for _ in _parts(chunk, begin):
                pass
        elif chunk[0] == _SACK:
            gaps = chunk[16:][: 4 * int.from_bytes(chunk[12:14], "big")]
            acked += sent + sum(
                max(end - start, 0)
                for start, end in struct.iter_unpack("!HH", gaps[: len(gaps) & ~3])
            )
    if len(chunks) > MAX_CHUNKS or acked > MAX_ACKED:
        raise ConnectionError


def _parts(data: bytes, at: int) -> Iterator[bytes]:
    """The chunks of a packet, or the parameters of a chunk."""
    while at + 4 <= len(data):
        size = int.from_bytes(data[at + 2 : at + 4], "big")
        if size < 4:
            raise ConnectionError
        yield data[at : at + size]
        at += size + -size % 4


class Sound:
    """The outgoing audio track: it encodes frames as they are due, and sends nothing while there
    is nothing to play."""

    kind = "audio"
    id = "sound"

    def __init__(self, listener: PeerListener | None, wakeup: asyncio.Event) -> None:
        self._listener = listener
        self._wakeup = wakeup
        self._av = import_module("av")
        self._codec = codec = self._av.CodecContext.create("libopus", "w")
        codec.bit_rate, codec.sample_rate = BIT_RATE, RATE
        codec.format, codec.layout = "s16", "mono"
        codec.time_base = Fraction(1, RATE)
        codec.options = {"application": "voip"}
        self._begun = self._due = 0.0
        self._trail = 0  # silent frames that follow
        self._samples = 0  # that were encoded

    async def recv(self) -> Any:
        """The next packet, when it is due."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._due - loop.time())
        pcm = await self._next()
        now = loop.time()
        self._begun = self._begun or now
        self._due = (self._due if now - self._due < LATE else now) + FRAME_MS / 1_000
        frame = self._av.AudioFrame(format="s16", layout="mono", samples=len(pcm) // 2)
        frame.planes[0].update(pcm)
        frame.sample_rate, frame.time_base = RATE, self._codec.time_base
        frame.pts, self._samples = self._samples, self._samples + len(pcm) // 2
        (encoded,) = self._codec.encode(frame)
        packet = self._av.packet.Packet(bytes(encoded))
        # After a pause the time is that of the clock: receivers buffer by it.
        packet.pts = round((self._due - self._begun) * CLOCK)
        packet.time_base = Fraction(1, CLOCK)
        return packet

    async def _next(self) -> bytes:
        while self._listener is None or (pcm := self._listener.next_frame()) is None:
            if self._trail:
                self._trail -= 1
                return bytes(FRAME)
            self._wakeup.clear()
            await self._wakeup.wait()
        self._trail = TRAIL
        return pcm

    def stop(self) -> None:
        """The connection is closed."""
