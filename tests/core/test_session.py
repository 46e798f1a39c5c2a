"""Sessions: what the tables of orders (tests/wire/realtime) do not show."""

from base64 import b64decode, b64encode
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.conversation import NO_RESULT, SILENCE, Items, weight, with_sounds
from dragoman.core.error import Fault, FaultError
from dragoman.core.event import (
    Delta,
    Failed,
    Finished,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Progress,
    Started,
)
from dragoman.core.item import (
    Annotation,
    Audio,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    ItemReference,
    Message,
    Reasoning,
    Refusal,
    Text,
    Thought,
    Unknown,
    UnknownPart,
)
from dragoman.core.loss import Loss
from dragoman.core.request import FunctionTool
from dragoman.core.session import Session
from dragoman.core.session_answer import AnswerView
from dragoman.core.session_values import (
    ROOT,
    Answer,
    Answered,
    Append,
    BufferCommitted,
    BufferSpeechStarted,
    BufferSpeechStopped,
    Cancel,
    Clear,
    Commit,
    Configure,
    ConversationItemAdded,
    ConversationItemDone,
    CreateItem,
    Delete,
    Forget,
    Generate,
    ItemRetrieved,
    Refused,
    Respond,
    ResponseDone,
    Retrieve,
    SessionConfig,
    SessionUpdated,
    SpeechStarted,
    SpeechStopped,
    Stop,
    Transcribe,
    Transcribed,
    Transcription,
    TranscriptionCompleted,
    Truncate,
    TurnDetection,
)
from dragoman.core.sound import Arena, Spoken

MS = b"\0\1" * 24
QUIET = Message("user", (Text(SILENCE),))
MANUAL = SessionConfig(model="m", turn_detection=None)
VOICE: dict[str, Any] = {"transcribes": True, "speaks": True, "detects": True}


def opened(config: SessionConfig = MANUAL, **options: Any) -> Session:
    return Session("s", config, **options)


def of(session: Session, kind: type) -> list[Any]:
    """The work of a kind that is to be done, taken."""
    found = [work for work in session.work if isinstance(work, kind)]
    session.work.clear()
    return found


def refusal(events: list[Any]) -> Fault:
    (refused,) = [event for event in events if isinstance(event, Refused)]
    return refused.fault


def user(text: str, id: str | None = None) -> CreateItem:
    return CreateItem(item=Message("user", (Text(text),), id=id))


def spoken(id: str, *pieces: tuple[str, int]) -> Answered:
    events: list[Any] = [ItemAdded(0, Message("assistant")), PartAdded(0, 0, Audio(format="pcm16"))]
    for text, ms in pieces:
        events.append(Delta(0, 0, "transcript", text))
        events.append(Delta(0, 0, "audio", b64encode(MS * ms).decode()))
    return Answered(id, events)


DONE = [
    PartDone(0, 0, Audio()),
    ItemDone(0, Message("assistant")),
    Finished("completed"),
]


# ---- the configuration ---------------------------------------------------------------------


def test_r3_1_a_session_has_defaults_and_says_what_it_cannot_do() -> None:
    config = opened(SessionConfig(model="m"), **VOICE).config
    assert config.turn_detection == TurnDetection(
        threshold=0.5, prefix_padding_ms=300, silence_duration_ms=500
    )
    assert (config.modalities, config.voice, config.tool_choice) == (("audio",), "alloy", "auto")
    assert (config.input_format, config.output_format) == ("pcm16", "pcm16")
    session = opened(SessionConfig(model="m"))
    assert session.config == replace(MANUAL, modalities=("text",))
    changes = {"modalities": ("audio",), "turn_detection": TurnDetection()}
    (updated,) = session.receive(Configure(changes=changes))
    assert isinstance(updated, SessionUpdated)
    assert [loss.field for loss in updated.losses] == ["output_modalities", "turn_detection"]
    assert updated.config == session.config
    beta = {"extra": {"realtime": {"modalities": ["text"]}}}
    (updated,) = session.receive(Configure(changes=beta))
    assert [loss.field for loss in updated.losses] == ["modalities"]


