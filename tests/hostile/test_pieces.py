"""What is long is worked on in pieces, or in threads: the others do not wait for it."""

from __future__ import annotations

import asyncio
import json
import threading
from base64 import b64decode, b64encode
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from websockets.asyncio.client import connect
from websockets.exceptions import PayloadTooBig, ProtocolError
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from dragoman.core.conversation import with_sounds
from dragoman.core.event import Delta, Finished, ItemDone, PartAdded, PartDone, Progress
from dragoman.core.interfaces import Caller
from dragoman.core.item import (
    Annotation,
    Audio,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    Message,
    Reasoning,
    Refusal,
    Text,
    Thought,
    Token,
    Unknown,
)
from dragoman.core.request import Request
from dragoman.core.response import Response
from dragoman.core.session import Session
from dragoman.core.session_values import (
    Answer,
    Append,
    Commit,
    Generate,
    Respond,
    SessionConfig,
    Transcribe,
)
from dragoman.core.sound import wav
from dragoman.engines import remote
from dragoman.engines import session as sessions
from dragoman.engines.remote import Remote
from dragoman.server import frames
from dragoman.server.app import App
from dragoman.server.channel import Later
from dragoman.server.frames import READS, Fragments, SocketProtocol
from dragoman.server.limits import LETTERS, values_in
from dragoman.server.responder import MANY_TOKENS, Stream
from dragoman.server.settings import Settings
from dragoman.stores import sql
from dragoman.stores.base import Conversation, Record
from dragoman.stores.memory import MemoryStore
from dragoman.stores.serialize import pack, pack_items
from dragoman.voice.studio import Studio
from dragoman.wire import json as wire_json
from dragoman.wire.pieces import LONG, long_size
from dragoman.wire.protocol import STANDARD
from dragoman.wire.realtime.events import encode_events
from dragoman.wire.registry import WIRES
from dragoman.wire.responses.response import decode_items
from tests.engines.receiving import Receiver
from tests.mock import chunk, mock, stream
from tests.server.stubs import FINISHED, OPENING, Stub, served
from tests.voice.fakes import Speaker

MANUAL = SessionConfig(model="m", turn_detection=None)


# ---- frames that come ---------------------------------------------------------------------------


def parser(most: int, *, cut: bool) -> ServerProtocol:
    made = ServerProtocol(max_size=most)
    made.state = State.OPEN
    made.parser.close()
    made.parser = super(ServerProtocol, made).parse()
    next(made.parser)
    if cut:
        cast(Any, made.reader).read_exact = Fragments(made.reader, most)
    return made


def parsed(protocol: ServerProtocol, stream: bytes, step: int) -> list[Frame]:
    found: list[Frame] = []
    for at in range(0, len(stream), step):
        protocol.receive_data(stream[at : at + step])
        read = protocol.reader.read_exact
        while isinstance(read, Fragments) and read.left <= 0:  # as the connection does it
            read.left = READS
            protocol.receive_data(b"")
        found += [event for event in protocol.events_received() if isinstance(event, Frame)]
        if protocol.parser_exc is not None:
            break
    return found


def messages(found: list[Frame]) -> list[tuple[Opcode, bytes]]:
    """Messages, and control frames where they stand among them."""
    whole: list[tuple[Opcode, bytes]] = []
    data, kind = b"", None
    for frame in found:
        if frame.opcode >= Opcode.CLOSE:
            whole.append((frame.opcode, bytes(frame.data)))
            continue
        kind = kind if frame.opcode is Opcode.CONT else frame.opcode
        data += frame.data
        if frame.fin:
            assert kind is not None
            whole.append((kind, data))
            data, kind = b"", None
    return whole


ANY_FRAME = st.tuples(
    st.sampled_from([Opcode.TEXT, Opcode.BINARY, Opcode.CONT, Opcode.PING, Opcode.PONG]),
    st.integers(0, 3).map(lambda n: (0, 5, 126, 70_000)[n]),
    st.booleans(),
)


