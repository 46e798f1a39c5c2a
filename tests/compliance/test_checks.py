"""Seven requests that every Responses server must answer, each whole and streamed.

All are sent at the same time, once to each server. The form is judged by the published schemas and
the official SDK, the order of events by its grammar, the text by what the tiny test model learned;
a server without a model may say anything in the right form.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests import oracle
from tests.compliance.conftest import Target
from tests.product import Answer
from tests.wire.responses.order_checker import check_order, parse

JSON = Any

PHASES = (None, "commentary", "final_answer")
_PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQ"
    "DwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Looks up the weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


@dataclass(frozen=True)
class Check:
    """A question. `answer` is what the tiny model says: a text, or the arguments of its call."""

    name: str
    input: JSON
    answer: str
    fields: dict[str, JSON]
    tool: str | None = None

    def body(self, model: str, **fields: JSON) -> dict[str, JSON]:
        """The request, without chance."""
        return {"model": model, "input": self.input, "temperature": 0, **self.fields, **fields}


def _check(name: str, input: JSON, answer: str, tool: str | None = None, **fields: JSON) -> Check:
    return Check(name, input, answer, fields, tool)


def _said(role: str, text: str, **fields: JSON) -> dict[str, JSON]:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text}]
    return {"type": "message", "role": role, "content": content, **fields}


HELLO = "Hello! How can I help you?"

CHECKS = {
    check.name: check
    for check in (
        _check("basic-response", [{"role": "user", "content": "Hello!"}], HELLO),
        _check(
            "assistant-phase",
            [
                _said("user", "My name is Ada."),
                _said("assistant", "Nice to meet you, Ada.", phase="commentary"),
                _said("user", "ping"),
                _said("assistant", "pong", phase="final_answer"),
                _said("user", "What is my name?"),
            ],
            "Your name is Ada.",
        ),
        _check("streaming-response", "Count to five.", "1, 2, 3, 4, 5.", stream=True),
        _check(
            "system-prompt",
            [_said("system", "Be brief."), _said("user", "ping")],
            "pong",
        ),
        _check(
            "tool-calling",
            [_said("user", "What is the weather in Paris?")],
            '{"city": "Paris"}',
            "get_weather",
            tools=[_WEATHER],
        ),
        _check(
            "image-input",
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "Describe this image."},
                        {"type": "input_image", "image_url": _PIXEL},
                    ],
                }
            ],
            "I do not know that. I am only a tiny test model.",
        ),
        _check(
            "multi-turn",
            [
                {"role": "user", "content": "My name is Grace."},
                {"role": "assistant", "content": "Nice to meet you, Grace."},
                {"role": "user", "content": "What is my name?"},
            ],
            "Your name is Grace.",
        ),
    )
}


def problems_of_messages(response: dict[str, JSON]) -> list[str]:
    """What is wrong with the messages of an answer: each is the assistant's, in a legal phase."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    wrong = [f"role {m['role']!r}" for m in messages if m["role"] != "assistant"]
    wrong += [f"phase {m['phase']!r}" for m in messages if m.get("phase") not in PHASES]
    return wrong


Answers = dict[tuple[str, bool], Answer]

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


@NAMES
def test_answer_fits_the_schemas_and_has_the_learned_text(
    target: Target, answers: Answers, name: str
) -> None:
    for streamed in (False, True):
        found = response(answers[name, streamed])
        assert oracle.problems(found, "openresponses") == []
        assert oracle.problems(found) == []
        assert oracle.sdk_problems(found) == []
        assert problems_of_messages(found) == []
        assert found["status"] == "completed"
        said = words(found, CHECKS[name])
        assert said if target.is_demo else said == CHECKS[name].answer


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
def test_r4_4_streamed_and_whole_answers_are_equal(answers: Answers, name: str) -> None:
    whole, streamed = (_timeless(response(answers[name, form])) for form in (False, True))
    assert whole == streamed


def _timeless(value: Any) -> Any:
    """An answer without its ids and times, and without what a cache had to do with it."""
    passing = {"id", "call_id", "created_at", "completed_at", "input_tokens_details"}
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in passing}
    return [_timeless(each) for each in value] if isinstance(value, list) else value


@NAMES
def test_r4_3_each_write_of_a_stream_has_whole_events_without_ids(
    answers: Answers, name: str
) -> None:
    answer = answers[name, True]
    assert b"\r" not in answer.body
    assert b"\nid:" not in answer.body
    assert answer.body.endswith(b"\n\ndata: [DONE]\n\n")
    for write in answer.writes:
        # No event is split over two writes: some readers forget what one read has left open.
        assert write.endswith(b"\n\n")
        assert write.startswith((b"event: ", b":", b"data: [DONE]"))


THOUGHTS = {"openai": "response.reasoning_text", "openresponses": "response.reasoning"}


@pytest.mark.parametrize("target", ["demo", "demo-open"], indirect=True)
def test_reasoning_has_the_event_names_of_the_dialect(target) -> None:
    asked = {"model": target.model, "input": "Count to two.", "reasoning": {"effort": "high"}}
    *events, done = target.product.post("responses", {**asked, "stream": True}).data
    assert done == "[DONE]"
    for event in events:
        assert oracle.problems(event, target.document) == [], event
    names = [event["type"] for event in events]
    assert names.count(f"{THOUGHTS[target.document]}.delta") > 3
    assert names.count(f"{THOUGHTS[target.document]}.done") == 1
