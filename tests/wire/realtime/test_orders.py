"""Every order of events of the protocol, as a table: what a client sends, and what must follow.

A step is a client event, or a report of the session's own voice, clock or engine; each has the
types of the events that it must give, in short.
"""

from typing import Any

import pytest

from dragoman.core.error import Fault
from dragoman.core.event import Failed, Finished
from dragoman.core.session_values import (
    SessionConfig,
    SpeechStarted,
    SpeechStopped,
    Tick,
    Transcribed,
    Transcription,
    TurnDetection,
)

from .stage import Stage, calling, kinds, saying, silence, speaking, text_item

SHORT = {
    "conversation.item.": "item.",
    "input_audio_transcription.": "transcription.",
    "input_audio_buffer.": "buffer.",
    "response.": "r.",
    "output_audio_transcript": "transcript",
    "function_call_arguments": "arguments",
}

ADDED = ["item.added", "item.done"]
CREATED = ["r.created"]
BEGIN = ["r.output_item.added", "item.added"]
END = ["r.output_item.done", "item.done"]
MESSAGE = [
    *BEGIN,
    "r.content_part.added",
    "r.output_text.delta",
    "r.output_text.delta",
    "r.output_text.done",
    "r.content_part.done",
    *END,
]
SPOKEN_END = ["r.output_audio.done", "r.transcript.done", "r.content_part.done", *END]
SPOKEN = [
    *BEGIN,
    "r.content_part.added",
    *["r.transcript.delta", "r.output_audio.delta"] * 2,
    *SPOKEN_END,
]
CALL = [*BEGIN, "r.arguments.delta", "r.arguments.done", *END]
OUT_OF_BAND = [kind for kind in MESSAGE if not kind.startswith("item.")]
COMMITTED = ["buffer.committed", *ADDED]
STOPPED = ["buffer.speech_stopped", *COMMITTED]

APPEND = ("input_audio_buffer.append", {"audio": silence(500)})
COMMIT = ("input_audio_buffer.commit", {})
CLEAR = ("input_audio_buffer.clear", {})
USER = ("conversation.item.create", {"item": text_item("Hi", id="u1")})
RESPOND = ("response.create", {})
CANCEL = ("response.cancel", {})
ASIDE = ("response.create", {"response": {"conversation": "none", "input": [text_item("x")]}})
RESULT = (
    "conversation.item.create",
    {"item": {"type": "function_call_output", "call_id": "c1", "output": "sunny"}},
)
UPDATE = ("session.update", {"session": {"type": "realtime", "instructions": "Be brief."}})
BROKE = Failed(Fault("upstream_error", "It broke.", "upstream"))
HEARD = Transcribed("item_s0001", "Good ")
HEARD_ALL = Transcribed("item_s0001", "day. ", done=True)
UNHEARD = Transcribed("item_s0001", fault=Fault("upstream_error", "Noise.", "upstream"))

VOICE = {"transcribes": True, "speaks": True, "detects": True}
TOLD = SessionConfig(model="m", transcription=Transcription(model="whisper-1"))
MANUAL = SessionConfig(model="m", turn_detection=None)
IDLE = SessionConfig(model="m", turn_detection=TurnDetection(idle_timeout_ms=5_000))
WAITS = SessionConfig(model="m", turn_detection=TurnDetection(interrupt_response=False))
QUIET = SessionConfig(model="m", turn_detection=TurnDetection(create_response=False))
LISTENS = SessionConfig(kind="transcription", transcription=Transcription(model="whisper-1"))