def test_the_model_and_the_kind_stay_and_so_does_a_voice_that_was_used() -> None:
    session = opened(**VOICE)
    session.receive(Configure(changes={"model": "other", "voice": "ash"}))
    assert (session.config.model, session.config.voice) == ("m", "ash")
    assert refusal(session.receive(Configure(changes={"kind": "transcription"}))).param
    session.receive(Respond())
    (work,) = of(session, Generate)
    session.receive(spoken(work.response_id, ("Hi", 100)))
    refused = refusal(session.receive(Configure(changes={"voice": "alloy"})))
    assert refused.param == "session.voice"
    session.receive(Configure(changes={"voice": "ash", "instructions": "x"}))
    assert session.config.instructions == "x"


def test_an_answer_is_asked_with_the_configuration_and_its_own_changes() -> None:
    tool = FunctionTool("f")
    config = replace(
        MANUAL, instructions="a", tools=(tool,), tool_choice="required", speed=1.5, temperature=0.5
    )
    session = opened(config, **VOICE)
    session.receive(Respond())
    (work,) = of(session, Generate)
    request = work.request
    assert (request.model, request.instructions, request.tools) == ("m", "a", (tool,))
    assert (request.tool_choice, request.sampling.temperature) == ("required", 0.5)
    assert request.modalities == ("text", "audio")
    assert request.audio is not None
    assert (request.audio.voice, request.audio.format) == ("alloy", "pcm16")
    assert request.audio.extra == {"realtime": {"speed": 1.5}}
    assert request.store is False
    assert session.answering(work.response_id)
    session.receive(Cancel())
    assert not session.answering(work.response_id)
    changes = {"instructions": "", "tools": (), "modalities": ("text",), "max_output_tokens": 5}
    session.receive(Respond(changes=changes, metadata={"a": "b"}))
    (work,) = of(session, Generate)
    assert work.request.instructions is None
    assert work.request.tools == ()
    assert work.request.tool_choice is None
    assert work.request.modalities is None
    assert work.request.max_output_tokens == 5
    (done,) = session.receive(Cancel())
    assert isinstance(done, ResponseDone)
    assert done.response.metadata == {"a": "b"}
    assert done.response.max_output_tokens == 5
    assert (done.response.status, done.response.reason) == ("cancelled", "client_cancelled")


# ---- the conversation ----------------------------------------------------------------------


def test_items_have_their_true_place() -> None:
    session = opened()
    session.receive(user("a", "a"))
    session.receive(user("b", "b"))
    first, _ = session.receive(CreateItem(item=Message("user", "r", id="r"), previous_item_id=ROOT))
    assert isinstance(first, ConversationItemAdded)
    assert first.previous_item_id is None
    behind, done = session.receive(
        CreateItem(item=Message("user", "c", id="c"), previous_item_id="a")
    )
    assert isinstance(behind, ConversationItemAdded)
    assert behind.previous_item_id == "a"
    assert isinstance(done, ConversationItemDone)
    assert done.previous_item_id == "a"
    assert [entry.item.id for entry in session.items.entries()] == ["r", "a", "c", "b"]
    command = CreateItem(item=Message("user", "c"), previous_item_id="nobody", event_id="mine")
    (refused,) = session.receive(command)
    assert isinstance(refused, Refused)
    assert refused.event_id == "mine"
    assert (refused.fault.code, refused.fault.param) == ("not_found", "previous_item_id")


def test_ids_that_a_client_has_guessed_are_not_given_twice() -> None:
    session = opened(SessionConfig(model="m"), **VOICE)
    session.receive(user("a", "item_s0001"))
    session.receive(Append(audio=MS * 500))
    assert session.receive(SpeechStarted(0)) == [BufferSpeechStarted("item_s0002", 0)]
    assert refusal(session.receive(user("b", "item_s0002"))).param == "item.id"


