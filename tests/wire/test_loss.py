"""Requests are judged by the loss table of the target wire: each field by its row."""

import json
import re
from collections.abc import Iterator
from cProfile import Profile
from typing import Any, get_args, get_type_hints

import pytest
from msgspec import Struct, convert
from msgspec.structs import fields as struct_fields
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.core.item import (
    Annotation,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    Token,
    UnknownPart,
)
from dragoman.core.loss import Loss
from dragoman.core.request import (
    Completion,
    FunctionTool,
    JSONSchema,
    ReasoningOptions,
    Request,
    Sampling,
    UnknownTool,
)
from dragoman.core.response import Response, Usage
from dragoman.wire.losses import OTHER, Losses, Row, Table, header, judge
from dragoman.wire.registry import WIRES, spell_fault, spell_losses
from tests.answers import answer
from tests.architecture.tree import ROOT
from tests.cases import cases

USER = Message("user", "hi")


def said(*items: Item) -> Request:
    return Request(model="m", items=(USER, *items))


def asked(**fields: Any) -> Request:
    return Request(model="m", items=(USER,), **fields)


def sampled(**fields: Any) -> Request:
    return asked(sampling=Sampling(**fields))


CHAT = {"chat": {"vendor": 1}}
RESPONSES = {"responses": {"vendor": 1}}
HOSTED = UnknownTool("responses", "web_search", {})

CASES = cases(__file__, "losses")
"""Requests and answers with what each loses on a wire, and requests that both wires carry."""
REQUESTS = [(wire, convert(asked, Request), *rest) for wire, asked, *rest in CASES["requests"]]
ANSWERS = [(wire, convert(answer, Response), *rest) for wire, answer, *rest in CASES["answers"]]

CLIENT = {"chat": "responses", "responses": "chat", "messages": "responses"}
"""The wire of the client, by that of the model's server."""


def lost(request: Request, target: str) -> list[Loss]:
    """What a request loses, as the client of the other wire reads it."""
    try:
        losses = judge(request, WIRES[target].losses)
    except FaultError as error:
        raise FaultError(spell_fault(error.fault, request, CLIENT[target])) from None
    return list(spell_losses(losses, request, CLIENT[target]))


@pytest.mark.parametrize(
    ("target", "request_", "field", "action"), REQUESTS, ids=[f"{c[0]}: {c[2]}" for c in REQUESTS]
)
def test_p37_each_field_is_treated_as_its_row_says(target, request_, field, action) -> None:
    if action == "refused":
        with pytest.raises(FaultError) as raised:
            lost(request_, target)
        fault = raised.value.fault
        assert (fault.code, fault.blame, fault.param) == ("unsupported", "client", field)
        assert field in fault.message
    else:
        assert (field, action) in [(loss.field, loss.action) for loss in lost(request_, target)]


def test_leaving_out_an_emulated_summary_loses_nothing() -> None:
    """The summary we gave says what the reasoning says; clients send both back."""
    same = said(Reasoning((Thought("t"),), (Summary("t"),)))
    assert lost(same, "chat") == []
    for summary in ((Summary("s"),), (Summary("t"), UnknownPart("responses", {"type": "x"}))):
        other = said(Reasoning((Thought("t"),), summary))
        assert "input[1].summary" in [loss.field for loss in lost(other, "chat")]


def reason(request: Request, target: str) -> list[str]:
    try:
        return [loss.why for loss in lost(request, target)]
    except FaultError as error:
        return [error.fault.message.partition("cannot be carried: ")[2]]


@pytest.mark.parametrize("target", CLIENT)
def test_every_row_that_loses_something_has_a_case(target) -> None:
    met = {
        why for wire, request, *_ in REQUESTS if wire == target for why in reason(request, target)
    }
    rows = WIRES[target].losses.request.rows
    unmet = {row.why for row in rows if row.action != "carried" and not row.silent} - met
    assert all(why.endswith("takes conversations, no bare prompts") for why in unmet)