Step = tuple[Any, list[str]]
ROWS: dict[str, tuple[dict[str, Any], list[Step]]] = {
    "an update is answered, also one that changes nothing": (
        {},
        [
            (UPDATE, ["session.updated"]),
            (UPDATE, ["session.updated"]),
            (("session.update", {"session": {"type": "realtime"}}), ["session.updated"]),
        ],
    ),
    "an update that makes no sense is an error": (
        {},
        [
            (("session.update", {"session": {"type": "wrong"}}), ["error"]),
            (UPDATE, ["session.updated"]),
        ],
    ),
    "a text turn": (
        {},
        [
            (USER, ADDED),
            (RESPOND, CREATED),
            (saying("Good ", "day"), [*MESSAGE, "r.done"]),
        ],
    ),
    "a spoken turn, committed by the client": (
        {"config": MANUAL, **VOICE, "transcribes": False},
        [
            (APPEND, []),
            (APPEND, []),
            (COMMIT, COMMITTED),
            (RESPOND, CREATED),
            (speaking(("Good ", 300), ("day", 200)), [*SPOKEN, "r.done"]),
        ],
    ),
    "the buffer": (
        {},
        [
            (COMMIT, ["error"]),
            (("input_audio_buffer.append", {"audio": ""}), []),
            (("input_audio_buffer.append", {"audio": silence(50)}), []),
            (COMMIT, ["error"]),
            (CLEAR, ["buffer.cleared"]),
            (CLEAR, ["buffer.cleared"]),
            (COMMIT, ["error"]),
        ],
    ),
    "turns that a detector finds": (
        {"config": TOLD, **VOICE},
        [
            (APPEND, []),
            (SpeechStarted(100), ["buffer.speech_started"]),
            (APPEND, []),
            (SpeechStopped(900), [*STOPPED, *CREATED]),
            (HEARD, ["item.transcription.delta"]),
            (HEARD_ALL, ["item.transcription.completed"]),
            (speaking(("Good ", 300), ("day", 200)), [*SPOKEN, "r.done"]),
            (APPEND, []),
            (SpeechStarted(950), ["buffer.speech_started"]),
        ],
    ),
    "a transcript that comes behind the answer": (
        {"config": TOLD, **VOICE},
        [
            (APPEND, []),
            (COMMIT, COMMITTED),
            (ASIDE, CREATED),
            (saying("a", "b"), [*OUT_OF_BAND, "r.done"]),
            (HEARD_ALL, ["item.transcription.completed"]),
            (HEARD_ALL, []),
        ],
    ),
    "a transcript that fails": (
        {"config": TOLD, **VOICE},
        [
            (APPEND, []),
            (SpeechStarted(100), ["buffer.speech_started"]),
            (SpeechStopped(400), [*STOPPED, *CREATED]),
            (UNHEARD, ["item.transcription.failed", "r.done"]),
            (USER, ADDED),
            (RESPOND, CREATED),
            (saying("Good ", "day"), [*MESSAGE, "r.done"]),
        ],
    ),
    "a transcript that nobody asked for": (
        {"config": MANUAL, **VOICE},
        [
            (APPEND, []),
            (COMMIT, COMMITTED),
            (RESPOND, CREATED),
            (HEARD, []),
            (HEARD_ALL, []),
            (speaking(("Good ", 300), ("day", 200)), [*SPOKEN, "r.done"]),
            (APPEND, []),
            (COMMIT, COMMITTED),
            (Transcribed("item_s0004", fault=UNHEARD.fault), []),
        ],
    ),
    "nobody speaks": (
        {"config": IDLE, **VOICE, "transcribes": False},
        [
            *[(APPEND, [])] * 9,
            (APPEND, ["buffer.timeout_triggered", *COMMITTED, *CREATED]),
            (speaking(("Still ", 300), ("there?", 200)), [*SPOKEN, "r.done"]),
            *[(APPEND, [])] * 9,
        ],
    ),
    "turns that are only found": (
        {"config": QUIET, **VOICE, "transcribes": False},
        [
            (APPEND, []),
            (SpeechStarted(0), ["buffer.speech_started"]),
            (SpeechStopped(500), STOPPED),
            (RESPOND, CREATED),
        ],
    ),
    "an interruption, and what was heard": (
        {"config": SessionConfig(model="m"), **VOICE, "transcribes": False},
        [
            (USER, ADDED),
            (RESPOND, CREATED),
            (
                speaking(("Good ", 300), ("day", 200), end=False),
                [
                    *BEGIN,
                    "r.content_part.added",
                    *["r.transcript.delta", "r.output_audio.delta"] * 2,
                ],
            ),
            (APPEND, []),
            (SpeechStarted(100), ["buffer.speech_started", *SPOKEN_END, "r.done"]),
            (
                (
                    "conversation.item.truncate",
                    {"item_id": "item_s0002", "content_index": 0, "audio_end_ms": 300},
                ),
                ["item.truncated"],
            ),
            (SpeechStopped(500), [*STOPPED, *CREATED]),
        ],
    ),
    "a turn during an answer that is not interrupted is answered after it": (
        {"config": WAITS, **VOICE, "transcribes": False},
        [
            (RESPOND, CREATED),
            (APPEND, []),
            (SpeechStarted(100), ["buffer.speech_started"]),
            (SpeechStopped(400), STOPPED),
            (speaking(("Good ", 300), ("day", 200)), [*SPOKEN, "r.done", *CREATED]),
        ],
    ),
    "a call, its result, and the answer": (
        {},
        [
            (USER, ADDED),
            (RESPOND, CREATED),
            (calling(("c1", "weather", "{}"), ("c2", "time", "{}")), [*CALL, *CALL, "r.done"]),
            (RESULT, ADDED),
            (RESPOND, CREATED),
            (saying("Good ", "day"), [*MESSAGE, "r.done"]),
        ],
    ),
    "a cancelled answer closes what is open": (
        {},
        [
            (RESPOND, CREATED),
            (saying("Good ", "day", end=False)[:5], MESSAGE[:5]),
            (CANCEL, [*MESSAGE[5:], "r.done"]),
            (CANCEL, ["error"]),
            (saying("late"), []),
            (RESPOND, CREATED),
            (CANCEL, ["r.done"]),
        ],
    ),
    "a cancelled call": (
        {},
        [
            (RESPOND, CREATED),
            (calling(("c1", "weather", "{"), end=False)[:3], CALL[:3]),
            (CANCEL, [*CALL[3:], "r.done"]),
        ],
    ),
    "an answer that fails": (
        {},
        [
            (RESPOND, CREATED),
            ([BROKE], ["r.done"]),
            (RESPOND, CREATED),
            ([*saying("Good ", "day")[:5], BROKE], [*MESSAGE, "r.done"]),
        ],
    ),
    "an answer that is cut short": (
        {},
        [
            (RESPOND, CREATED),
            (
                [*saying("Good ", "day", end=False), Finished("incomplete", ("length",))],
                [*MESSAGE, "r.done"],
            ),
        ],
    ),
    "one answer at a time, and others beside it": (
        {},
        [
            (RESPOND, CREATED),
            (RESPOND, ["error"]),
            (ASIDE, CREATED),
            (saying("a", "b"), [*OUT_OF_BAND, "r.done"]),
            (("response.cancel", {"response_id": "resp_none"}), ["error"]),
            (CANCEL, ["r.done"]),
        ],
    ),
    "items: created, retrieved, deleted": (
        {},
        [
            (USER, ADDED),
            (USER, ["error"]),
            (("conversation.item.retrieve", {"item_id": "u1"}), ["item.retrieved"]),
            (("conversation.item.delete", {"item_id": "u1"}), ["item.deleted"]),
            (("conversation.item.delete", {"item_id": "u1"}), ["error"]),
            (("conversation.item.retrieve", {"item_id": "u1"}), ["error"]),
            (
                (
                    "conversation.item.truncate",
                    {"item_id": "u1", "content_index": 0, "audio_end_ms": 1},
                ),
                ["error"],
            ),
        ],
    ),
    "what is no event": (
        {},
        [
            (("conversation.item.explode", {}), ["error"]),
            (("output_audio_buffer.clear", {}), ["error"]),
            (USER, ADDED),
        ],
    ),
    "a session that only transcribes": (
        {"config": LISTENS, "transcribes": True, "detects": True},
        [
            (RESPOND, ["error"]),
            (APPEND, []),
            (SpeechStarted(0), ["buffer.speech_started"]),
            (SpeechStopped(400), STOPPED),
            (HEARD_ALL, ["item.transcription.completed"]),
            (("session.update", {"session": {"type": "transcription"}}), ["session.updated"]),
            (UPDATE, ["error"]),
        ],
    ),
    "a session that has lasted": (
        {},
        [
            (RESPOND, CREATED),
            (ASIDE, CREATED),
            (Tick(3_599_999), []),
            (Tick(3_600_000), ["r.done", "r.done", "error"]),
            (USER, []),
        ],
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_an_order_of_events(name: str) -> None:
    options, steps = ROWS[name]
    stage = Stage(**options)
    assert kinds(stage.opening) == ["session.created", "conversation.created"]
    for number, (step, expected) in enumerate(steps):
        if isinstance(step, tuple):
            events = stage.say(step[0], **step[1], event_id=f"mine_{number}")
        elif isinstance(step, list):
            events = stage.answer(*step)
        else:
            events = stage.report(step)
        found = kinds(events)
        for long, short in SHORT.items():
            found = [kind.replace(long, short) for kind in found]
        assert found == expected, f"step {number}"
        for event in events:
            if event["type"] == "error" and isinstance(step, tuple):
                assert event["error"]["event_id"] == f"mine_{number}"
