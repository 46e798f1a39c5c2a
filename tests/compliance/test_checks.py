"""The seven questions, put to every server, each whole and streamed.

All are asked at the same time, once for each server; the tests judge the answers. What is judged
by whom: the form by the published schemas and the types of the official SDK, the order of events
by its grammar, the words by what the model learned.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests import oracle
from tests.compliance.checks import CHECKS, Check, problems_of_messages
from tests.compliance.conftest import Target
from tests.product import Answer
from tests.wire.responses.order_checker import check_order, parse

Answers = dict[tuple[str, bool], Answer]

FORMS = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
NAMES = pytest.mark.parametrize("name", CHECKS)


@pytest.fixture(scope="session")
def answers(target: Target) -> Answers:
    """Every answer of one server, by the check and by whether it was streamed."""
    cases = [(name, streamed) for name in CHECKS for streamed in (False, True)]

    def ask(case: tuple[str, bool]) -> Answer:
        body = CHECKS[case[0]].body(target.model, stream=case[1])
        return target.product.post("responses", body)

    with ThreadPoolExecutor(len(cases)) as pool:
        return dict(zip(cases, pool.map(ask, cases), strict=True))


def response(answer: Answer) -> dict[str, Any]:
    """The response of an answer, out of its terminal event where it was streamed."""
    assert answer.status == 200, answer.body
    if answer.headers["content-type"] != "text/event-stream":
        return answer.json
    *_, terminal, done = answer.data
    assert done == "[DONE]"
    return terminal["response"]


@FORMS
@NAMES
def test_the_check_is_passed(target: Target, answers: Answers, name: str, streamed: bool) -> None:
    found = response(answers[name, streamed])
    assert oracle.problems(found, "openresponses") == []
    assert oracle.problems(found) == []
    assert oracle.sdk_problems(found) == []
    assert problems_of_messages(found) == []
    assert found["status"] == "completed"
    said = words(found, CHECKS[name])
    assert said if target.rehearses else said == CHECKS[name].answer


def words(found: dict[str, Any], check: Check) -> str:
    """What was said, or called with, in the only item there is."""
    (item,) = found["output"]
    if check.tool is not None:
        assert (item["type"], item["name"]) == ("function_call", check.tool)
        return str(item["arguments"])
    assert item["type"] == "message"
    return "".join(part["text"] for part in item["content"])


@NAMES
def test_every_event_is_in_order_and_in_its_schema(
    target: Target, answers: Answers, name: str
) -> None:
    events, done = parse(answers[name, True].body)
    check_order(events)
    assert done
    for event in events:
        assert oracle.problems(event, target.document) == [], event
        assert oracle.sdk_problems(event) == [], event


@NAMES
def test_r4_4_streamed_and_whole_say_the_same(answers: Answers, name: str) -> None:
    whole, streamed = (_timeless(response(answers[name, form])) for form in (False, True))
    assert whole == streamed


def _timeless(value: Any) -> Any:
    """An answer without its ids and times, and without what a cache had to do with it."""
    passing = {"id", "call_id", "created_at", "completed_at", "input_tokens_details"}
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in passing}
    return [_timeless(each) for each in value] if isinstance(value, list) else value


@NAMES
def test_r4_3_a_stream_is_framed_as_its_readers_need_it(answers: Answers, name: str) -> None:
    answer = answers[name, True]
    assert b"\r" not in answer.body
    assert b"\nid:" not in answer.body
    assert answer.body.endswith(b"\n\ndata: [DONE]\n\n")
    for write in answer.writes:
        # No event is split over two writes: some readers forget what one read has left open.
        assert write.endswith(b"\n\n")
        assert write.startswith((b"event: ", b":", b"data: [DONE]"))


@pytest.mark.parametrize("target", ["rehearsal"], indirect=True)
def test_a_stream_is_written_as_it_is_spoken(answers: Answers) -> None:
    assert len(answers["streaming-response", True].writes) > 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "message", "role": "user"},
        {"type": "message", "role": "assistant", "phase": "thinking"},
        {"type": "message", "role": "assistant", "phase": ""},
    ],
)
def test_a_message_that_is_not_the_assistants_would_be_seen(wrong: dict[str, str]) -> None:
    legal = [{"type": "message", "role": "assistant", "phase": "commentary"}, {"type": "reasoning"}]
    assert problems_of_messages({"output": legal}) == []
    assert len(problems_of_messages({"output": [*legal, wrong]})) == 1


THOUGHTS = {"openai": "response.reasoning_text", "openresponses": "response.reasoning"}


@pytest.mark.parametrize("target", ["rehearsal", "rehearsal-open"], indirect=True)
def test_thoughts_have_the_event_names_of_the_dialect(target: Target) -> None:
    asked = {"model": target.model, "input": "Count to two.", "reasoning": {"effort": "high"}}
    *events, done = target.product.post("responses", {**asked, "stream": True}).data
    assert done == "[DONE]"
    for event in events:
        assert oracle.problems(event, target.document) == [], event
    names = [event["type"] for event in events]
    assert names.count(f"{THOUGHTS[target.document]}.delta") > 3
    assert names.count(f"{THOUGHTS[target.document]}.done") == 1