def asked(*items: Item) -> tuple[Item, ...]:
    """What a model is asked after these items."""
    session = opened()
    for item in items:
        session.receive(CreateItem(item=item))
    session.receive(Respond())
    (work,) = of(session, Generate)
    return with_sounds(work.request.items, work.sounds)


def test_a_model_gets_each_call_with_its_result() -> None:
    one, two = FunctionCall("c1", "f", "{}"), FunctionCall("c2", "g", "{}")
    first, second = FunctionCallOutput("c1", "1"), FunctionCallOutput("c2", "2")
    said = Message("user", (Text("x"),))
    assert asked(second, one, two, said, first) == (QUIET, one, two, first, second, said)
    assert asked(said, one) == (said, one, FunctionCallOutput("c1", NO_RESULT))
    assert asked(CustomToolCall("c3", "h", ""))[1:] == (
        CustomToolCall("c3", "h", ""),
        CustomToolCallOutput("c3", NO_RESULT),
    )
    assert asked(first) == (first,)  # whose call was deleted: the model's server says so


def test_a_model_gets_speech_as_text_or_as_sound() -> None:
    said = Message("user", (Audio(b64encode(MS * 10).decode(), "pcm16"), Image("data:x")))
    (heard,) = asked(said)
    assert isinstance(heard, Message)
    sound, image = heard.parts
    assert isinstance(sound, Audio)
    assert sound.format == "wav"
    assert sound.data is not None
    assert b64decode(sound.data)[:4] == b"RIFF"
    assert image == Image("data:x")
    told = Message("user", (Audio(None, "pcm16", "Hello."),))
    assert asked(told) == (Message("user", (Text("Hello."),)),)
    assert asked(Message("assistant", (Text(""),))) == (QUIET,)
    assert asked(Message("user", ())) == (Message("user", (Text(""),)),)
    other = Unknown("realtime", "mcp_call", {"name": "n"}, "m1")
    assert asked(other, Compaction("x", "cmp_1")) == (QUIET, other, Compaction("x", "cmp_1"))


def test_an_item_is_given_back_with_its_sound() -> None:
    session, sound = opened(), b64encode(MS).decode()
    session.receive(CreateItem(item=Message("user", (Audio(sound), Text("a")), id="u")))
    (found,) = session.receive(Retrieve(item_id="u"))
    assert isinstance(found, ItemRetrieved)
    assert found.item == Message("user", (Audio(sound), Text("a")), id="u", status="completed")
    session.receive(CreateItem(item=FunctionCallOutput("c", "x", id="o")))
    (found,) = session.receive(Retrieve(item_id="o"))
    assert isinstance(found, ItemRetrieved)
    assert found.item.id == "o"
    broken = CreateItem(item=Message("user", (Audio("?"),)))
    assert refusal(session.receive(broken)).param == "item.content[0].audio"
    session.receive(Delete(item_id="u"))
    assert session.items.sound.size == 0


# ---- turns ----------------------------------------------------------------------------------


def test_a_turn_is_the_sound_between_its_ends() -> None:
    session = opened(SessionConfig(model="m"), **VOICE)
    sound = b"".join(bytes([ms % 256, 0]) * 24 for ms in range(1_000))
    session.receive(Append(audio=sound))
    (started,) = session.receive(SpeechStarted(200))
    assert started == BufferSpeechStarted("item_s0001", 200)
    assert session.receive(SpeechStarted(300)) == []
    stopped, committed, *_ = session.receive(SpeechStopped(700))
    assert stopped == BufferSpeechStopped("item_s0001", 700)
    assert committed == BufferCommitted("item_s0001", None)
    (work,) = of(session, Transcribe)
    assert work.audio == sound[200 * 48 : 700 * 48]
    assert session.receive(SpeechStopped(800)) == []


def test_silence_is_not_kept() -> None:
    session = opened(SessionConfig(model="m"), **VOICE)
    for _ in range(10):
        session.receive(Append(audio=MS * 1_000))
    assert session.position == 10_000
    assert session.size - opened().size == 2_300 * 48
    (started,) = session.receive(SpeechStarted(1_000))
    assert started == BufferSpeechStarted("item_s0001", 7_700)


