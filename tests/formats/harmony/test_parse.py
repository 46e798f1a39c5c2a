"""What a model writes in harmony, well or badly formed, and the items it becomes."""

from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.event import Delta, Finished, ItemAdded, PartAdded
from dragoman.core.item import (
    CustomToolCall,
    FunctionCall,
    Item,
    Message,
    Reasoning,
    Text,
    Thought,
    Token,
)
from dragoman.core.request import (
    FunctionTool,
    NamedTool,
    Namespace,
    ReasoningOptions,
    Request,
    UnknownTool,
)
from dragoman.core.turn import Turn
from dragoman.engines.token.engine import StoppingTurn
from dragoman.formats.format import Setting
from dragoman.formats.harmony import HARMONY
from tests.cases import cases

from .parsing import BYTES, PLAIN, TOOLS, called, parse, read, spelt

CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"


def final(text: str, status: str = "completed") -> Message:
    return Message("assistant", (Text(text),), status=status, phase="final_answer")


def preamble(text: str, status: str = "completed") -> Message:
    return Message("assistant", (Text(text),), status=status, phase="commentary")


def thought(text: str, status: str = "completed") -> Reasoning:
    return Reasoning((Thought(text),), status=status)


CASES = cases(__file__, "answers")


def show(item: Item) -> list[str]:
    """An item in short: its channel, or what is called, and its text."""
    assert getattr(item, "status", "") == "completed"
    match item:
        case Message(phase=phase):
            return ["final" if phase == "final_answer" else str(phase), item.text]
        case FunctionCall(name=name, namespace=space, arguments=text):
            return [f"{space}.{name}" if space else name, text]
        case CustomToolCall(name=name, input=text):
            return [f"custom {name}", text]
    assert isinstance(item, Reasoning)
    return ["analysis", item.text]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["text"])
def test_p18_messages_well_and_badly_formed_are_parsed_as_well_as_can_be(case) -> None:
    parsed = parse(case["text"])
    assert [show(item) for item in parsed.items] == case["items"]
    if "warnings" in case:
        assert parsed.parser.warnings == []
        assert read(case["text"]).items == parsed.items


@pytest.mark.parametrize(
    "text",
    ["", "<|channel|>analysis", "<|channel|>", CALL[:-11], "<|start|>", "assistant", " to=f"],
)
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_p18_an_end_in_the_header_is_an_end(text, reason) -> None:
    parsed = parse(text, reason=reason)
    assert [item.text for item in parsed.items] == [""]
    assert parsed.end.reasons == (reason,)
    assert parsed.end.status == ("completed" if reason == "stop" else "incomplete")


def test_items_complete_before_a_cut_header_remain() -> None:
    parsed = parse("<|channel|>analysis<|message|>Hm<|end|><|start|>assis", reason="length")
    assert parsed.items == [thought("Hm")]
    assert parsed.end.status == "incomplete"
    parsed = parse("<|channel|>final Hi", reason="length")
    assert parsed.parser.warnings == ["a header was not ended: '<|channel|>final Hi'"]


@pytest.mark.parametrize(
    ("text", "item"),
    [
        ("<|channel|>analysis<|message|>Hm", thought("Hm", "incomplete")),
        ("<|channel|>final<|message|>Hi", final("Hi", "incomplete")),
        (CALL + '{"a', FunctionCall("", "f", '{"a', status="incomplete")),
    ],
)
def test_cut_message_is_incomplete(text, item) -> None:
    parsed = parse(text, reason="length")
    assert parsed.items == [item]
    assert (parsed.end.status, parsed.end.reasons) == ("incomplete", ("length",))


def test_a_forgotten_header_is_noticed_while_the_text_comes() -> None:
    turn = Turn("1", 0, "m", think=None)
    parser = HARMONY.parser(TOOLS, turn, BYTES)
    parser.feed(spelt("He"))
    assert [event.data for event in turn.take() if isinstance(event, Delta)] == ["He"]
    prose = "<|start|>" + "word " * 200
    parsed = parse(prose)
    assert parsed.items == [final("word " * 200)]
    assert parse("<|channel|>final " + "word " * 200).items == [final(" " + "word " * 200)]
    assert parse("finally, " * 3).items == [final("finally, " * 3)]


