"""How much a session holds and gives, and what it says of what it does not."""

import tracemalloc
from base64 import b64encode
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dragoman.core.conversation import INAUDIBLE, NO_RESULT, config_weight, weight
from dragoman.core.error import Fault, FaultError
from dragoman.core.event import Delta, Event, Finished, ItemAdded, Started
from dragoman.core.item import (
    Audio,
    FunctionCall,
    FunctionCallOutput,
    ItemReference,
    Message,
    Reasoning,
    Text,
    Thought,
    Unknown,
)
from dragoman.core.request import NamedTool
from dragoman.core.session import FORGOTTEN, LIMITS
from dragoman.core.session_values import (
    ROOT,
    Answered,
    Append,
    BufferCommitted,
    BufferSpeechStopped,
    Cancel,
    Changes,
    Clear,
    Commit,
    Configure,
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
    SessionLimits,
    SessionUpdated,
    SpeechStarted,
    SpeechStopped,
    Tick,
    Transcribe,
    Transcribed,
    Transcription,
    TranscriptionCompleted,
    TranscriptionDelta,
)
from dragoman.core.sound import BYTES_PER_MS, Spoken, from_base64
from tests.cost import is_square

from .test_session import MANUAL, MS, QUIET, VOICE, asked, of, opened, refusal, user


def test_what_a_session_holds_is_bounded() -> None:
    limits = SessionLimits(audio=4_800, items=2, text=1_000, responses=2)
    session = opened(limits=limits)
    session.receive(user("a"))
    assert refusal(session.receive(user("b" * 1_000))).code == "too_large"
    session.receive(user("b"))
    assert refusal(session.receive(user("c"))).code == "too_large"
    assert refusal(session.receive(Respond())).code == "too_large"
    session = opened(limits=limits)
    for _ in range(2):
        session.receive(Respond(conversation=False))
    assert refusal(session.receive(Respond(conversation=False))).code == "rate_limited"
    reference = (ItemReference("nobody"),)
    session.receive(Cancel(response_id=of(session, Generate)[0].response_id))
    refused = session.receive(Respond(conversation=False, input=reference))
    assert refusal(refused).param == "response.input"


def test_what_an_answer_refers_to_counts_as_often_as_it_does() -> None:
    limits = SessionLimits(items=4, text=1_000)
    session = opened(limits=limits)
    session.receive(user("a" * 300, id="long"))
    reference = ItemReference("long")
    refused = refusal(session.receive(Respond(conversation=False, input=(reference,) * 2)))
    assert refused.code == "too_large"
    short = (Message("user", "b"),) * 5
    refused = refusal(session.receive(Respond(conversation=False, input=short)))
    assert refused.param == "response.input"
    before = session.size
    session.receive(Respond(conversation=False, input=(reference,)))
    assert session.size > before + 2 * 300  # it is asked that, and the model is given it
    session = opened(limits=SessionLimits(text=1_000))
    session.receive(Append(audio=MS * 200))
    session.receive(Commit())
    said = ItemReference(session.items.last or "")
    assert refusal(session.receive(Respond(conversation=False, input=(said,)))).code == "too_large"
    before = session.size
    session.receive(Respond())
    assert session.size > before + len(MS) * 200


def test_sound_beyond_the_limit_is_dropped_and_reported() -> None:
    limits = SessionLimits(audio=len(MS) * 400)  # 200 ms for what is appended, 200 for items
    session = opened(limits=limits)
    assert session.receive(Append(audio=MS * 200)) == []
    assert session.receive(Append(audio=MS * 50)) == []
    assert session.position == 250
    assert session.size - opened().size == len(MS) * 200
    assert session.receive(Commit())[0].losses == (FORGOTTEN,)
    session.receive(Append(audio=MS * 250))
    session.receive(Clear())
    session.receive(Append(audio=MS * 150))
    assert session.receive(Commit())[0].losses == ()
    for losses in ((FORGOTTEN,), ()):
        session.receive(Respond())
        assert session.receive(Cancel())[-1].response.losses == losses
    (found,) = session.receive(Retrieve(item_id="item_s0001"))
    assert isinstance(found, ItemRetrieved)
    assert isinstance(found.item, Message)
    (part,) = found.item.parts
    assert isinstance(part, Audio)
    assert part.data is None