@given(st.lists(ANY_FRAME, max_size=5), st.sampled_from([1_000, 4_096, 70_001, 10**6]))
def test_long_frames_are_parsed_as_fragments_of_the_same_message(sent: Any, step: int) -> None:
    stream = b"".join(
        Frame(opcode, bytes(range(256)) * (size // 256) + bytes(size % 256), fin).serialize(
            mask=True
        )
        for opcode, size, fin in sent
        if opcode < Opcode.CLOSE or (size < 126 and fin)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "PIECE", 4_096)
        one, other = parser(100_000, cut=False), parser(100_000, cut=True)
        whole, cut = parsed(one, stream, step), parsed(other, stream, step)
    assert max([len(frame.data) for frame in cut], default=0) <= 4_096
    assert (one.parser_exc is None) == (other.parser_exc is None)
    if one.parser_exc is None:
        assert messages(cut) == messages(whole)


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        (b"\x81\xff" + (1 << 40).to_bytes(8, "big"), PayloadTooBig),
        (b"\xc1\xff" + (1 << 16).to_bytes(8, "big"), ProtocolError),  # a reserved bit
        (b"\x81\x7f" + (1 << 19).to_bytes(8, "big"), ProtocolError),  # without a mask
        (b"\x80\xff" + (1 << 19).to_bytes(8, "big"), ProtocolError),  # of no message
    ],
)
def test_a_head_that_makes_no_sense_is_refused(head: bytes, problem: type) -> None:
    protocol = parser(1 << 20, cut=True)
    parsed(protocol, head + b"mask" + bytes(1 << 19), 4_096)
    assert isinstance(protocol.parser_exc, problem)


def test_a_stream_that_ends_in_a_frame_is_an_end() -> None:
    protocol = parser(1 << 20, cut=True)
    parsed(protocol, b"\x81\xff" + (1 << 19).to_bytes(8, "big") + b"mask" + bytes(300_000), 4_096)
    protocol.receive_eof()
    assert isinstance(protocol.parser_exc, EOFError)


def test_a_message_in_fragments_is_not_put_together_again() -> None:
    protocol = cast(Any, object.__new__(SocketProtocol))
    protocol.queue, protocol.close_sent, protocol.read_paused = asyncio.Queue(), False, True
    protocol.curr_msg_data_type, protocol.frames = "bytes", [b"ab"]
    protocol.handle_cont(Frame(Opcode.CONT, b"cd", fin=False))
    collected = protocol.frames[0]
    protocol.handle_cont(Frame(Opcode.CONT, b"ef"))
    message = protocol.queue.get_nowait()
    assert message["bytes"] is collected
    assert collected == b"abcdef"