def test_r4_w4_a_preamble_is_a_message_of_its_own() -> None:
    text = (
        "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant"
        + CALL
        + "{}<|call|>"
    )
    assert parse(text).items == [preamble("I will look."), called("f", "{}")]
    text = (
        "<|channel|>commentary<|message|>One<|end|><|start|>assistant<|channel|>final<|message|>Two"
    )
    assert parse(text).items == [preamble("One"), final("Two")]


@pytest.mark.parametrize("name", ["functions.f", "f"])
@pytest.mark.parametrize("channel", ["analysis", "commentary", "final"])
def test_r4_w5_a_recipient_goes_before_the_channel(channel, name) -> None:
    text = f"<|channel|>{channel} to={name}<|message|>{{}}<|call|>"
    assert parse(text).items == [called("f", "{}")]


def test_r4_w5_recipient_assistant_is_no_call() -> None:
    text = "<|channel|>analysis to=assistant<|message|>Hm<|end|>"
    assert parse(text).items == [thought("Hm")]


def test_message_to_an_unknown_recipient_is_text_or_a_call_by_its_channel() -> None:
    text = "<|channel|>commentary to=python code<|message|>1+1<|call|>"
    (item,) = parse(text, PLAIN).items
    assert item == preamble("1+1")
    functions = Request(model="m", tools=(FunctionTool("f"),))
    nobody = text.replace("python", "nobody")
    assert parse(nobody, functions).items == [called("nobody", "1+1")]
    assert parse("<|channel|>final to=functions.<|message|>{}").items == [
        called("functions.", "{}")
    ]
    nowhere = "<|channel|>commentary to=functions.g<|message|>{}"
    assert parse(nowhere, PLAIN).items == [called("g", "{}")]
    forbidden = Request(model="m", tools=(FunctionTool("f"),), tool_choice="none")
    assert parse("<|channel|>commentary to=f<|message|>{}", forbidden).items == [preamble("{}")]


@pytest.mark.parametrize("offered", [TOOLS, PLAIN], ids=["tools", "no tools"])
@pytest.mark.parametrize("name", ["browser.search", "functions.browser.open", "python"])
def test_call_of_a_built_in_tool_becomes_text_and_is_reported(name, offered) -> None:
    call = f'<|channel|>analysis to={name} code<|message|>{{"query":"x"}}<|call|>'
    parsed = parse(f"{call}<|start|>assistant{call}", offered)
    assert parsed.items == [preamble('{"query":"x"}')] * 2
    (end,) = (event for event in parsed.events if isinstance(event, Finished))
    assert (end.status, end.reasons) == ("completed", ("stop",))
    (loss,) = end.losses
    assert (loss.field, loss.action) == ("tools", "dropped")
    assert "cannot be run here" in loss.why


@pytest.mark.parametrize("name", ["browser", "python"])
def test_a_namespace_of_the_client_is_called_though_a_built_in_has_its_name(name) -> None:
    request = Request(model="m", tools=(Namespace(name, (FunctionTool("f"),)),))
    text = f"<|channel|>commentary to={name}.f<|message|>{{}}<|call|>"
    assert parse(text, request).items == [called("f", "{}", name)]


def test_items_open_as_soon_as_they_are_known() -> None:
    turn = Turn("1", 0, "m", think=None)
    parser = HARMONY.parser(TOOLS, turn, BYTES)
    parser.feed(spelt(CALL))
    (opened,) = [event for event in turn.take() if isinstance(event, ItemAdded)]
    assert isinstance(opened.item, FunctionCall)
    assert (opened.item.name, opened.item.call_id) == ("f", "call_1_0")


