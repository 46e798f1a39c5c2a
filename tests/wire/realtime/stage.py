"""A session without a socket: client events go in as JSON, server events come out as JSON.

Every event that comes out is held against the published schema and the order of events, and is
decoded again: what it decodes to says the same.
"""

from base64 import b64encode
from collections import Counter
from typing import Any

from dragoman.core.event import (
    Delta,
    Event,
    Finished,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Started,
)
from dragoman.core.item import Audio, FunctionCall, Message, Text
from dragoman.core.response import Usage
from dragoman.core.session import Session
from dragoman.core.session_values import Answered, Generate, SessionConfig, SessionEvent, Work
from dragoman.wire import json
from dragoman.wire.realtime.beta import to_beta, to_ga
from dragoman.wire.realtime.commands import decode_command, encode_command
from dragoman.wire.realtime.events import decode_event, encode_events
from tests.oracle import realtime_problems
from tests.samples import samples

from .order_checker import Order

SECOND = b"\0\1" * 24_000
"""A second of sound."""


def silence(ms: int) -> str:
    """So much sound, as a client sends it."""
    return b64encode(b"\0\1" * (24 * ms)).decode()


CHECKED: Counter[str] = Counter()
"""How many events of each type were held against the schema, which takes long."""


class Stage:
    """One session, and what its engine was asked."""

    def __init__(
        self, *, config: SessionConfig | None = None, strict: bool = True, **options: Any
    ) -> None:
        self.strict = strict  # nothing is sent that the schema has not
        self.session = Session("s", config or SessionConfig(model="m"), **options)
        self.order = Order()
        self.work: list[Work] = []
        self.sent = 0
        self.events: list[dict[str, Any]] = []
        self.opening = self.out(self.session.open())

    def say(self, type: str, **fields: Any) -> list[dict[str, Any]]:
        """Send a client event."""
        data = json.dump({"type": type, **fields})
        command = decode_command(data)
        if type in _WHOLE and "fault" not in command.__struct_fields__:
            again = encode_command(command)
            assert decode_command(json.dump(again)) == command
        return self.out(self.session.receive(command))

    def report(self, what: Any) -> list[dict[str, Any]]:
        """Report something."""
        return self.out(self.session.receive(what))

    def answer(self, *events: Event) -> list[dict[str, Any]]:
        """Have the engine say this in the answer that was asked for last."""
        asked = [work for work in self.work if isinstance(work, Generate)]
        return self.report(Answered(asked[-1].response_id, list(events)))

    @property
    def asked(self) -> Any:
        """The last request."""
        return [work for work in self.work if isinstance(work, Generate)][-1].request

    def out(self, events: list[SessionEvent]) -> list[dict[str, Any]]:
        objects = encode_events(events, self.event_id)
        for event in objects:
            CHECKED[event["type"]] += 1
            if self.strict and CHECKED[event["type"]] <= samples(8, 1_000):
                assert realtime_problems(event) == [], event
            self.order.feed(event)
            json.dump(event)
        decoded = [each for event in objects for each in decode_event(event)]
        again = encode_events(decoded, lambda: "")
        assert [e | {"event_id": ""} for e in objects] == [_as(e, objects) for e in again]
        for event in objects:  # the beta dialect leaves out no more than the second `added`
            old = [each for old in to_beta(event) for each in to_ga(old)]
            assert old or event["type"] == "conversation.item.done"
        self.work += self.session.work
        self.session.work.clear()
        self.events += objects
        return objects

    def event_id(self) -> str:
        self.sent += 1
        return f"event_{self.sent}"


def _as(event: dict[str, Any], others: list[dict[str, Any]]) -> dict[str, Any]:
    """Losses are in the events of a server alone."""
    for other in others:
        if other["type"] == event["type"] and "headers" in other:
            return {**event, "headers": other["headers"]}
    return event


_WHOLE = {
    "input_audio_buffer.append",
    "input_audio_buffer.commit",
    "input_audio_buffer.clear",
    "output_audio_buffer.clear",
    "conversation.item.create",
    "conversation.item.retrieve",
    "conversation.item.truncate",
    "conversation.item.delete",
    "response.create",
    "response.cancel",
}


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """The types of events."""
    return [event["type"] for event in events]


STARTED = Started("1", 0, "m")
FINISHED = Finished("completed", usage=Usage(input_tokens=3, output_tokens=2))


def saying(*words: str, index: int = 0, end: bool = True) -> list[Event]:
    """A whole message of an engine."""
    text = "".join(words)
    message = Message("assistant", (), id=f"msg_{index}")
    events: list[Event] = [STARTED, ItemAdded(index, message), PartAdded(index, 0, Text(""))]
    events += [Delta(index, 0, "text", each) for each in words]
    whole = Message("assistant", (Text(text),), id=f"msg_{index}", status="completed")
    events += [PartDone(index, 0, Text(text)), ItemDone(index, whole)]
    return [*events, FINISHED] if end else events


def speaking(*pieces: tuple[str, int], end: bool = True) -> list[Event]:
    """A spoken message: pieces of its transcript, each with the milliseconds it takes."""
    message = Message("assistant", (), id="msg_0")
    events: list[Event] = [STARTED, ItemAdded(0, message), PartAdded(0, 0, Audio(format="pcm16"))]
    for text, ms in pieces:
        events.append(Delta(0, 0, "transcript", text))
        events.append(Delta(0, 0, "audio", silence(ms)))
    if not end:
        return events
    part = Audio(format="pcm16", transcript="".join(text for text, _ in pieces))
    whole = Message("assistant", (part,), id="msg_0", status="completed")
    return [*events, PartDone(0, 0, part), ItemDone(0, whole), FINISHED]


def calling(*calls: tuple[str, str, str], end: bool = True) -> list[Event]:
    """Calls of functions: ids, names and arguments."""
    events: list[Event] = [STARTED]
    for index, (call_id, name, arguments) in enumerate(calls):
        call = FunctionCall(call_id, name, "", id=f"fc_{index}")
        events += [ItemAdded(index, call), Delta(index, 0, "arguments", arguments)]
        whole = FunctionCall(call_id, name, arguments, id=f"fc_{index}", status="completed")
        events.append(ItemDone(index, whole))
    return [*events, FINISHED] if end else events


def text_item(text: str, role: str = "user", **fields: Any) -> dict[str, Any]:
    """An item of text, as a client creates it."""
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text}]
    return {"type": "message", "role": role, "content": content, **fields}