def test_a_bare_prompt_is_refused_where_only_conversations_are_taken() -> None:
    prompt = Completion(model="m", prompts=("Once",))
    for target in CLIENT:
        with pytest.raises(FaultError, match="no bare prompts") as raised:
            judge(prompt, WIRES[target].losses)
        assert raised.value.fault.param == "prompts"
    assert judge(prompt, WIRES["completions"].losses) == ()


@pytest.mark.parametrize(
    ("fields", "field", "action"),
    [
        ({"items": (USER,)}, "items", "refused"),
        ({"format": JSONSchema("a")}, "format", "refused"),
        ({"background": True}, "background", "refused"),
        ({"modalities": ("audio",)}, "modalities", "refused"),
        ({"previous_response_id": "r"}, "previous_response_id", "refused"),
        ({"store": True}, "store", "dropped"),
        ({"reasoning": ReasoningOptions("low")}, "reasoning", "dropped"),
        ({"tools": (FunctionTool("f"),), "tool_choice": HOSTED}, "tools", "dropped"),
        ({"include": ("new.thing",)}, "include[new.thing]", "dropped"),
        ({"metadata": {"a": "b"}}, "metadata", "dropped"),
        ({"extra": CHAT}, "vendor", "dropped"),
    ],
)
def test_fields_without_a_form_in_completions_are_dropped_or_refused(fields, field, action) -> None:
    prompt = Completion(model="m", prompts=("Once",), **fields)
    try:
        losses = [(loss.field, loss.action) for loss in judge(prompt, WIRES["completions"].losses)]
    except FaultError as error:
        losses = [(str(error.fault.param), "refused")]
    assert (field, action) in losses


@pytest.mark.parametrize("asked", CASES["carried"], ids=range(len(CASES["carried"])))
@pytest.mark.parametrize("target", ["chat", "responses"])
def test_request_that_both_wires_carry_loses_nothing(asked, target) -> None:
    assert lost(convert(asked, Request), target) == []


def test_request_loses_nothing_on_its_own_wire() -> None:
    """What Messages cannot say is what neither of OpenAI's can, or both can."""
    for target, request, field, _ in REQUESTS:
        # What a tool returns is hoisted by Chat itself, and no wire has tokens of a refusal.
        hoisted = isinstance(request.items[-1], FunctionCallOutput)
        if target != "messages" and not hoisted and "logprobs" not in field:
            assert lost(request, CLIENT[target]) == [], field


def members(hint: object) -> Iterator[type[Struct]]:
    if isinstance(hint, type) and issubclass(hint, Struct):
        yield hint
    for inner in get_args(hint):
        yield from members(inner)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("root", "side"), [(Request, "request"), (Response, "answer")])
def test_every_field_of_the_core_has_a_row_on_every_wire(root, side, wire) -> None:
    """Law 5. What goes whole with the field that holds it needs no rows of its own."""
    table: Table = getattr(WIRES[wire].losses, side)
    rows = {row.field for row in table.rows}
    whole = {row.field for row in table.rows if row.action in ("dropped", "refused")}
    missing, seen, todo = set(), set(), [root]
    while todo:
        kind = todo.pop()
        if kind in seen or kind in (Fault, Loss):
            continue
        seen.add(kind)
        for field, hint in get_type_hints(kind).items():
            name = f"{kind.__name__}.{field}"
            if field != "extra" and not {name, kind.__name__} & rows:
                missing.add(name)
            if not {name, kind.__name__} & whole:
                todo += members(hint)
    assert missing == set()
    known = {kind.__name__: {f.name for f in struct_fields(kind)} for kind in seen}
    known["Completion"] = {"prompts", "echo"}
    for row in rows:
        kind, _, field = row.partition(".")
        assert " " in kind or not field or field in known[kind], f"{row} is no field"


def test_a_part_of_reasoning_stays_on_its_own_wire() -> None:
    assert lost(said(Reasoning((UnknownPart("chat", {}),))), "chat") == []


def test_log_probabilities_asked_for_in_responses_own_way_are_not_emulated_again() -> None:
    request = replace(sampled(logprobs=True), include=("message.output_text.logprobs",))
    assert lost(request, "responses") == []


def test_an_often_repeated_loss_is_named_once() -> None:
    turns = (Message("assistant", "a", id=f"msg_{n}", phase="commentary") for n in range(50))
    losses = lost(said(*turns), "chat")
    assert [loss.field for loss in losses] == ["input[*].phase", "input[*].id"]