@pytest.mark.parametrize("count", [600, 20_000])
async def test_small_frames_of_a_client_are_parsed_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Of a hundred connections, too, which each have their turn in one of the loop."""
    answered: list[int] = []
    handle_events, handle_ping = SocketProtocol.handle_events, SocketProtocol.handle_ping

    def turn(self: SocketProtocol) -> None:
        answered.append(0)
        handle_events(self)

    def ping(self: SocketProtocol) -> None:
        answered[-1] += 1
        handle_ping(self)

    monkeypatch.setattr(SocketProtocol, "handle_events", turn)
    monkeypatch.setattr(SocketProtocol, "handle_ping", ping)
    async with (
        served(App(Stub(), Settings())) as port,
        connect(f"ws://127.0.0.1:{port}/v1/responses") as socket,
    ):
        socket.transport.write(Frame(Opcode.PING, b"").serialize(mask=True) * count)
        await (await socket.ping())  # all before it were answered
    assert sum(answered) == count + 1
    assert max(answered) <= READS // 3 + 1


async def test_nothing_is_read_while_small_messages_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """More would come with each that is taken, and be copied each time."""
    read_on: list[bool] = []
    receive = SocketProtocol.receive

    async def counted(self: SocketProtocol) -> Any:
        message = await receive(self)
        read_on.append(self.behind and self.transport.is_reading())
        return message

    monkeypatch.setattr(SocketProtocol, "receive", counted)
    async with (
        served(App(Stub(), Settings())) as port,
        connect(f"ws://127.0.0.1:{port}/v1/responses") as socket,
    ):
        socket.transport.write(Frame(Opcode.TEXT, b"1").serialize(mask=True) * 200)
        for _ in range(200):
            await socket.recv()
    assert read_on
    assert not any(read_on)


async def test_many_messages_of_one_read_are_all_answered() -> None:
    async with (
        served(App(Stub(), Settings())) as port,
        connect(f"ws://127.0.0.1:{port}/v1/realtime?model=stub") as socket,
    ):
        said = [json.dumps({"type": "no such", "event_id": f"e{n}"}).encode() for n in range(60)]
        socket.transport.write(b"".join(Frame(Opcode.TEXT, t).serialize(mask=True) for t in said))
        errors = []
        async with asyncio.timeout(10):
            while len(errors) < len(said):
                if (event := json.loads(await socket.recv()))["type"] == "error":
                    errors.append(event["error"]["event_id"])
    assert errors == [f"e{n}" for n in range(60)]


# ---- frames that go -----------------------------------------------------------------------------


def test_a_long_frame_is_not_copied_to_be_sent() -> None:
    protocol = cast(Any, object.__new__(SocketProtocol))
    protocol.conn, protocol.transport = parser(9, cut=False), Mock()
    long = b"x" * (frames.PIECE + 1)
    protocol.write_long(long)
    written = [call.args[0] for call in protocol.transport.write.call_args_list]
    assert written[-1] is long
    assert b"".join(written) == Frame(Opcode.TEXT, long).serialize(mask=False)
    protocol.conn.state = State.CLOSING
    with pytest.raises(ConnectionError):
        protocol.write_long(long)


@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize(("kind", "field"), [("text", "text"), ("audio", "transcript")])
async def test_long_items_are_encoded_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, kind, field, beta
) -> None:
    """And events keep their order."""
    where: list[bool] = []
    dump = wire_json.dump

    def noted(value: Any) -> bytes:
        data = dump(value)
        if len(data) > LONG:
            where.append(threading.current_thread() is threading.main_thread())
        return data

    monkeypatch.setattr(wire_json, "dump", noted)
    text = "\N{GRINNING FACE}" * (LONG + 1)
    part = {"type": f"input_{kind}", field: text}
    item = {"type": "message", "role": "user", "id": "a", "content": [part]}
    said = [
        {"type": "conversation.item.create", "item": item},
        {"type": "conversation.item.retrieve", "item_id": "a"},
        {"type": "input_audio_buffer.clear"},
    ]
    async with served(App(Stub(), Settings())) as port:
        url = f"ws://127.0.0.1:{port}/v1/realtime?model=stub"
        headers = {"openai-beta": "realtime=v1"} if beta else {}
        async with connect(url, max_size=None, additional_headers=headers) as socket:
            for event in said:
                await socket.send(json.dumps(event))
            kinds = []
            while not kinds or kinds[-1] != "input_audio_buffer.cleared":
                event = json.loads(await socket.recv())
                kinds.append(event["type"])
                if "item" in event:
                    assert event["item"]["content"][0][field] == text
    assert where == [False] * (2 if beta else 3)
    assert [kind for kind in kinds if "item" in kind] == [
        *(["conversation.item.created"] if beta else []),
        *([] if beta else ["conversation.item.added", "conversation.item.done"]),
        "conversation.item.retrieved",
    ]


def test_what_is_encoded_later_counts_before() -> None:
    assert len(Later(bytes, 7)) == 7


# ---- sound --------------------------------------------------------------------------------------


def test_committed_sound_is_not_copied() -> None:
    session = Session("1", MANUAL, transcribes=True)
    session.receive(Append(audio=bytes(10_000)))
    buffer = session._buffer
    session.receive(Commit())
    assert session.items.sound.get(("item_10001", 0)) is buffer
    (work,) = [each for each in session.work if isinstance(each, Transcribe)]
    assert work.audio is buffer
    session.receive(Append(audio=b"ab" * 5_000))
    session.receive(Commit())
    assert session.items.sound.get(("item_10002", 0)) == b"ab" * 5_000
    assert buffer == bytes(10_000)


def test_sound_without_a_transcript_is_not_encoded_by_the_rules() -> None:
    session, sound = Session("1", MANUAL), bytes(range(256)) * 8_000
    session.receive(Append(audio=sound))
    session.receive(Commit())
    session.receive(Respond())
    (work,) = [each for each in session.work if isinstance(each, Generate)]
    assert work.sounds == (sound,)
    assert work.size >= len(sound) * 4 // 3
    (item,) = with_sounds(work.request.items, work.sounds)
    assert isinstance(item, Message)
    (part,) = item.parts
    assert isinstance(part, Audio)
    assert b64decode(part.data or "") == wav(sound)


async def test_sound_without_a_transcript_is_encoded_and_asked_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, sound, where = Stub(), bytes(sessions.LARGE), list[threading.Thread]()

    def noted(*given: Any) -> Any:
        where.append(threading.current_thread())
        return with_sounds(*given)

    monkeypatch.setattr(sessions, "with_sounds", noted)
    async with served(App(engine, Settings())) as port:
        url = f"ws://127.0.0.1:{port}/v1/realtime?model=stub"
        async with connect(url, max_size=None) as socket:
            audio = {"input": {"turn_detection": None}}
            for event in (
                {"type": "session.update", "session": {"type": "realtime", "audio": audio}},
                {"type": "input_audio_buffer.append", "audio": b64encode(sound).decode()},
                {"type": "input_audio_buffer.commit"},
                {"type": "response.create"},
            ):
                await socket.send(json.dumps(event))
            while json.loads(await socket.recv())["type"] != "response.done":
                pass
    ((request, caller),) = engine.asked
    part = cast(Message, request.items[0]).parts[0]
    assert isinstance(part, Audio)
    assert b64decode(part.data or "") == wav(sound)
    assert caller.size > sessions.LARGE
    assert where != [threading.main_thread()]


def test_long_transcripts_are_encoded_in_pieces() -> None:
    part = Audio(format="pcm16", transcript="a" * (LONG + 1))
    done = Answer("r", "i", PartDone(0, 0, part))
    texts = [event for event in encode_events([done], str) if "_audio.done" not in event["type"]]
    assert [long_size(event) for event in texts] == [LONG + 1, LONG + 1]


@pytest.mark.parametrize("speaks", [False, True])
async def test_much_sound_of_a_model_is_delivered_a_second_in_each_turn_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, speaks
) -> None:
    sound, taken = bytes(range(256)) * 1_000, list[int]()
    heard = Delta(0, 0, "audio", b64encode(sound).decode())
    spoken = Message("assistant", (Audio(),), id="msg_0", status="completed")
    begun = (*OPENING[:2], PartAdded(0, 0, Audio(format="pcm16")))
    ended = (PartDone(0, 0, Audio(format="pcm16")), ItemDone(0, spoken), FINISHED)
    report = sessions.TurnSession.report

    def noted(self: Any, what: Any) -> None:
        events = getattr(what, "events", ())
        taken.append(sum(len(each.data) for each in events if isinstance(each, Delta)))
        report(self, what)

    monkeypatch.setattr(sessions.TurnSession, "report", noted)
    studio = Studio(Speaker(), None, "energy") if speaks else None
    service = App(Stub(*begun, heard, heard, *ended), Settings(), studio=studio)
    got, place = b"", "ws://127.0.0.1:{}/v1/realtime?model=stub"
    async with served(service) as port, connect(place.format(port)) as socket:
        await socket.send(json.dumps({"type": "response.create"}))
        while (event := json.loads(await socket.recv()))["type"] != "response.done":
            if event["type"] == "response.output_audio.delta":
                got += b64decode(event["delta"], validate=True)
    assert got == sound * 2
    assert max(taken) < len(sound) // 3


# ---- answers, requests and rows -----------------------------------------------------------------

FACES = "\N{GRINNING FACE}" * (LONG + 1)
TEXTS = {
    "text": Message("assistant", (Text(FACES),)),
    "plain text": Message("assistant", FACES),
    "refusal": Message("assistant", (Refusal(FACES),)),
    "reasoning": Reasoning((Thought(FACES),), extra={"messages": {"signature": "x"}}),
    "a call": CustomToolCall("c", "f", FACES),
}


@pytest.fixture
def one_piece(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The characters of texts that were encoded as JSON in one call."""
    found: list[int] = []
    encode = wire_json.encode

    def noted(value: Any) -> bytes:
        data = encode(value)  # raises TypeError where long texts are set apart
        found.append(len(data))
        return data

    monkeypatch.setattr(wire_json, "encode", noted)
    monkeypatch.setattr(wire_json, "_encoder", SimpleNamespace(encode=noted, encode_lines=None))
    return found


