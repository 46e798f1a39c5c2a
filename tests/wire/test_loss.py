"""Requests are judged by the loss table of the target wire: each field by its row."""

import json
import re
import time
import timeit
from collections.abc import Iterator
from functools import partial
from typing import Any, get_args, get_type_hints

import pytest
from msgspec import Struct
from msgspec.structs import fields as struct_fields
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, bad_request
from dragoman.core.item import (
    Annotation,
    Audio,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    File,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    ItemReference,
    Message,
    Part,
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
from dragoman.core.request import (
    AllowedTools,
    AudioOutput,
    Completion,
    CustomTool,
    FunctionTool,
    JSONSchema,
    NamedTool,
    Namespace,
    ReasoningOptions,
    Request,
    Sampling,
    StreamOptions,
    TextFormat,
    UnknownTool,
)
from dragoman.core.response import Response
from dragoman.wire.losses import Losses, Row, Table, header, judge
from dragoman.wire.registry import WIRES, spell_fault, spell_losses
from tests.architecture.tree import ROOT
from tests.samples import samples

USER = Message("user", "hi")


def said(*items: Item) -> Request:
    return Request(model="m", items=(USER, *items))


def asked(**fields: Any) -> Request:
    return Request(model="m", items=(USER,), **fields)


def sampled(**fields: Any) -> Request:
    return asked(sampling=Sampling(**fields))


def part(part: Part, role: str = "user") -> Request:
    return said(Message(role, (Text("look"), part)))


def result(part: Part) -> Request:
    return said(FunctionCall("c", "f", "{}"), FunctionCallOutput("c", (Text("see"), part)))


CHAT = {"chat": {"vendor": 1}}
RESPONSES = {"responses": {"vendor": 1}}
OF_CHAT = UnknownTool("chat", "search", {})
HOSTED = UnknownTool("responses", "web_search", {})

TO_RESPONSES: list[tuple[Request, str, str]] = [
    (sampled(stop=("x",)), "stop", "refused"),
    (sampled(logit_bias={"1": -100}), "logit_bias", "refused"),
    (sampled(n=2), "n", "refused"),
    (sampled(seed=0), "seed", "dropped"),
    (sampled(top_k=40), "top_k", "dropped"),
    (sampled(min_p=0.1), "min_p", "dropped"),
    (sampled(repetition_penalty=1.1), "repetition_penalty", "dropped"),
    (sampled(logprobs=True), "logprobs", "emulated"),
    (sampled(logprobs=True, top_logprobs=2), "top_logprobs", "emulated"),
    (asked(modalities=("text", "audio")), "modalities", "refused"),
    (asked(audio=AudioOutput("alloy")), "audio", "dropped"),
    (asked(prediction={"type": "content"}), "prediction", "dropped"),
    (asked(web_search={}), "web_search_options", "dropped"),
    (said(Message("user", "I am", name="Ada")), "messages[1].name", "dropped"),
    (part(Audio("AAAA", "wav")), "messages[1].content[1].input_audio", "refused"),
    (part(Audio(id="a1"), "assistant"), "messages[1].audio", "refused"),
    (part(Audio(id="a1", transcript="hm"), "assistant"), "messages[1].audio", "emulated"),
    (part(UnknownPart("chat", {"type": "video_url"})), "messages[1].content[1]", "refused"),
    (part(Refusal("no", (Token("no"),))), "messages[1].content[1].logprobs", "dropped"),
    (result(Audio("AAAA", "wav")), "messages[2].content[1].input_audio", "refused"),
    (
        said(Reasoning((Thought("hm"),), extra={"chat": {"reasoning_details": []}})),
        "messages[1].reasoning_details",
        "dropped",
    ),
    (said(Unknown("chat", "odd", {})), "messages[1].tool_calls[*]", "dropped"),
    (said(FunctionCall("c", "f", "", extra=CHAT)), "messages[1].tool_calls[*].vendor", "dropped"),
    (asked(tools=(OF_CHAT,)), "tools[0]", "dropped"),
    (asked(tools=(OF_CHAT,), tool_choice=OF_CHAT), "tool_choice", "refused"),
    (asked(tool_choice=AllowedTools("auto", (OF_CHAT,))), "tool_choice", "refused"),
    (
        asked(tool_choice=AllowedTools("auto", (NamedTool("f"), OF_CHAT))),
        "tool_choice.allowed_tools.tools[1]",
        "dropped",
    ),
    (asked(tool_choice=NamedTool("f", extra=CHAT)), "tool_choice.vendor", "dropped"),
    (
        asked(tool_choice=NamedTool("f", extra={"chat": {"function": {"odd": 1}}})),
        "tool_choice.function.odd",
        "dropped",
    ),
    (
        asked(tool_choice=AllowedTools("auto", (NamedTool("f"),), CHAT)),
        "tool_choice.vendor",
        "dropped",
    ),
    (
        asked(tool_choice=AllowedTools("auto", (NamedTool("e"), NamedTool("f", extra=CHAT)))),
        "tool_choice.allowed_tools.tools[1].vendor",
        "dropped",
    ),
    (asked(extra=CHAT), "vendor", "dropped"),
    (asked(extra={"chat": {"response_format": {"odd": 1}}}), "response_format.odd", "dropped"),
    (asked(extra={"chat": {"response_format": 7}}), "response_format", "dropped"),
    (asked(stream_options=StreamOptions(extra=CHAT)), "stream_options.vendor", "dropped"),
    (asked(tools=(FunctionTool("f", extra=CHAT),)), "tools[0].vendor", "dropped"),
    (asked(format=JSONSchema("a", extra=CHAT)), "response_format.json_schema.vendor", "dropped"),
    (said(Message("user", "hi", extra=CHAT)), "messages[1].vendor", "dropped"),
    (part(Text("hi", extra=CHAT)), "messages[1].content[1].vendor", "dropped"),
]

TO_CHAT: list[tuple[Request, str, str]] = [
    (asked(max_tool_calls=2), "max_tool_calls", "dropped"),
    (asked(previous_response_id="r"), "previous_response_id", "refused"),
    (asked(conversation="c"), "conversation", "refused"),
    (asked(prompt={"id": "p"}), "prompt", "refused"),
    (asked(context_management=[]), "context_management", "dropped"),
    (asked(background=True), "background", "refused"),
    (asked(truncation="auto"), "truncation", "dropped"),
    (asked(reasoning=ReasoningOptions(summary="auto")), "reasoning.summary", "emulated"),
    *(
        (
            asked(reasoning=ReasoningOptions(extra={"responses": {name: "x"}})),
            f"reasoning.{name}",
            "dropped",
        )
        for name in ("context", "mode", "generate_summary", "vendor")
    ),
    *(
        (asked(include=(row.when,)), f"include[{row.when}]", row.action)
        for row in WIRES["chat"].losses.request.apart.values()
        if row.field == "Request.include" and row.when
    ),
    (asked(include=("new.thing",)), "include[new.thing]", "dropped"),
    (said(Message("assistant", "hm", phase="commentary")), "input[1].phase", "dropped"),
    (said(Message("assistant", "hm", id="msg_1")), "input[1].id", "dropped"),
    (said(FunctionCall("c", "f", "", status="completed")), "input[1].status", "dropped"),
    (said(FunctionCallOutput("c", "", id="fco_1")), "input[1].id", "dropped"),
    (said(CustomToolCallOutput("c", "", id="ctco_1")), "input[1].id", "dropped"),
    (asked(instructions=(Message("system", "", id="m"),)), "instructions[0].id", "dropped"),
    (part(Image(file_id="f")), "input[1].content[1].file_id", "refused"),
    (part(File(url="https://example.com/a")), "input[1].content[1].file_url", "refused"),
    (part(UnknownPart("responses", {})), "input[1].content[1]", "refused"),
    (part(Text("a", (Annotation("x"),))), "input[1].content[1].annotations", "dropped"),
    (part(Text("a", tokens=(Token("a"),))), "input[1].content[1].logprobs", "dropped"),
    (part(Refusal("a", tokens=(Token("a"),))), "input[1].content[1].logprobs", "dropped"),
    (part(Text("a", extra=RESPONSES)), "input[1].content[1].vendor", "dropped"),
    (result(Image("https://example.com/a.png")), "input[2].output[1]", "emulated"),
    (result(Audio("AAAA", "wav")), "input[2].output[1]", "emulated"),
    (result(File("f")), "input[2].output[1]", "emulated"),
    (result(Image(file_id="f")), "input[2].output[1].file_id", "refused"),
    (result(File(url="https://example.com/a")), "input[2].output[1].file_url", "refused"),
    (result(UnknownPart("responses", {})), "input[2].output[1]", "refused"),
    (said(Reasoning(summary=(Summary("s"),))), "input[1].summary", "emulated"),
    (said(Reasoning((Thought("t"),), (Summary("s"),))), "input[1].summary", "dropped"),
    (said(Reasoning(encrypted="x")), "input[1].encrypted_content", "dropped"),
    (said(Reasoning((Thought("t", extra=RESPONSES),))), "input[1].content[0].vendor", "dropped"),
    (said(Reasoning((UnknownPart("responses", {}),))), "input[1].content[0]", "dropped"),
    (said(Unknown("responses", "web_search_call", {})), "input[1]", "emulated"),
    (said(Unknown("responses", "compaction_trigger", {})), "input[1]", "dropped"),
    (said(Compaction("x")), "input[1]", "refused"),
    (said(ItemReference("msg_1")), "input[1]", "refused"),
    (asked(tools=(FunctionTool("f"), HOSTED)), "tools[1]", "dropped"),
    (asked(tools=(Namespace("n", (CustomTool("c"), HOSTED)),)), "tools[0].tools[1]", "dropped"),
    (
        asked(tools=(Namespace("n", (CustomTool("c", extra=RESPONSES),)),)),
        "tools[0].tools[0].vendor",
        "dropped",
    ),
    (asked(tool_choice=HOSTED), "tool_choice", "refused"),
    (
        asked(tool_choice=AllowedTools("auto", (NamedTool("f"), HOSTED))),
        "tool_choice.tools[1]",
        "dropped",
    ),
    (asked(tool_choice=NamedTool("f", extra=RESPONSES)), "tool_choice.vendor", "dropped"),
    (
        asked(tool_choice=AllowedTools("auto", (NamedTool("f", extra=RESPONSES),))),
        "tool_choice.tools[0].vendor",
        "dropped",
    ),
    (asked(extra={"responses": {"access_programs": []}}), "access_programs", "dropped"),
    (asked(extra={"responses": {"image": {}}}), "image", "dropped"),
    (asked(extra=RESPONSES), "vendor", "dropped"),
    (asked(format=JSONSchema("a", extra=RESPONSES)), "text.format.vendor", "dropped"),
]

CASES: list[tuple[str, Request, str, str]] = [
    *(("responses", *case) for case in TO_RESPONSES),
    *(("chat", *case) for case in TO_CHAT),
]


CASES += [
    (target, asked(extra={wire: {name: value}}), name, "refused")
    for wire, target in (("chat", "responses"), ("responses", "chat"))
    for name, value in (
        ("guided_regex", "a+"),
        ("guided_choice", ["a"]),
        ("guided_grammar", "start: /a/"),
        ("guided_json", {}),
        ("structured_outputs", {"regex": "a+"}),
    )
]
VENDOR = {"type": "regex", "pattern": "a"}
CASES += [
    (
        "responses",
        asked(extra={"chat": {"response_format": VENDOR}}),
        "response_format.type",
        "refused",
    )
]


CLIENT = {"chat": "responses", "responses": "chat"}
"""The wire of the client, by that of the model's server."""


def lost(request: Request, target: str) -> list[Loss]:
    """What a request loses, as the client of the other wire reads it."""
    try:
        losses = judge(request, WIRES[target].losses)
    except FaultError as error:
        raise FaultError(spell_fault(error.fault, request, CLIENT[target])) from None
    return list(spell_losses(losses, request, CLIENT[target]))


@pytest.mark.parametrize(
    ("target", "request_", "field", "action"), CASES, ids=[f"{c[0]}: {c[2]}" for c in CASES]
)
def test_p37_each_field_is_treated_as_its_row_says(
    target: str, request_: Request, field: str, action: str
) -> None:
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


@pytest.mark.parametrize("target", ["chat", "responses"])
def test_every_row_that_loses_something_has_a_case(target: str) -> None:
    met = {why for wire, request, *_ in CASES if wire == target for why in reason(request, target)}
    rows = WIRES[target].losses.request.rows
    unmet = {row.why for row in rows if row.action != "carried"} - met
    assert all(why.endswith("takes conversations, no bare prompts") for why in unmet)


def test_a_bare_prompt_is_refused_where_only_conversations_are_taken() -> None:
    prompt = Completion(model="m", prompts=("Once",))
    for target in ("chat", "responses"):
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
def test_what_no_prompt_can_say_is_dropped_or_refused(
    fields: dict[str, Any], field: str, action: str
) -> None:
    prompt = Completion(model="m", prompts=("Once",), **fields)
    try:
        losses = [(loss.field, loss.action) for loss in judge(prompt, WIRES["completions"].losses)]
    except FaultError as error:
        losses = [(str(error.fault.param), "refused")]
    assert (field, action) in losses


@pytest.mark.parametrize(
    "request_",
    [
        asked(),
        sampled(temperature=0, top_p=1, presence_penalty=1, frequency_penalty=1, n=1, stop=()),
        sampled(logit_bias={}, logprobs=False),
        asked(modalities=("text",), store=True, metadata={"a": "b"}, user="u", service_tier="flex"),
        asked(background=False, truncation="disabled", verbosity="low", format=TextFormat()),
        asked(reasoning=ReasoningOptions("high"), max_output_tokens=16, parallel_tool_calls=False),
        asked(tools=(FunctionTool("f"), CustomTool("c", grammar="x")), tool_choice=NamedTool("f")),
        asked(tools=(Namespace("n", (FunctionTool("f"),)),), tool_choice="required"),
        asked(tool_choice=AllowedTools("auto", (NamedTool("f"),))),
        asked(format=JSONSchema("a", {}, strict=True)),
        asked(instructions="Be brief.", stream=True, stream_options=StreamOptions(True)),
        said(Message("assistant", (Text("no"), Refusal("no")))),
        said(Reasoning((Thought("t"),)), FunctionCall("c", "f", "{}"), FunctionCallOutput("c", "")),
        said(CustomToolCall("c", "f", "x"), CustomToolCallOutput("c", (Text("ok"),))),
        part(Image("https://example.com/a.png", detail="low")),
        part(File("f", filename="a.pdf")),
        asked(extra={"upstream": {"id": "1"}}),
        asked(tools=(FunctionTool("f", extra={"responses": {"strict": None}}),)),
    ],
    ids=range(18),
)
@pytest.mark.parametrize("target", ["chat", "responses"])
def test_what_both_can_say_loses_nothing(request_: Request, target: str) -> None:
    assert lost(request_, target) == []


@pytest.mark.parametrize(
    ("target", "own"), [("chat", TO_RESPONSES), ("responses", TO_CHAT)], ids=["chat", "responses"]
)
def test_on_its_own_wire_a_request_loses_nothing(
    target: str, own: list[tuple[Request, str, str]]
) -> None:
    for request, field, _ in own:
        # What a tool returns is hoisted by Chat itself, and no wire has tokens of a refusal.
        hoisted = isinstance(request.items[-1], FunctionCallOutput)
        if not hoisted and "logprobs" not in field:
            assert lost(request, target) == [], field


def members(hint: object) -> Iterator[type[Struct]]:
    if isinstance(hint, type) and issubclass(hint, Struct):
        yield hint
    for inner in get_args(hint):
        yield from members(inner)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("root", "side"), [(Request, "request"), (Response, "answer")])
