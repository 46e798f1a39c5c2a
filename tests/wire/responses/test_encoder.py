"""Everything that is said to a Responses client, held against the protocol and its readers."""

import json
from typing import Any

import pytest

from dragoman.core.event import Event
from dragoman.core.fold import fold
from dragoman.core.lifecycle import check
from dragoman.core.request import Request
from dragoman.wire.dialect import STANDARD, Dialect
from dragoman.wire.responses import RESPONSES
from tests import oracle
from tests.sdk import offline
from tests.wire.responses.order_checker import check_order, parse
from tests.wire.responses.scenes import FAILED, SCENES, play

ASKED = RESPONSES.decode_request(
    json.dumps(
        {
            "model": "asked-for",
            "input": "hi",
            "instructions": "Be brief.",
            "temperature": 0.5,
            "tools": [
                {"type": "function", "name": "first", "parameters": {}, "strict": False},
                {"type": "custom", "name": "apply_patch"},
            ],
            "metadata": {"a": "b"},
        }
    ).encode()
)
OPEN = Dialect(reasoning_events="reasoning", error_event="nested")
OPEN_ITEMS = {"message", "function_call", "function_call_output", "reasoning", "compaction"}


def say(events: list[Event], request: Request = ASKED, dialect: Dialect = STANDARD) -> bytes:
    encoder = RESPONSES.encoder(request, dialect)
    return b"".join(map(encoder.feed, events))


def told(events: list[Event], request: Request = ASKED, **dialect: Any) -> list[dict[str, Any]]:
    return parse(say(events, request, Dialect(**dialect)))[0]


@pytest.mark.parametrize("scene", SCENES)
def test_the_scenes_are_legal(scene: str) -> None:
    check(play(SCENES[scene]))


@pytest.mark.parametrize("scene", SCENES)
def test_every_stream_is_in_order(scene: str) -> None:
    check_order(told(play(SCENES[scene])))


@pytest.mark.parametrize("scene", SCENES)
def test_p17_every_event_is_valid_for_the_official_types(scene: str) -> None:
    for event in told(play(SCENES[scene])):
        assert oracle.problems(event) == [], event
        assert oracle.sdk_problems(event) == [], event


@pytest.mark.parametrize("scene", SCENES)
def test_every_event_is_valid_for_open_responses(scene: str) -> None:
    request = Request(model="m")
    for event in told(play(SCENES[scene]), request, reasoning_events="reasoning"):
        if not _extension(event):
            assert oracle.problems(event, "openresponses") == [], event


def _extension(event: dict[str, Any]) -> bool:
    """Whether an event is about what Open Responses has no words for."""
    items = [event.get("item", {}), *event.get("response", {}).get("output", [])]
    kinds = {item["type"] for item in items if item}
    quoted = "file_citation" in json.dumps(event)
    return bool(kinds - OPEN_ITEMS) or "_call" in event["type"].split(".")[1] or quoted


@pytest.mark.parametrize("scene", sorted(SCENES.keys() - FAILED))
def test_r4_4_the_plain_answer_is_the_response_of_the_terminal_event(scene: str) -> None:
    events = play(SCENES[scene])
    whole = json.loads(RESPONSES.encode_response(fold(events), ASKED, STANDARD))
    assert whole == told(events)[-1]["response"]
    assert oracle.problems(whole) == []
    assert oracle.sdk_problems(whole) == []


@pytest.mark.parametrize("scene", sorted(SCENES.keys() - FAILED))
def test_the_official_client_reads_the_same_answer_streamed_and_whole(scene: str) -> None:
    events = play(SCENES[scene])
    plain = offline.client(RESPONSES.encode_response(fold(events), ASKED, STANDARD))
    whole = plain.responses.create(model="m", input="hi").to_dict()
    with offline.client(say(events)).responses.stream(model="m", input="hi") as stream:
        last = list(stream)[-1]
    final = last.response.to_dict()
    assert _unparsed(final) == whole


def _unparsed(value: Any) -> Any:
    """The SDK's own additions (`parsed`, `parsed_arguments`) taken out again."""
    if isinstance(value, list):
        return [_unparsed(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {k: _unparsed(v) for k, v in value.items() if not k.startswith("parsed")}