@pytest.mark.parametrize("item", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("name", ["chat", "messages", "responses"])
def test_a_long_text_of_an_answer_is_encoded_in_pieces(
    name: str, item: Any, one_piece: list[int]
) -> None:
    wire, asked = WIRES[name], Request(model="m", items=(Message("user", "Hi"),))
    response = Response(
        id="1", created_at=0, model="m", status="completed", output=(item,), reasons=("stop",)
    )
    body = wire.encode_response(response, asked, STANDARD)
    assert FACES in json.dumps(json.loads(body), ensure_ascii=False)
    assert max(one_piece, default=0) < LONG


@pytest.mark.parametrize("item", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("name", ["chat", "messages", "responses"])
def test_a_long_text_of_a_request_is_encoded_in_pieces(
    name: str, item: Any, one_piece: list[int]
) -> None:
    output = CustomToolCallOutput("c", FACES)
    items = (Message("user", FACES), item, *([output] if isinstance(item, CustomToolCall) else []))
    asked = Request(model="m", items=items, instructions=FACES)
    body, _ = WIRES[name].encode_request(asked, replace(STANDARD, reasoning_echo="must"))
    assert json.dumps(json.loads(body), ensure_ascii=False).count(FACES) >= 3 - (name == "messages")
    assert max(one_piece, default=0) < LONG


@pytest.mark.parametrize("text", [FACES, "x" * (LONG + 1), FACES + "\ud83d"])
async def test_a_long_item_of_a_conversation_is_packed_in_a_thread(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: list[threading.Thread] = []

    def noted(items: Any) -> Any:
        where.append(threading.current_thread())
        return pack_items(items)

    monkeypatch.setattr(sql, "pack_items", noted)
    store, items = MemoryStore(), tuple(Message("user", text, id=name) for name in "abc")
    await store.create_conversation(Conversation(id="c", tenant="t", created_at=0), items[:1])
    assert await store.add_items("t", "c", items[1:2])
    response = Response(
        id="r", created_at=0, model="m", status="completed", output=items[2:], reasons=("stop",)
    )
    asked = Request(model="m", items=())
    record = Record(id="r", tenant="t", wire="responses", created_at=0, request=asked)
    record = replace(record, conversation="c", size=10**6, status="completed", response=response)
    await store.put(record, items[2:])
    page = await store.list_items("t", "c")
    assert page is not None
    assert page.items == items
    assert await store.get_item("t", "c", "b") == items[1]
    assert len(where) == 3
    assert threading.main_thread() not in where
    await store.close()


def test_items_in_pieces_are_packed_as_others() -> None:
    for item in (*TEXTS.values(), Message("user", "x" * (LONG + 1))):
        assert pack_items([item]) == [(item, pack(item))]


def test_a_long_item_for_a_conversation_is_not_encoded_again_in_one_piece(
    one_piece: list[int],
) -> None:
    body = {"items": [{"type": "message", "role": "user", "content": FACES}]}
    (item,) = decode_items(json.dumps(body, ensure_ascii=False).encode())
    assert isinstance(item, Message)
    assert item.content == FACES
    assert max(one_piece, default=0) < LONG


MUCH = "x" * (LETTERS * 1000)


@pytest.mark.parametrize(("size", "counted"), [(1, False), (6, True)])
async def test_a_long_answer_of_small_events_is_counted(size, counted, monkeypatch) -> None:
    """Its end repeats them all: 45,000 annotations took half a second on the event loop."""
    monkeypatch.setattr(remote, "LONG", 5 * remote.PIECE)
    event = json.dumps(chunk({"content": "a"})).encode()
    events = [event] * (size * remote.PIECE // len(event))
    held: list[int] = []
    async with mock(stream(*events, chunk(finish="stop"))) as up:
        engine, receiver = Remote(up.base_url, wire="chat"), Receiver()
        receiver.start(engine, Request(model="m", stream=True), Caller(count=held.append))
        while not receiver.ended:
            await asyncio.sleep(0.001)
        await engine.close()
    assert bool(held) == counted


def test_small_events_are_judged_where_an_item_ends() -> None:
    """Events shorter than their framing counted for nothing: 45,000 annotations, deltas that waited
    for an item before theirs, or many items, were encoded on the event loop at an end."""
    note, end = Delta(0, 0, "annotation", Annotation("u")), Finished("completed", ("stop",))

    def closed(count: int) -> ItemDone:
        return ItemDone(0, Message("assistant", (Text("a", (note.data,) * count),)))

    stream = Stream.__new__(Stream)
    assert not stream.is_much([closed(10), end])
    assert stream.is_much([note, closed(MANY_TOKENS)])
    stream = Stream.__new__(Stream)
    assert not any(stream.is_much([closed(MANY_TOKENS // 4)]) for _ in range(3))
    assert stream.is_much([closed(MANY_TOKENS // 4), end])
    stream = Stream.__new__(Stream)
    assert not any(stream.is_much([note] * 250) for _ in range(40))
    assert stream.is_much([closed(1)])


@pytest.mark.parametrize(
    "event",
    [
        PartDone(0, 0, Thought(MUCH)),
        PartDone(0, 0, Refusal(MUCH)),
        PartDone(0, 0, Audio(data="AAAA", transcript=MUCH)),
        ItemDone(0, Reasoning((Thought(MUCH),))),
        ItemDone(0, Reasoning(encrypted=MUCH)),
        ItemDone(0, Message("assistant", (Refusal(MUCH),))),
        ItemDone(0, Unknown("responses", "odd", {"a": [1.5] * 1000})),
        ItemDone(0, FunctionCall("c", "f", "{}", extra={"chat": {"odd": [1.5] * 1000}})),
        Delta(0, 0, "annotation", Annotation("odd", extra={"responses": {"a": [1.5] * 1000}})),
        Progress(0, "raw", {"responses": {"a": {MUCH: 1}}}),
        Finished("completed", extra={"messages": {f"k{n}": n for n in range(1000)}}),
        Delta(0, 0, "text", "a", (Token("a", -1.0, b"a" * LETTERS * 1000),)),
    ],
    ids=lambda event: type(event).__name__,
)
def test_whatever_is_large_counts_where_a_batch_is_judged(event) -> None:
    """What was no text of a message, and no call, was encoded on the event loop: 30 MB of
    reasoning, and unknown fields with millions of numbers."""
    few = [Delta(0, 0, "text", "word ") for _ in range(250)]
    assert values_in([*few, Finished("completed", ("stop",))], 1000) < 10
    assert values_in([*few, event], 500) > 500