def test_split_characters_are_buffered_and_joined() -> None:
    sign = "€".encode()
    head = spelt("<|channel|>final<|message|>")
    parsed = parse([head, sign[:1], sign[1:], b"!"])
    assert parsed.items == [final("€!")]
    assert parse([head, sign[:2], spelt("<|return|>")]).items == [final("\ufffd")]
    assert parse([head, sign[:2]]).items == [final("\ufffd")]
    assert parse([head, [*sign[:2], 65]]).items == [final("\ufffdA")]
    torn = [*sign[:2], *spelt("<|end|><|start|>assistant<|channel|>final<|message|>"), 65]
    assert parse([head, torn]).items == [final("\ufffd"), final("A")]


def test_log_probabilities_go_with_the_text() -> None:
    text = "<|channel|>final<|message|>€a<|end|>"
    ids = spelt(text)
    tokens = [Token(str(place), -0.5, bytes((id % 256,)), id=id) for place, id in enumerate(ids)]
    (item,) = parse([[id] for id in ids], tokens=iter([[token] for token in tokens])).items
    begin = spelt(text).index(256 + 3) + 1
    assert item.parts == (Text("€a", tokens=tuple(tokens[begin:-1])),)
    torn = [*spelt("<|channel|>analysis<|message|>"), 0xE2]
    last = Token("", -1.0)
    (item,) = parse([torn[:-1], torn[-1:], spelt("<|end|>")], tokens=iter([[], [last], []])).items
    assert item == Reasoning((Thought("\ufffd", (last,)),), status="completed")


def test_a_stop_string_ends_the_text_and_its_message() -> None:
    turn = StoppingTurn(["END"], "1", 0, "m", ())
    parser = HARMONY.parser(PLAIN, turn, BYTES)
    parser.feed(spelt("<|channel|>commentary<|message|>one E<|end|><|start|>assistant"))
    parser.feed(spelt("<|channel|>final<|message|>two EN"))
    parser.feed(spelt("D"))
    parser.close("stop")
    said = "".join(event.data for event in turn.take() if isinstance(event, Delta))
    assert said == "one Etwo "
    assert turn.stop_sequence == "END"


def test_reasoning_tokens_are_counted_with_their_markers() -> None:
    thinking = "<|channel|>analysis<|message|>Hm<|end|>"
    speaking = "<|start|>assistant<|channel|>final<|message|>Hi<|return|>"
    again = "<|start|>assistant<|channel|>analysis<|message|>Hm"
    assert parse(thinking + speaking).parser.reasoning_tokens == len(spelt(thinking))
    parsed = parse(thinking + speaking + again)
    assert parsed.parser.reasoning_tokens == len(spelt(thinking + again))
    turn = Turn("1", 0, "m", think=None)
    parser = HARMONY.parser(TOOLS, turn, BYTES)
    parser.feed(spelt(thinking)[:-3])
    assert parser.reasoning_tokens == len(spelt(thinking)) - 3


def test_r4_w17_a_message_is_one_message_and_one_part() -> None:
    parts = [
        event
        for event in parse("<|channel|>final<|message|>a b c").events
        if isinstance(event, PartAdded)
    ]
    assert len(parts) == 1


def test_answer_continues_where_the_prompt_ends() -> None:
    partial = Message("assistant", "Once", status="incomplete")
    assert parse(" upon<|return|>", Request(model="m", items=(partial,))).items == [final(" upon")]
    partial = Message("assistant", "Once", status="incomplete", phase="commentary")
    assert parse(" upon", Request(model="m", items=(partial,))).items == [preamble(" upon")]
    partial = Reasoning((Thought("Hm"),), status="in_progress")
    assert parse("m<|end|>", Request(model="m", items=(partial,))).items == [thought("m")]
    forced = Request(model="m", tools=(FunctionTool("f"),), tool_choice=NamedTool("f"))
    assert parse('{"a":1}<|call|>', forced).items == [called("f", '{"a":1}')]


