"""Answers are judged by the table of fates, in the words of the wire they came on."""

import re
from typing import Any

import pytest

from dragoman.core.item import (
    Annotation,
    Audio,
    Compaction,
    FunctionCall,
    Item,
    Message,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    Token,
    Unknown,
)
from dragoman.core.response import Response, Status, Usage
from dragoman.wire.loss_table import ANSWER
from dragoman.wire.losses import judge_answer

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
        "choices[0].logprobs.refusal",
        "dropped",
    ),
    (
        "responses",
        answer(Reasoning((Thought("hm", (Token("hm"),)),))),
        "choices[0].logprobs.content",
        "dropped",
    ),
    (
        "responses",
        answer(said(Audio("AAAA", transcript="oh"))),
        "choices[0].message.audio",
        "emulated",
    ),
    ("responses", answer(said(Audio("AAAA"))), "choices[0].message.audio", "dropped"),
    ("responses", answer(said(extra=CHAT)), "choices[0].message.vendor", "dropped"),
    ("responses", answer(extra=CHAT), "vendor", "dropped"),
    ("responses", answer(usage=Usage(extra=CHAT)), "usage.vendor", "dropped"),
    *(
        ("responses", cost(**{name: 0}), f"usage.{field}", "dropped")
        for name, field in {
            "input_audio_tokens": "prompt_tokens_details.audio_tokens",
            "input_text_tokens": "prompt_tokens_details.text_tokens",
            "input_image_tokens": "prompt_tokens_details.image_tokens",
            "output_audio_tokens": "completion_tokens_details.audio_tokens",
            "output_text_tokens": "completion_tokens_details.text_tokens",
            "accepted_prediction_tokens": "completion_tokens_details.accepted_prediction_tokens",
            "rejected_prediction_tokens": "completion_tokens_details.rejected_prediction_tokens",
        }.items()
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


@pytest.mark.parametrize(
    ("target", "response", "field", "fate"), CASES, ids=[f"{c[0]}: {c[2]}" for c in CASES]
)
def test_p37_each_field_of_an_answer_meets_its_fate(
    target: str, response: Response, field: str, fate: str
) -> None:
    assert [(loss.field, loss.action) for loss in judge_answer(response, target)] == [(field, fate)]


def test_every_row_that_is_not_carried_has_a_case() -> None:
    for target, table in ANSWER.items():
        met = {(re.sub(r"\[\d+\]", "[*]", c[2]), c[3]) for c in CASES if c[0] == target}
        rows = {(r.field, r.fate) for r in table.values() if r.fate != "carried" and not r.quiet}
        assert rows - met == {("(any other field)", "dropped")}


def test_p37_how_the_server_worked_has_a_row_and_is_not_told_of_every_answer() -> None:
    quiet = {row.field: 1 for row in ANSWER["responses"].values() if row.quiet}
    assert sorted(quiet) == ["system_fingerprint", "timings"]
    losses = judge_answer(answer(extra={"chat": {**quiet, "vendor": 1}}), "responses")
    assert [loss.field for loss in losses] == ["vendor"]


@pytest.mark.parametrize("target", ["chat", "responses"])
def test_what_both_can_say_loses_nothing(target: str) -> None:
    cited = Text("a", (Annotation("url_citation", url="https://example.com"),), (Token("a"),))
    items = (
        Reasoning((Thought("hm"),)),
        said(cited, Refusal("b")),
        FunctionCall("c", "f", "{}", id="fc_1", status="completed"),
    )
    usage = Usage(1, 2, 3, 0, 0, 0)
    assert judge_answer(answer(*items, usage=usage), target) == ()
    short = answer(*items, status="incomplete", reasons=("length",))
    assert judge_answer(short, target) == ()


@pytest.mark.parametrize("target", ["chat", "responses"])
def test_on_its_own_wire_an_answer_loses_nothing(target: str) -> None:
    for other, response, field, _ in CASES:
        if other != target and field != "choices[0].message.audio":
            assert judge_answer(response, target) == (), field