def test_an_utterance_may_be_committed_cleared_or_left_to_the_client() -> None:
    session = opened(SessionConfig(model="m"), **VOICE)
    session.receive(Append(audio=MS * 500))
    session.receive(SpeechStarted(100))
    committed, *_ = session.receive(Commit())
    assert committed == BufferCommitted("item_s0001", None)
    assert len(of(session, Forget)) == 1
    assert session.receive(SpeechStopped(500)) == []
    session.receive(Append(audio=MS * 500))
    session.receive(SpeechStarted(600))
    session.receive(Clear())
    assert len(of(session, Forget)) == 1
    session.receive(Append(audio=MS * 500))
    session.receive(SpeechStarted(1_100))
    session.receive(Configure(changes={"turn_detection": None}))
    assert session.receive(SpeechStopped(1_200)) == []
    assert session.receive(SpeechStarted(1_300)) == []
    committed, *_ = session.receive(Commit())
    assert committed == BufferCommitted("item_s0004", "item_s0001")


def test_a_transcript_becomes_the_item_and_the_model_waits_for_it() -> None:
    session = opened(replace(MANUAL, transcription=Transcription(model="w")), **VOICE)
    session.receive(Append(audio=MS * 500))
    session.receive(Commit())
    (work,) = of(session, Transcribe)
    assert work.options == Transcription(model="w")
    session.receive(Respond())
    assert of(session, Generate) == []
    session.receive(Transcribed(work.item_id, " Good "))
    (told,) = session.receive(Transcribed(work.item_id, "day. ", done=True))
    assert told == TranscriptionCompleted(work.item_id, 0, "Good day.", 0.5)
    (work,) = of(session, Generate)
    assert work.request.items == (Message("user", (Text("Good day."),)),)
    # One that is deleted, and one whose answer is cancelled, are waited for no longer.
    session.receive(Cancel())
    session.receive(Append(audio=MS * 500))
    session.receive(Commit())
    (work,) = of(session, Transcribe)
    session.receive(Respond())
    session.receive(Delete(item_id=work.item_id))
    assert len(of(session, Generate)) == 1
    assert session.receive(Transcribed(work.item_id, "late", done=True)) == []


def test_two_transcripts_are_waited_for_and_an_answer_may_be_cancelled_meanwhile() -> None:
    session = opened(**VOICE)
    for _ in range(2):
        session.receive(Append(audio=MS * 500))
        session.receive(Commit())
    one, two = of(session, Transcribe)
    session.receive(Respond())
    session.receive(Transcribed(one.item_id, "a", done=True))
    assert of(session, Generate) == []
    assert session.receive(Answered("resp_s0003", [Finished("completed")])) == []
    (done,) = session.receive(Cancel())
    assert isinstance(done, ResponseDone)
    session.receive(Transcribed(two.item_id, "b", done=True))
    assert of(session, Generate) == []


def test_sound_in_an_item_is_transcribed_too_unless_it_has_a_transcript() -> None:
    session, sound = opened(**VOICE), b64encode(MS).decode()
    session.receive(CreateItem(item=Message("user", (Audio(sound),))))
    assert len(of(session, Transcribe)) == 1
    session.receive(CreateItem(item=Message("user", (Audio(sound, transcript="a"),))))
    assert of(session, Transcribe) == []


# ---- what was heard --------------------------------------------------------------------------


def heard_after(ms: int, *, open: bool = False) -> tuple[Message, int]:
    """What is left of an answer of which so much was heard."""
    session = opened(**VOICE)
    session.receive(Respond())
    (work,) = of(session, Generate)
    session.receive(spoken(work.response_id, ("One two. ", 1_000), ("Three four.", 1_000)))
    if not open:
        session.receive(Answered(work.response_id, DONE))
    (cut,) = session.receive(Truncate(item_id="item_s0002", content_index=0, audio_end_ms=ms))
    assert not isinstance(cut, Refused)
    if open:
        late = [
            Delta(0, 0, "transcript", "late"),
            Delta(0, 0, "audio", b64encode(MS * 9).decode()),
            *DONE,
        ]
        session.receive(Answered(work.response_id, late))
    (found,) = session.receive(Retrieve(item_id="item_s0002"))
    assert isinstance(found, ItemRetrieved)
    assert isinstance(found.item, Message)
    (part,) = found.item.parts
    assert isinstance(part, Audio)
    return found.item, len(b64decode(part.data or "")) // 48