def test_a_place_is_counted_in_messages() -> None:
    turn = (
        Reasoning((Thought("hm"),)),
        Message("assistant", "I look."),
        FunctionCall("c1", "f", "{}"),
        FunctionCall("c2", "f", "{}"),
    )
    results = (FunctionCallOutput("c1", "1"), FunctionCallOutput("c2", "2"))
    again = Message("assistant", "So.", extra={"turn": {"new": True}})
    named = Message("user", "me", name="Ada")
    losses = lost(said(*turn, *results, Message("assistant", "So."), again, named), "responses")
    assert [loss.field for loss in losses] == ["messages[6].name"]


def test_a_plain_request_is_judged_in_few_calls() -> None:
    turns = (USER, Message("assistant", "Hello."), Message("user", "What is new?"))
    request = Request(model="m", items=(Message("system", "Be brief."), *turns), stream=True)
    for target in CLIENT:
        losses = WIRES[target].losses
        judge(request, losses)
        with Profile() as profile:
            judge(request, losses)
        assert sum(each.callcount for each in profile.getstats()) < 100, target


@pytest.mark.parametrize("action", ["carried", "emulated", "dropped", "refused"])
def test_p37_a_change_of_action_is_a_change_of_one_word(action) -> None:
    losses = Losses("toy", Table((Row("Sampling.seed", action, "why"),)), Table())
    if action == "refused":
        with pytest.raises(FaultError, match="seed: cannot be carried: why"):
            judge(sampled(seed=0), losses)
    else:
        expected = [] if action == "carried" else [("seed", action)]
        found = judge(sampled(seed=0), losses)
        assert [(loss.field, loss.action) for loss in found] == expected


def test_servers_that_only_another_wire_names_are_refused() -> None:
    servers = {"mcp_servers": [{"type": "url", "url": "http://a", "name": "a"}]}
    asked = replace(said(), extra={"messages": servers})
    assert judge(asked, WIRES["messages"].losses) == ()
    for target in ("chat", "responses"):
        with pytest.raises(FaultError) as raised:
            judge(asked, WIRES[target].losses)
        assert (raised.value.fault.code, raised.value.fault.param) == ("unsupported", "mcp_servers")
        (loss,) = judge(
            replace(asked, extra={"messages": {"mcp_servers": []}}), WIRES[target].losses
        )
        assert loss.action == "dropped"


def test_unknown_fields_inside_known_ones_are_found() -> None:
    extra = {
        "responses": {"text": {"a": 1, "b": None}, "c": 0, "d": None},
        "toy": {"own": 1},
        "turn": {"new": True},
        "upstream": {"id": "1"},
    }
    losses = judge(asked(extra=extra), Losses("toy", Table(), Table()))
    assert [loss.field for loss in losses] == ["text.a", "c"]


@pytest.mark.uncounted
def test_places_are_counted_once_however_many_fields_are_lost() -> None:
    """A client may give each of its messages another unknown field."""
    items = tuple(Message("user", "?", extra={"chat": {f"x{n}": 1}}) for n in range(20_000))
    request = Request(model="m", items=items)
    losses = spell_losses(judge(request, WIRES["responses"].losses), request, "chat")
    assert losses[-1].field == "messages[19999].x19999"


# ---- the published protocols -----------------------------------------------------------------

BODIES: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "responses": {"model": "m", "input": "hi"},
}
PASSED_ON = {"access_programs", "image"}  # of Responses only: they stay in `extra`


def published(document: str) -> dict[str, Any]:
    """The schemas of a protocol's own description."""
    path = ROOT / "tests" / "data" / f"{document}.json"
    schemas: dict[str, Any] = json.loads(path.read_text())["components"]["schemas"]
    return schemas