def test_the_sound_of_a_turn_for_which_there_is_no_room_is_dropped() -> None:
    session = opened(SessionConfig(model="m"), **VOICE, limits=SessionLimits(items=2))
    for end in (200, 400):
        session.receive(Append(audio=MS * 200))
        session.receive(SpeechStarted(end - 150))
        assert len(session.receive(SpeechStopped(end))) > 3
        session.receive(Cancel())
    session.receive(Append(audio=MS * 200))
    session.receive(SpeechStarted(450))
    stopped, refused = session.receive(SpeechStopped(600))
    assert stopped == BufferSpeechStopped("item_s0005", 600)
    assert refusal([refused]).code == "too_large"
    assert len(session.items.entries()) == 2
    assert not session.active
    session.receive(Delete(item_id="item_s0001"))
    session.receive(Append(audio=MS * 200))
    session.receive(SpeechStarted(650))
    assert len(session.receive(SpeechStopped(800))) > 3


def test_odd_bytes_never_split_a_sample() -> None:
    limits = SessionLimits(audio=96)
    session = opened(limits=limits)
    session.receive(Append(audio=b"\0" * 49))
    assert session.size - opened().size == 47


def test_a_configuration_and_what_is_asked_beside_the_conversation_are_bounded() -> None:
    limits = SessionLimits(config=1_000, text=3_000)
    session = opened(limits=limits)
    assert refusal(session.receive(Configure(changes={"instructions": "a" * 1_000}))).code == (
        "too_large"
    )
    assert session.config.instructions == ""
    session.receive(Configure(changes={"instructions": "a" * 700}))
    assert session.size - opened().size == 700
    long = Respond(changes={"instructions": "b" * 1_000}, conversation=False)
    assert refusal(session.receive(long)).code == "too_large"
    asked = Respond(conversation=False, input=(Message("user", "c" * 1_500),))
    session.receive(asked)
    assert session.size - opened().size > 2_200
    assert refusal(session.receive(asked)).code == "too_large"
    assert refusal(session.receive(user("d" * 1_000))).code == "too_large"
    session.receive(Cancel(response_id=of(session, Generate)[0].response_id))
    session.receive(user("d" * 1_000))
    assert [weight(entry.item) for entry in session.items.entries()] == [1_138]


def test_sound_is_no_input_of_a_single_answer() -> None:
    session = opened()
    said = Message("user", (Audio("AAAA", "pcm16"),))
    fault = refusal(session.receive(Respond(conversation=False, input=(said,))))
    assert (fault.code, fault.param) == ("unsupported", "response.input")


def test_an_item_is_given_back_with_as_much_sound_as_an_event_may_have() -> None:
    session = opened(limits=SessionLimits(retrieved=len(MS) * 150))
    for length in (150, 151):
        session.receive(Append(audio=MS * length))
        session.receive(Commit())
    short, long = [
        session.receive(Retrieve(item_id=entry.item.id or ""))[0]
        for entry in session.items.entries()
    ]
    assert isinstance(short, ItemRetrieved)
    assert isinstance(long, ItemRetrieved)
    assert short.losses == ()
    (loss,) = long.losses
    assert (loss.field, loss.action) == ("audio", "dropped")
    assert [weight(each.item) for each in (short, long)] == [138 + 9_600, 138]


def test_errors_about_ids_have_the_codes_that_clients_know() -> None:
    session = opened()
    session.receive(user("a", "one"))
    for id in ("one", ROOT):
        assert refusal(session.receive(user("b", id))).code == "item_exists"
    assert refusal(session.receive(Retrieve(item_id="two"))).code == "item_not_found"
    assert refusal(session.receive(Delete(item_id="two"))).code == "not_found"
    assert refusal(session.receive(Cancel())).message.startswith("Cancellation failed")