@pytest.mark.parametrize("open", [False, True])
@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, ""),
        (400, ""),
        (600, "One "),
        (1_000, "One two. "),
        (1_600, "One two. Three "),
        (2_000, "One two. Three four."),
    ],
)
def test_p48_a_truncated_answer_holds_what_was_played_and_nothing_else(ms, text, open) -> None:
    item, length = heard_after(ms, open=open)
    (part,) = item.parts
    assert isinstance(part, Audio)
    assert part.transcript == text
    assert length == ms


def test_what_cannot_be_truncated_is_refused() -> None:
    session = opened(**VOICE)
    session.receive(user("a", "u"))
    cut = Truncate(item_id="u", content_index=0, audio_end_ms=0)
    assert refusal(session.receive(cut)).param == "content_index"
    session.receive(Respond())
    (work,) = of(session, Generate)
    session.receive(spoken(work.response_id, ("One", 100)))
    refused = session.receive(Delete(item_id="item_s0002"))
    assert "cancel the answer first" in refusal(refused).message
    session.receive(Answered(work.response_id, DONE))
    cut = Truncate(item_id="item_s0002", content_index=0, audio_end_ms=101)
    assert refusal(session.receive(cut)).param == "audio_end_ms"


def test_the_model_gets_only_what_was_played() -> None:
    session = opened(**VOICE)
    session.receive(Respond())
    (work,) = of(session, Generate)
    session.receive(spoken(work.response_id, ("One two. ", 1_000), ("Three four.", 1_000)))
    session.receive(Answered(work.response_id, DONE))
    session.receive(Truncate(item_id="item_s0002", content_index=0, audio_end_ms=1_000))
    session.receive(Respond())
    (work,) = of(session, Generate)
    assert work.request.items == (QUIET, Message("assistant", (Text("One two. "),)), QUIET)


# ---- answers ---------------------------------------------------------------------------------


def test_reasoning_is_for_the_model_alone() -> None:
    session = opened()
    session.receive(user("a", "a"))
    session.receive(Respond(changes={"extra": {"realtime": {"modalities": ["text"]}}}))
    (work,) = of(session, Generate)
    thought = Reasoning((Thought("Hm."),), id="rs_1", status="completed")
    events = session.receive(
        Answered(
            work.response_id,
            [
                Started("1", 0, "m", losses=(Loss("x", "dropped", ""),)),
                ItemAdded(0, Reasoning()),
                PartAdded(0, 0, Thought("")),
                Delta(0, 0, "reasoning", "Hm."),
                PartDone(0, 0, Thought("Hm.")),
                ItemDone(0, thought),
                ItemAdded(1, Message("assistant")),
                PartAdded(1, 0, Refusal("")),
                Delta(1, 0, "refusal", "No."),
                Delta(1, 0, "annotation", Annotation("x")),
                PartAdded(1, 1, Image()),
                Delta(1, 1, "text", "?"),
                PartDone(1, 1, Image()),
                PartDone(1, 0, Refusal("No.")),
                Progress(1, "searching"),
                ItemDone(1, Message("assistant")),
                ItemAdded(2, Message("assistant"), choice=1),
                ItemDone(2, Message("assistant")),
                Progress(None, "alive"),
                Finished("completed"),
            ],
        )
    )
    done = events[-1]
    assert isinstance(done, ResponseDone)
    (item,) = done.response.output
    assert item == Message("assistant", (Text("No."),), id="item_s0003", status="completed")
    assert [loss.field for loss in done.response.losses] == ["modalities", "x"]
    added = [event for event in events if isinstance(event, ConversationItemAdded)]
    assert [event.previous_item_id for event in added] == ["a"]
    assert [event.event.index for event in events if isinstance(event, Answer)] == [0] * 6
    session.receive(Respond())
    (work,) = of(session, Generate)
    kinds = [type(item) for item in work.request.items]
    assert kinds == [Message, Reasoning, Message, Message]
    # A client can neither see nor touch what is hidden.
    (hidden,) = [e.item.id for e in session.items.entries() if e.hidden]
    assert refusal(session.receive(Delete(item_id=hidden or ""))).code == "not_found"