def test_every_field_of_the_core_has_a_row_on_every_wire(
    root: type[Struct], side: str, wire: str
) -> None:
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


def test_a_plain_request_is_judged_in_no_time() -> None:
    turns = (USER, Message("assistant", "Hello."), Message("user", "What is new?"))
    request = Request(model="m", items=(Message("system", "Be brief."), *turns), stream=True)
    for target in CLIENT:
        rounds = samples(500, 2_000)
        losses = WIRES[target].losses
        work = partial(judge, request, losses)
        best = min(timeit.repeat(work, timer=time.thread_time, number=rounds, repeat=3))
        assert best / rounds < 100e-6, "ten times the goal of ten microseconds"


@pytest.mark.parametrize("action", ["carried", "emulated", "dropped", "refused"])
def test_p37_a_change_of_action_is_a_change_of_one_word(action: str) -> None:
    losses = Losses("toy", Table((Row("Sampling.seed", action, "why"),)), Table())
    if action == "refused":
        with pytest.raises(FaultError, match="seed: cannot be carried: why"):
            judge(sampled(seed=0), losses)
    else:
        expected = [] if action == "carried" else [("seed", action)]
        found = judge(sampled(seed=0), losses)
        assert [(loss.field, loss.action) for loss in found] == expected


def test_unknown_fields_inside_known_ones_are_found() -> None:
    extra = {
        "responses": {"text": {"a": 1, "b": None}, "c": 0, "d": None},
        "toy": {"own": 1},
        "turn": {"new": True},
        "upstream": {"id": "1"},
    }
    losses = judge(asked(extra=extra), Losses("toy", Table(), Table()))
    assert [loss.field for loss in losses] == ["text.a", "c"]


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
def test_p37_every_published_field_of_a_request_is_one_of_the_core(
    document: str, schema: str, wire: str
) -> None:
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
def test_every_row_has_one_action_a_reason_and_a_condition_in_words(wire: str, side: str) -> None:
    rows = getattr(WIRES[wire].losses, side).rows
    for row in rows:
        assert re.fullmatch(r"[^|\n]{4,70}", row.why), row
        assert row.action in ("carried", "emulated", "dropped", "refused"), row
        assert row.test is None or row.when, row
    assert len({(row.field, row.when) for row in rows}) == len(rows)


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
def test_a_fault_is_told_by_the_names_of_a_clients_wire(
    param: str, chat: str, responses: str
) -> None:
    request = said(Message("assistant", "hello"))
    for wire, name in ((None, param), ("chat", chat), ("responses", responses)):
        fault = spell_fault(bad_request("is wrong", param), request, wire)
        assert (fault.param, fault.message) == (name, f"{name}: is wrong")
    assert spell_fault(bad_request("All is wrong."), request, "chat").message == "All is wrong."
    told = Fault("invalid_request", "Something is wrong.", "client", param)
    assert spell_fault(told, request, "chat").message == "Something is wrong."