@pytest.mark.parametrize("text", ["AA==AAAA", "A", "!!!!", "é", "AA==="])
def test_what_is_no_base64_is_no_sound(text) -> None:
    with pytest.raises(ValueError):
        from_base64(text)


def test_a_long_piece_of_a_transcript_is_cut_in_one_pass() -> None:
    """It took a minute, as the rest was summed up again for each word that was dropped."""
    spoken = Spoken()
    spoken.add_text("word " * 50_000)
    spoken.add_sound(len(MS) * 1_000)
    spoken.cut(501)
    assert len(spoken.text) == 5 * 25_050


def test_a_configuration_that_json_does_not_have_is_weighed() -> None:
    plain = config_weight(SessionConfig(), 1_000)
    assert config_weight(SessionConfig(extra={"a": "\ud800"}), 1_000) > plain
    with pytest.raises(FaultError, match="characters"):
        config_weight(SessionConfig(extra={"a": "\ud800" * 1_000}), 1_000)


def test_all_sound_of_an_item_is_transcribed_at_once() -> None:
    session = opened(replace(MANUAL, transcription=Transcription(model="w")), **VOICE)
    one, two = (b64encode(MS * ms).decode() for ms in (200, 300))
    session.receive(CreateItem(item=Message("user", (Text("a"), Audio(one), Audio(two)))))
    (work,) = of(session, Transcribe)
    assert work.audio == MS * 500
    session.receive(Respond())
    assert session.receive(Transcribed(work.item_id, "b ")) == [
        TranscriptionDelta(work.item_id, 1, "b ")
    ]
    (told,) = session.receive(Transcribed(work.item_id, "c", done=True))
    assert told == TranscriptionCompleted(work.item_id, 1, "b c", 0.5)
    (asked,) = of(session, Generate)
    assert asked.request.items == (Message("user", (Text("a"), Text("b c"))),)
    assert asked.sounds == ()


def test_a_model_that_does_not_hear_gets_no_sound_of_a_turn_that_was_not_understood() -> None:
    session = opened(**VOICE)
    session.receive(Append(audio=MS * 500))
    session.receive(Commit())
    (work,) = of(session, Transcribe)
    session.receive(Transcribed(work.item_id, fault=Fault("overloaded", "Busy.", "server")))
    session.receive(user("Again."))
    session.receive(Respond())
    (asked,) = of(session, Generate)
    assert [item.parts for item in asked.request.items] == [(Text(INAUDIBLE),), (Text("Again."),)]
    assert asked.sounds == ()


def test_a_call_that_was_cut_short_is_not_for_the_model() -> None:
    session = opened(**VOICE)
    session.receive(Respond())
    (work,) = of(session, Generate)
    call = FunctionCall("c1", "f", "")
    half: list[Event] = [ItemAdded(0, call), Delta(0, 0, "arguments", '{"a": ')]
    session.receive(Answered(work.response_id, half))
    session.receive(Cancel())
    session.receive(user("Go on."))
    session.receive(Respond())
    (work,) = of(session, Generate)
    assert work.request.items == (Message("user", (Text("Go on."),)),)
    session.receive(Cancel())
    # The client has understood it.
    result = FunctionCallOutput("c1", "1")
    session.receive(CreateItem(item=result))
    session.receive(Respond())
    (work,) = of(session, Generate)
    assert work.request.items[1:3] == (FunctionCall("c1", "f", '{"a": '), result)
    session.receive(Cancel())
    # Its server repeats the ids of calls.
    session.receive(CreateItem(item=FunctionCall("c1", "g", "{}")))
    session.receive(Respond())
    (work,) = of(session, Generate)
    assert work.request.items[1:] == (FunctionCall("c1", "g", "{}"), result)
    session.receive(Cancel())
    session.receive(CreateItem(item=FunctionCallOutput("c1", "2")))
    session.receive(Respond())
    (work,) = of(session, Generate)
    outputs = [getattr(item, "output", "") for item in work.request.items[1:]]
    assert outputs == ["", "1", "", "", "2"]