def test_answers_beside_the_conversation_leave_nothing_in_it() -> None:
    session = opened()
    session.receive(user("a", "a"))
    inputs = (ItemReference("a"), Message("user", "b"))
    session.receive(Respond(conversation=False, input=inputs))
    (work,) = of(session, Generate)
    assert [item.text for item in work.request.items] == ["a", "b"]
    thought = Reasoning((Thought("Hm."),))
    session.receive(
        Answered(
            work.response_id,
            [
                ItemAdded(0, Reasoning()),
                ItemDone(0, thought),
                ItemAdded(1, Message("assistant")),
                PartAdded(1, 0, Audio()),
                Delta(1, 0, "audio", "AAAA"),
                Finished("completed"),
            ],
        )
    )
    assert [entry.item.id for entry in session.items.entries()] == ["a"]


def test_hosted_tools_are_shown_as_far_as_the_protocol_has_them() -> None:
    session = opened()
    session.receive(Respond())
    (work,) = of(session, Generate)
    call = Unknown("responses", "mcp_call", {"name": "n", "arguments": ""})
    whole = Unknown("responses", "mcp_call", {"name": "n", "arguments": "{}", "output": "x"})
    search = Unknown("responses", "web_search_call", {})
    events = session.receive(
        Answered(
            work.response_id,
            [
                ItemAdded(0, call),
                Delta(0, 0, "arguments", "{}"),
                Progress(0, "in_progress"),
                ItemDone(0, whole),
                ItemAdded(1, search),
                Progress(1, "searching"),
                ItemDone(1, search),
                ItemAdded(2, call),
                Finished("completed"),
            ],
        )
    )
    told = [event for event in events if isinstance(event, Answer)]
    assert [type(event.event).__name__ for event in told] == [
        "ItemAdded",
        "Delta",
        "Progress",
        "Progress",
        "ItemDone",
        "ItemAdded",
        "Progress",
        "ItemDone",
    ]
    assert told[2].event == Progress(0, "raw", {"realtime": {"arguments": "{}"}})
    assert told[4].event == ItemDone(0, replace(whole, id="item_s0002"))


def test_arguments_of_a_call_by_the_server_come_before_it_is_in_progress() -> None:
    session = opened()
    session.receive(Respond())
    (work,) = of(session, Generate)
    call = Unknown("responses", "mcp_call", {"name": "n", "arguments": ""})
    responses = {"type": "response.mcp_call_arguments.delta", "delta": "{}"}
    events = [
        ItemAdded(0, call),
        Progress(0, "in_progress"),
        Progress(0, "raw", {"responses": responses}),
        Progress(0, "raw", {"responses": {"arguments": "{}"}}),
        Progress(0, "completed"),
        ItemDone(0, Unknown("responses", "mcp_call", {"arguments": "{}"})),
        ItemAdded(1, call),
        Delta(1, 0, "arguments", "[]"),
        Progress(1, "in_progress"),
        Progress(1, "failed"),
        Progress(None, "raw"),
        Progress(1, "raw"),
        Finished("completed"),
    ]
    found = session.receive(Answered(work.response_id, events))
    shown = [each.event for each in found if isinstance(each, Answer)]
    assert [(e.index, e.state, e.data) for e in shown if isinstance(e, Progress)] == [
        (0, "raw", {"realtime": {"arguments": "{}"}}),
        (0, "in_progress", None),
        (0, "completed", None),
        (1, "raw", {"realtime": {"arguments": "[]"}}),
        (1, "in_progress", None),
        (1, "failed", None),
    ]


