"""Answers are judged by the loss table of the client's wire, fields named as in the core."""

from typing import Any

import pytest

from dragoman.core.item import (
    Annotation,
    Audio,
    Compaction,
    File,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemReference,
    Message,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    Token,
    Unknown,
    UnknownPart,
)
from dragoman.core.loss import Loss
from dragoman.core.response import Response, Status, Usage
from dragoman.wire.losses import OTHER, judge
from dragoman.wire.registry import WIRES

ANNOTATIONS = "output[0].content[0].annotations"
CHAT = {"chat": {"vendor": 1}}
RESPONSES = {"responses": {"vendor": 1}}


def answer(*items: Item, status: Status = "completed", **fields: Any) -> Response:
    fields = {"reasons": ("stop",), **fields}
    return Response(id="1", created_at=0, model="m", status=status, output=items, **fields)


def said(*parts: Any, **fields: Any) -> Message:
    return Message("assistant", parts, **fields)


def cost(**tokens: int) -> Response:
    return answer(usage=Usage(input_tokens=1, **tokens))


CASES: list[tuple[str, Response, str, str]] = [
    ("responses", answer(said(), said(), choices=(0, 1)), "choices[1]", "dropped"),
    (
        "responses",
        answer(said(Refusal("no", (Token("no"),)))),
        "output[0].content[0].logprobs",
        "dropped",
    ),
    (
        "responses",
        answer(Reasoning((Thought("hm", (Token("hm"),)),))),
        "output[0].content[0].logprobs",
        "dropped",
    ),
    (
        "responses",
        answer(said(Audio("AAAA", transcript="oh"))),
        "output[0].content[0].audio",
        "emulated",
    ),
    ("responses", answer(said(Audio("AAAA"))), "output[0].content[0].audio", "dropped"),
    ("responses", answer(said(extra=CHAT)), "output[0].vendor", "dropped"),
    ("responses", answer(extra=CHAT), "vendor", "dropped"),
    ("responses", answer(usage=Usage(extra=CHAT)), "usage.vendor", "dropped"),
    *(
        ("responses", cost(**{name: 0}), f"usage.{name}", "dropped")
        for name in (
            *("input_audio_tokens", "input_text_tokens", "input_image_tokens"),
            *("output_audio_tokens", "output_text_tokens"),
            *("accepted_prediction_tokens", "rejected_prediction_tokens"),
        )
    ),
    *(
        (wire, answer(said(part)), "output[0].content[0]", "dropped")
        for wire in ("chat", "responses")
        for part in (File("f"), UnknownPart("other", {}))
    ),
    ("responses", answer(Unknown("chat", "odd", {})), "output[0]", "dropped"),
    ("completions", answer(Reasoning((Thought("hm"),))), "output[0]", "dropped"),
    ("completions", answer(said(Refusal("no"))), "output[0].content[0]", "dropped"),
    ("completions", answer(said(Text("a", (Annotation("x"),)))), ANNOTATIONS, "dropped"),
    ("completions", answer(said(phase="final")), "output[0].phase", "dropped"),
    *(
        ("chat", answer(item), "output[0]", "dropped")
        for item in (FunctionCallOutput("c", ""), ItemReference("msg_1"))
    ),
    (
        "chat",
        answer(status="incomplete", reasons=("steered",)),
        "incomplete_details.reason",
        "emulated",
    ),
    ("chat", answer(said(Text("a")), said(Text("b"))), "output", "emulated"),
    ("chat", answer(said(Text("a"), phase="commentary")), "output[0].phase", "dropped"),
    (
        "chat",
        answer(said(Text("a", (Annotation("file_citation"),)))),
        "output[0].content[0].annotations",
        "dropped",
    ),
    ("chat", answer(Reasoning(summary=(Summary("s"),))), "output[0].summary", "emulated"),
    ("chat", answer(Reasoning((Thought("t"),), (Summary("s"),))), "output[0].summary", "dropped"),
    ("chat", answer(Reasoning(encrypted="x")), "output[0].encrypted_content", "dropped"),
    ("chat", answer(Compaction("x")), "output[0]", "dropped"),
    ("chat", answer(Unknown("responses", "web_search_call", {})), "output[0]", "dropped"),
    ("chat", answer(said(extra=RESPONSES)), "output[0].vendor", "dropped"),
]


def lost(response: Response, target: str) -> list[Loss]:
    return list(judge(response, WIRES[target].losses))


@pytest.mark.parametrize(
    ("target", "response", "field", "action"), CASES, ids=[f"{c[0]}: {c[2]}" for c in CASES]
)
def test_p37_each_field_of_an_answer_is_treated_as_its_row_says(
    target: str, response: Response, field: str, action: str
) -> None:
    assert [(loss.field, loss.action) for loss in lost(response, target)] == [(field, action)]


@pytest.mark.parametrize("target", WIRES)
def test_every_row_that_loses_something_has_a_case(target: str) -> None:
    met = {loss.why for wire, answer, *_ in CASES if wire == target for loss in lost(answer, wire)}
    rows = WIRES[target].losses.answer.rows
    assert {row.why for row in rows if row.action != "carried" and not row.silent} == met - {
        OTHER.why
    }


def test_p37_how_the_server_worked_is_not_reported_of_every_answer() -> None:
    quiet = {"system_fingerprint": "fp", "timings": {}}
    losses = lost(answer(extra={"chat": {**quiet, "vendor": 1}}), "responses")
    assert [loss.field for loss in losses] == ["vendor"]


def test_an_answer_cannot_be_refused() -> None:
    for wire in WIRES.values():
        assert "refused" not in {row.action for row in wire.losses.answer.rows}


@pytest.mark.parametrize("target", ["chat", "responses"])
def test_what_both_can_say_loses_nothing(target: str) -> None:
    cited = Text("a", (Annotation("url_citation", url="https://example.com"),), (Token("a"),))
    items = (
        Reasoning((Thought("hm"),)),
        said(cited, Refusal("b")),
        FunctionCall("c", "f", "{}", id="fc_1", status="completed"),
    )
    usage = Usage(1, 2, 3, 0, 0, 0)
    assert lost(answer(*items, usage=usage), target) == []
    short = answer(*items, status="incomplete", reasons=("length",))
    assert lost(short, target) == []


@pytest.mark.parametrize("target", ["chat", "responses"])
def test_on_its_own_wire_an_answer_loses_nothing(target: str) -> None:
    for other, response, field, _ in CASES:
        # Sound that has a transcript is text too, and a part of no wire is lost on all.
        if other != target and other != "completions" and field != "output[0].content[0]":
            assert lost(response, target) == [], field