def test_calls_of_one_id_get_a_result_each_and_none_gets_it_twice() -> None:
    """3,000 calls and one result of 1 MB were a request of 3 GB."""
    call, said = FunctionCall("c", "f", "{}"), Message("user", (Text("x"),))
    one, two = FunctionCallOutput("c", "1"), FunctionCallOutput("c", "2")
    assert asked(said, call, one, said, call, two) == (said, call, one, said, call, two)
    none = FunctionCallOutput("c", NO_RESULT)
    assert asked(said, call, call, call, one)[1:] == (call, call, call, one, none, none)
    assert asked(said, call, one, two) == (said, call, one)


def test_servers_that_want_the_users_words_and_no_lone_reasoning_get_them() -> None:
    """Such as Anthropic's: each later turn of the session was refused."""
    said, answer = Message("user", (Text("x"),)), Message("assistant", (Text("y"),))
    thought, call = Reasoning((Thought("Hm."),)), FunctionCall("c1", "f", "{}")
    result, system = FunctionCallOutput("c1", "1"), Message("system", (Text("z"),))
    cut = Message("assistant", (Audio(None, "pcm16", ""),))
    noise = Message("user", (Audio(None, "pcm16", ""),))
    assert asked(said, thought, cut, said) == (said, said)
    assert asked(said, thought) == (said,)
    heard = (said, thought, thought, answer, Message("user", (Text(INAUDIBLE),)))
    assert asked(said, thought, thought, answer, noise) == heard
    assert asked(said, thought, call, result) == (said, thought, call, result)
    assert asked() == (QUIET,)
    assert asked(system) == (system, QUIET)
    assert asked(system, answer, system) == (system, QUIET, answer, system, QUIET)
    listed = Unknown("responses", "mcp_list_tools", {"tools": []}, "mcpl_1")
    assert asked(thought, answer, said) == (QUIET, thought, answer, said)
    assert asked(listed, answer, said) == (listed, QUIET, answer, said)
    assert asked(listed, said, answer, said) == (listed, said, answer, said)
    assert asked(listed) == (listed, QUIET)


def test_a_session_that_expires_begins_no_answer() -> None:
    session = opened(SessionConfig(model="m"), **VOICE)
    session.receive(Append(audio=MS * 500))
    session.receive(SpeechStarted(0))
    session.receive(Respond())
    session.receive(SpeechStopped(400))
    events = session.receive(Tick(LIMITS.lifetime_ms))
    assert [type(event) for event in events] == [ResponseDone, Refused]


def test_what_nothing_acts_on_is_reported() -> None:
    session = opened(**VOICE)
    asked: Changes = {"noise_reduction": {"type": "near_field"}, "truncation": "auto"}
    (updated,) = session.receive(Configure(changes={**asked, "tracing": {}}))
    assert isinstance(updated, SessionUpdated)
    assert [loss.field for loss in updated.losses] == ["noise_reduction", "tracing"]


def test_what_cannot_hold_without_a_voice_is_reported() -> None:
    session = opened()
    asked = Transcription(model="w")
    (updated,) = session.receive(Configure(changes={"transcription": asked}))
    assert isinstance(updated, SessionUpdated)
    assert updated.config.transcription is None
    assert [loss.field for loss in updated.losses] == ["transcription"]
    session.receive(Respond(changes={"modalities": ("audio",)}))
    (done,) = session.receive(Cancel())
    assert isinstance(done, ResponseDone)
    assert [loss.field for loss in done.response.losses] == ["output_modalities"]


def test_an_utterance_goes_on_where_a_change_repeats_the_turn_detection() -> None:
    session = opened(SessionConfig(model="m"), **VOICE)
    session.receive(Append(audio=MS * 500))
    session.receive(SpeechStarted(100))
    same = session.config.turn_detection
    session.receive(Configure(changes={"turn_detection": same, "instructions": "Be brief."}))
    assert of(session, Forget) == []
    stopped, committed, *_ = session.receive(SpeechStopped(400))
    assert stopped == BufferSpeechStopped("item_s0001", 400)
    assert committed == BufferCommitted("item_s0001", None)