def test_without_a_vocabulary_there_is_only_text() -> None:
    turn = Turn("1", 0, "m", think=None)
    parser = HARMONY.parser(PLAIN, turn)
    parser.feed([1, 2, 3])
    parser.write("Hi <|")
    parser.close("stop")
    parser.close("stop")
    assert turn.over
    assert parser.warnings[0] == "tokens without a vocabulary were dropped"
    assert [event.data for event in turn.take() if isinstance(event, Delta)] == ["Hi ", "<|"]


def test_marks_that_are_no_tokens_are_found_in_the_text() -> None:
    turn = Turn("1", 0, "m", think=None)
    parser = HARMONY.parser(PLAIN, turn, type(BYTES)())
    parser.feed(list(b"<|channel|>analysis<|message|>Hm<|end|>Hi"))
    parser.close("stop")
    assert [event.data for event in turn.take() if isinstance(event, Delta)] == ["Hm", "Hi"]


def test_warnings_do_not_grow_without_end() -> None:
    assert len(parse("<|constrain|><|message|>" + "<|message|>" * 500).parser.warnings) == 100


def test_the_name_of_a_hosted_tool_is_a_function_if_the_client_has_one() -> None:
    tools = (FunctionTool("python"), UnknownTool("responses", "code_interpreter", {}))
    text = "<|channel|>commentary to=functions.python<|message|>{}<|call|>"
    assert parse(text, Request(model="m", tools=tools)).items == [called("python", "{}")]


def test_token_without_text_belongs_to_the_text_before_it() -> None:
    text, nothing = spelt("<|channel|>final<|message|>a"), Token("", -1.0, b"", id=999)
    (item,) = parse([text, [999], spelt("<|end|>")], tokens=iter([[], [nothing], []])).items
    assert item == replace(final("a"), content=(Text("a", tokens=(nothing,)),))


def test_an_answer_that_was_ended_elsewhere_stays_ended() -> None:
    turn = Turn("1", 0, "m", think=None)
    parser = HARMONY.parser(TOOLS, turn, BYTES)
    parser.feed(spelt(CALL))
    turn.complete("incomplete", ("length",))
    events = len(turn.take())
    parser.close("length")
    assert events
    assert not turn.take()


def test_r4_w6_output_of_a_tool_is_no_item() -> None:
    call = "<|channel|>analysis to=python code<|message|>1+1<|call|>"
    output = "<|start|>python to=assistant<|channel|>analysis<|message|>2<|end|>"
    parsed = parse(f"{call}{output}<|start|>assistant<|channel|>final<|message|>2<|return|>")
    assert parsed.items == [preamble("1+1"), final("2")]
    assert parsed.parser.reasoning_tokens == 0


# ---- openai-harmony as an oracle ---------------------------------------------------------------

ORACLE = cases(__file__, "oracle")
"""What openai-harmony made of these, recorded by record_oracle.py."""


@pytest.mark.parametrize("case", ORACLE["prompts"], ids=range(len(ORACLE["prompts"])))
def test_prompt_is_that_of_openai_harmony(case) -> None:
    assert rendered(case) == case["prompt"]


def rendered(case: dict[str, Any]) -> str:
    """Our prompt of a request."""
    messages = (Message(m["role"], m["text"], phase=m["phase"]) for m in case["messages"])
    request = Request(
        model="m",
        items=tuple(messages),
        tools=tuple(FunctionTool(**tool) for tool in case["tools"]),
        instructions=case["instructions"],
        reasoning=ReasoningOptions(case["effort"]),
    )
    return HARMONY.render(request, Setting(case["today"])).text


@pytest.mark.parametrize("case", ORACLE["answers"], ids=range(len(ORACLE["answers"])))
def test_answer_is_parsed_as_by_openai_harmony(case) -> None:
    assert heard(case) == case["items"]


def heard(case: dict[str, Any]) -> list[Any]:
    """What we read in an answer."""
    parsed = parse(case["text"], Request(model="m", tools=(FunctionTool("f"),)))
    return [show(item) for item in parsed.items]