def properties(schema: dict[str, Any], schemas: dict[str, Any]) -> set[str]:
    """The fields of a schema and of those it is made of, or is one of."""
    if "$ref" in schema:
        return properties(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    made_of = [part for kind in ("allOf", "anyOf", "oneOf") for part in schema.get(kind, [])]
    return set(schema.get("properties", {})).union(*(properties(p, schemas) for p in made_of))


def is_known(wire: str, name: str) -> bool:
    """Whether a field is decoded into the core: a wrong type is an error, or it is not unknown."""
    value = 7 if name == "text" else {"type": "object of no field"}
    try:
        request = WIRES[wire].decode_request(json.dumps(BODIES[wire] | {name: value}).encode())
    except FaultError:
        return True
    return name not in (request.extra or {}).get(wire, {})


@pytest.mark.parametrize(
    ("document", "schema", "wire"),
    [
        ("openai", "CreateChatCompletionRequest", "chat"),
        ("openai", "CreateResponse", "responses"),
        ("openresponses", "CreateResponseBody", "responses"),
    ],
)
def test_p37_every_published_field_of_a_request_is_one_of_the_core(document, schema, wire) -> None:
    """Fields of the core have a row on every wire, so these all have."""
    schemas = published(document)
    names = properties(schemas[schema], schemas)
    names |= {"top_k", "min_p", "repetition_penalty"} if wire == "chat" else set()
    assert len(names) > 25
    assert {name for name in names if not is_known(wire, name)} <= PASSED_ON


def test_every_published_value_of_include_has_a_row() -> None:
    rows = WIRES["chat"].losses.request.apart
    assert {("Request.include", v) for v in published("openai")["IncludeEnum"]["enum"]} <= {*rows}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("side", ["request", "answer"])
def test_every_row_has_one_action_a_reason_and_a_condition_in_words(wire, side) -> None:
    rows = getattr(WIRES[wire].losses, side).rows
    for row in rows:
        assert re.fullmatch(r"[^|\n]{4,70}", row.why), row
        assert row.action in ("carried", "emulated", "dropped", "refused"), row
        assert row.test is None or row.when, row
    assert len({(row.field, row.when) for row in rows}) == len(rows)


# ---- answers ---------------------------------------------------------------------------------


def spoken(*parts: Any, **fields: Any) -> Message:
    return Message("assistant", parts, **fields)


def lost_of_answer(response: Response, target: str) -> list[Loss]:
    return list(judge(response, WIRES[target].losses))


@pytest.mark.parametrize(
    ("target", "response", "field", "action"), ANSWERS, ids=[f"{c[0]}: {c[2]}" for c in ANSWERS]
)
def test_p37_each_field_of_an_answer_is_treated_as_its_row_says(
    target, response, field, action
) -> None:
    assert [(loss.field, loss.action) for loss in lost_of_answer(response, target)] == [
        (field, action)
    ]


@pytest.mark.parametrize("target", WIRES)
def test_every_row_that_loses_something_of_an_answer_has_a_case(target) -> None:
    met = {
        loss.why
        for wire, answer, *_ in ANSWERS
        if wire == target
        for loss in lost_of_answer(answer, wire)
    }
    rows = WIRES[target].losses.answer.rows
    assert {row.why for row in rows if row.action != "carried" and not row.silent} == met - {
        OTHER.why
    }


def test_p37_how_the_server_worked_is_not_reported_of_every_answer() -> None:
    quiet = {"system_fingerprint": "fp", "timings": {}}
    losses = lost_of_answer(answer(extra={"chat": {**quiet, "vendor": 1}}), "responses")
    assert [loss.field for loss in losses] == ["vendor"]


def test_an_answer_cannot_be_refused() -> None:
    for wire in WIRES.values():
        assert "refused" not in {row.action for row in wire.losses.answer.rows}


@pytest.mark.parametrize("target", ["chat", "responses"])
def test_answer_that_both_wires_carry_loses_nothing(target) -> None:
    cited = Text("a", (Annotation("url_citation", url="https://example.com"),), (Token("a"),))
    items = (
        Reasoning((Thought("hm"),)),
        spoken(cited, Refusal("b")),
        FunctionCall("c", "f", "{}", id="fc_1", status="completed"),
    )
    usage = Usage(1, 2, 3, 0, 0, 0)
    assert lost_of_answer(answer(*items, usage=usage), target) == []
    short = answer(*items, status="incomplete", reasons=("length",))
    assert lost_of_answer(short, target) == []


@pytest.mark.parametrize("target", ["chat", "responses"])
def test_answer_loses_nothing_on_its_own_wire(target) -> None:
    for other, response, field, _ in ANSWERS:
        # Sound that has a transcript is text too, and a part of no wire is lost on all.
        if other in CLIENT.keys() - {target, "messages"} and field != "output[0].content[0]":
            assert lost_of_answer(response, target) == [], field


# ---- the header ------------------------------------------------------------------------------


def told(*fields: str) -> list[Loss]:
    return [Loss(field, "dropped", "because") for field in fields]


def test_p37_the_header_names_all_losses() -> None:
    losses = (Loss("tools[0].format", "emulated", ""), *told("store", "input[*].phase"))
    assert header(losses) == "dropped: store, input[*].phase; emulated: tools[0].format"
    assert header(losses[:1]) == "emulated: tools[0].format"
    assert header(()) == ""


def test_the_header_names_a_field_once() -> None:
    twice = (Loss("tools[0]", "emulated", "one"), Loss("tools[0]", "emulated", "other"))
    assert header(twice) == "emulated: tools[0]"


def test_the_header_is_plain_and_short_whatever_a_client_calls_its_fields() -> None:
    evil = header(told("a\r\nset-cookie: x", "né", "b; dropped: c", "x" * 5_000))
    assert re.fullmatch(r"[ -~]{1,300}", evil)
    assert evil.count("dropped:") == 2
    assert "dropped: a??set-cookie:?x, n?, b??dropped:?c, xxx" in evil


def test_the_header_counts_what_does_not_fit() -> None:
    line = header(
        (*told(*(f"input[{n}].vendor_field" for n in range(100))), Loss("n", "dropped", ""))
    )
    assert len(line) <= 1_020
    named = line.count("vendor_field")
    assert line.endswith(f"; and {101 - named} more")


# ---- the words of the core -------------------------------------------------------------------


def test_the_names_of_the_core_are_put_in_the_clients_words() -> None:
    request = said(Reasoning(), Message("assistant", "a"), Message("developer", "b"))
    losses = told("items[3].role", "items", "format", "items[*].role", "tools[0]", "formatted")
    on_chat = [loss.field for loss in spell_losses(losses, request, "chat")]
    assert on_chat == [
        "messages[2].role",
        "messages",
        "response_format",
        "messages[*].role",
        "tools[0]",
        "formatted",
    ]
    on_responses = [loss.field for loss in spell_losses(losses, request, "responses")]
    assert on_responses[:4] == ["input[3].role", "input", "text.format", "input[*].role"]
    assert spell_losses(losses, request, None) == tuple(losses)
    limit = told("max_output_tokens", "seed")
    names = [loss.field for loss in spell_losses(limit, request, "completions")]
    assert names == ["max_tokens", "seed"]


@pytest.mark.parametrize(
    ("param", "chat", "responses"),
    [
        ("format.schema.a", "response_format.json_schema.schema.a", "text.format.schema.a"),
        ("format", "response_format", "text.format"),
        ("items[1].id", "messages[1].id", "input[1].id"),
        ("tools[2].parameters.x", "tools[2].function.parameters.x", "tools[2].parameters.x"),
        (
            "tools[2].tools[0].grammar",
            "tools[2].tools[0].custom.format.grammar.definition",
            "tools[2].tools[0].format.definition",
        ),
        ("tools[0].syntax", "tools[0].custom.format.grammar.syntax", "tools[0].format.syntax"),
        ("guided_regex", "guided_regex", "guided_regex"),
    ],
)
def test_fault_names_the_field_of_the_clients_wire(param, chat, responses) -> None:
    request = said(Message("assistant", "hello"))
    for wire, name in ((None, param), ("chat", chat), ("responses", responses)):
        fault = spell_fault(bad_request("is wrong", param), request, wire)
        assert (fault.param, fault.message) == (name, f"{name}: is wrong")
    assert spell_fault(bad_request("All is wrong."), request, "chat").message == "All is wrong."
    told = Fault("invalid_request", "Something is wrong.", "client", param)
    assert spell_fault(told, request, "chat").message == "Something is wrong."