@pytest.mark.uncounted
def test_a_transcript_of_blanks_is_cut_in_linear_time() -> None:
    def cut(count: int) -> None:
        spoken = Spoken()
        spoken.add_text(" " * count)
        spoken.add_sound(48_000)
        spoken.cut(500)
        assert not spoken.text

    assert not is_square(cut, 2_000)


def peak_of(work: Callable[[], object]) -> int:
    """The most bytes that this allocates beside what was there."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_transcript_is_cut_without_a_list_of_its_words() -> None:
    """15 MB of short words held up the loop for 4 s, and took 330 MB."""
    spoken = Spoken()
    spoken.add_text("a " * 200_000)
    spoken.add_sound(48_000)
    assert peak_of(lambda: spoken.cut(500)) < 1_500_000
    assert spoken.text == "a " * 100_000


def test_a_piece_of_a_transcription_costs_no_copy_of_the_pieces_before() -> None:
    """400,000 pieces of a character each took 40 s."""
    session = opened(replace(MANUAL, transcription=Transcription(model="w")), **VOICE)
    session.receive(Append(audio=MS * 500))
    session.receive(Commit())
    (work,) = of(session, Transcribe)
    session.receive(Transcribed(work.item_id, "\N{GRINNING FACE}" * 500_000))
    piece = Transcribed(work.item_id, "a")
    session.receive(piece)  # which may make room for more
    assert peak_of(lambda: session.receive(piece)) < 100_000
    (told,) = session.receive(Transcribed(work.item_id, done=True))
    assert isinstance(told, TranscriptionCompleted)
    assert len(told.transcript) == 500_002


def test_sound_without_a_text_begins_no_piece() -> None:
    """Each began one that nothing counted, and of the text before it a cut kept too much."""
    spoken = Spoken()
    spoken.add_text("One two three four. ")

    def sounds() -> None:
        for _ in range(10_000):
            spoken.add_text("")
            spoken.add_sound(BYTES_PER_MS)

    assert peak_of(sounds) < 10_000
    spoken.cut(5_000)
    assert spoken.text == "One two "


def test_a_cut_copies_none_of_many_pieces() -> None:
    """It went through all of them: 95,000 took 80 ms, for each of many cuts."""
    spoken = Spoken()
    for number in range(10_000):
        spoken.add_text(f"{number % 10} ")
        spoken.add_sound(BYTES_PER_MS)
    spoken.cut(9_999)
    assert peak_of(lambda: spoken.cut(8_001)) < 100_000
    assert (spoken.length, len(spoken.text), spoken.text[-4:]) == (8_001, 16_002, "9 0 ")


def test_what_a_session_never_does_is_reported() -> None:
    session = opened(MANUAL, **VOICE)
    (updated,) = session.receive(Configure(changes={"model": "n", "tracing": "auto"}))
    assert isinstance(updated, SessionUpdated)
    assert updated.config.model == MANUAL.model
    assert [loss.field for loss in updated.losses] == ["tracing", "model"]


@pytest.mark.parametrize("choice", ["required", NamedTool("f")])
def test_a_choice_of_an_answer_without_tools_is_reported(choice) -> None:
    session = opened(replace(MANUAL, modalities=("text",)))
    (updated,) = session.receive(Configure(changes={"tool_choice": choice}))
    assert isinstance(updated, SessionUpdated)
    assert updated.losses == ()
    session.receive(Respond())
    (work,) = of(session, Generate)
    answer = [Started("1", 0, "m"), Finished("completed")]
    done = session.receive(Answered(work.response_id, answer))[-1]
    assert isinstance(done, ResponseDone)
    assert [loss.field for loss in done.response.losses] == ["tool_choice"]