@pytest.mark.parametrize("conversation", [True, False])
def test_sound_that_is_none_fails_the_answer_and_is_not_shown(conversation) -> None:
    session = opened(**VOICE)
    session.receive(Respond(conversation=conversation))
    (work,) = of(session, Generate)
    broken = [
        ItemAdded(0, Message("assistant")),
        PartAdded(0, 0, Audio()),
        Delta(0, 0, "audio", "A"),
        Delta(0, 0, "audio", "AAAA"),
    ]
    *events, done = session.receive(Answered(work.response_id, broken))
    shown = [event.event for event in events if isinstance(event, Answer)]
    assert not any(isinstance(event, Delta) for event in shown)
    assert isinstance(done, ResponseDone)
    assert done.response.fault is not None
    assert done.response.status == "failed"
    assert len(of(session, Stop)) == 1


def test_an_answer_that_fails_keeps_what_came() -> None:
    session = opened()
    session.receive(Respond())
    (work,) = of(session, Generate)
    cut = Fault("upstream_cut", "It ended.", "upstream")
    events = [ItemAdded(0, Message("assistant")), PartAdded(0, 0, Text("")), Failed(cut)]
    done = session.receive(Answered(work.response_id, events))[-1]
    assert isinstance(done, ResponseDone)
    assert done.response.fault == cut
    (item,) = done.response.output
    assert isinstance(item, Message)
    assert item.status == "incomplete"


def test_what_ends_twice_or_never_began_is_passed_over() -> None:
    view = AnswerView(lambda: "item_1")
    assert view.feed(Delta(7, 0, "text", "?")) == []
    view.feed(ItemAdded(0, Message("assistant")))
    assert view.feed(PartDone(0, 3, Text(""))) == []
    assert view.feed(Started("1", 0, "m")) == []


# ---- the parts that sessions are made of --------------------------------------------------------


def test_items_weigh_what_is_in_them() -> None:
    small = weight(Message("user", ""))
    assert weight(Message("user", "abc")) == small + 3
    for item in (
        FunctionCall("c", "f", "abc"),
        CustomToolCall("c", "f", "abc"),
        FunctionCallOutput("c", "abc"),
        CustomToolCallOutput("c", (Text("abc"),)),
        Reasoning((Thought("abc"),)),
        Unknown("chat", "x", {"a": "abc"}),
    ):
        assert weight(item) >= 67
    assert weight(ItemReference("a")) == 65
    for item in (
        FunctionCall("c" * 1_000, "f", "{}"),
        FunctionCall("c", "f" * 1_000, "{}"),
        FunctionCallOutput("c" * 1_000, "{}"),
        Message("user", "", id="i" * 1_000),
        Message("user", "", extra={"realtime": {"a": ["x" * 1_000]}}),
        Message("user", (UnknownPart("realtime", {"a": {"x" * 1_000: 1}}),)),
        Message("user", (Text("", extra={"realtime": {"a": "x" * 1_000}}),)),
        Unknown("realtime", "x", {"a": [[{"b": "x" * 1_000}]]}),
    ):
        assert weight(item) >= 1_064


def test_an_item_that_is_not_there_is_not_found() -> None:
    items = Items(most=1, most_text=1_000, most_audio=0)
    assert "x" not in items
    assert items.get(None) is None
    with pytest.raises(FaultError):
        items.find("x")


def test_an_arena_cuts_and_forgets() -> None:
    arena = Arena(100)
    arena.add(("a", 0), b"12345678")
    arena.add(("a", 1), b"1234")
    arena.cut(("a", 0), 4)
    arena.cut(("b", 0), 4)
    assert (arena.get(("a", 0)), arena.size) == (b"1234", 8)
    arena.drop("a")
    assert arena.size == 0


def test_a_transcript_without_sound_is_not_played() -> None:
    spoken = Spoken()
    spoken.add_text("a")
    spoken.add_text("b")
    assert (spoken.text, spoken.length) == ("ab", 0)
    spoken.cut(0)
    assert spoken.text == "ab"
