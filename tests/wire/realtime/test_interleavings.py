"""Whatever a client sends, in whatever order: no illegal sequence, no exception, and bounds."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.error import Fault
from dragoman.core.event import Failed
from dragoman.core.session_values import (
    Answered,
    Generate,
    SessionConfig,
    SessionLimits,
    SpeechStarted,
    SpeechStopped,
    Stop,
    Tick,
    Transcribe,
    Transcribed,
    Transcription,
    TurnDetection,
)
from tests.samples import samples

from .stage import Stage, calling, kinds, saying, silence, speaking, text_item

LIMITS = SessionLimits(audio=400_000, items=40, text=20_000, responses=3)
CUT = Failed(Fault("upstream_error", "It broke.", "upstream"))
ids = st.sampled_from(["u1", "u2", "item_s0001", "item_s0002", "item_s0003", "root", "nobody"])
item = st.builds(
    lambda id, text, role: text_item(text, role, **({"id": id} if id else {})),
    st.none() | ids,
    st.text("ab ", max_size=9),
    st.sampled_from(["user", "system", "assistant"]),
)
call = st.just({"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"})
output = st.just({"type": "function_call_output", "call_id": "c1", "output": "x"})
unknown = st.just({"type": "wonder", "a": 1})


def event(type: str, **fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(type), **fields})


detection = st.none() | st.fixed_dictionaries(
    {
        "type": st.sampled_from(["server_vad", "semantic_vad"]),
        "create_response": st.booleans(),
        "interrupt_response": st.booleans(),
        "idle_timeout_ms": st.sampled_from([None, 5_000]),
    }
)
client = st.one_of(
    event(
        "input_audio_buffer.append",
        audio=st.sampled_from([silence(ms) for ms in (0, 20, 400, 1_500)]),
    ),
    event("input_audio_buffer.commit"),
    event("input_audio_buffer.clear"),
    event("conversation.item.create", item=item | call | output | unknown),
    event("conversation.item.create", item=item, previous_item_id=ids),
    event("conversation.item.retrieve", item_id=ids),
    event("conversation.item.delete", item_id=ids),
    event(
        "conversation.item.truncate",
        item_id=ids,
        content_index=st.integers(0, 1),
        audio_end_ms=st.integers(0, 600),
    ),
    event("response.create"),
    event(
        "response.create",
        response=st.fixed_dictionaries(
            {"conversation": st.sampled_from(["none", "auto"])},
            optional={"input": st.lists(item, max_size=2), "instructions": st.just("x")},
        ),
    ),
    event("response.cancel"),
    event(
        "session.update",
        session=st.fixed_dictionaries(
            {"type": st.just("realtime")},
            optional={
                "audio": st.fixed_dictionaries(
                    {"input": st.fixed_dictionaries({"turn_detection": detection})}
                ),
                "output_modalities": st.sampled_from([["text"], ["audio"], ["smell"]]),
            },
        ),
    ),
    event("nonsense"),
)
answers = st.sampled_from(
    [
        saying("a", "b"),
        saying("a", end=False),
        speaking(("a ", 200), ("b", 100)),
        speaking(("a ", 200), end=False),
        calling(("c1", "f", "{}"), ("c2", "g", "{}")),
        [CUT],
    ]
)
reports = st.one_of(
    st.builds(SpeechStarted, st.integers(0, 5_000)),
    st.builds(SpeechStopped, st.integers(0, 9_000)),
    st.tuples(st.just("answer"), answers),
    st.tuples(st.just("hear"), st.booleans()),
)


@given(
    st.lists(client | reports, max_size=samples(25, 40)),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, TurnDetection()]),
)
def test_any_interleaving_is_legal_and_bounded(steps, transcribes, speaks, detects) -> None:
    config = SessionConfig(
        model="m",
        turn_detection=detects,
        transcription=Transcription(model="w") if transcribes else None,
    )
    stage = Stage(
        config=config,
        strict=False,
        transcribes=transcribes,
        speaks=speaks,
        detects=True,
        limits=LIMITS,
    )
    begun: set[str] = set()
    for step in steps:
        generating = [work for work in stage.work if isinstance(work, Generate)]
        hearing = [work for work in stage.work if isinstance(work, Transcribe)]
        if isinstance(step, dict):
            before = len(stage.events)
            stage.say(**step)
            errors = kinds(stage.events[before:]).count("error")
            assert errors <= 2  # of the command, and of sound that was dropped for it
        elif isinstance(step, SpeechStarted | SpeechStopped):
            stage.report(step)
        elif step[0] == "answer" and generating:
            id = generating[-1].response_id
            stage.report(Answered(id, [CUT] if id in begun else step[1]))
            begun.add(id)
        elif step[0] == "hear" and hearing:
            fault = None if step[1] else Fault("upstream_error", "Noise.", "upstream")
            stage.report(Transcribed(hearing[-1].item_id, "a", done=step[1], fault=fault))
        assert stage.session.size <= 400_000 + 20_000 + 10_000
    stage.report(Tick(LIMITS.lifetime_ms))
    stage.order.close()
    asked = {work.response_id for work in stage.work if isinstance(work, Generate)}
    stopped = {work.response_id for work in stage.work if isinstance(work, Stop)}
    created = [e["response"]["id"] for e in stage.events if e["type"] == "response.created"]
    ended = [e["response"]["id"] for e in stage.events if e["type"] == "response.done"]
    assert sorted(created) == sorted(ended)
    assert asked | stopped <= set(created)
