"""A request as a harmony prompt, piece by piece."""

import pytest
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.item import (
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    ItemReference,
    Message,
    Reasoning,
    Refusal,
    Text,
    Thought,
    Unknown,
)
from dragoman.core.loss import Loss
from dragoman.core.request import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    Namespace,
    ReasoningOptions,
    Request,
    TextFormat,
    UnknownTool,
)
from dragoman.formats.format import PLAIN, Setting
from dragoman.formats.harmony import HARMONY

from .parsing import BYTES, TOOLS

USER = Message("user", "hi")
CHANNELS = (
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."
)
SYSTEM = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
    f"Knowledge cutoff: 2024-06\n\nReasoning: medium\n\n{CHANNELS}<|end|>"
)
SEARCH = UnknownTool("responses", "web_search", {})
PYTHON = UnknownTool("responses", "code_interpreter", {"container": {"type": "auto"}})


def prompt(*items: Item, **fields: object) -> str:
    """The text of a prompt."""
    return HARMONY.render(Request(model="m", items=items, **fields)).text


def said(*items: Item, **fields: object) -> str:
    """The conversation in a prompt, without what stands before and after it."""
    text = prompt(*items, **fields)
    assert text.startswith(SYSTEM)
    return text.removeprefix(SYSTEM).removesuffix("<|start|>assistant")


def losses(*items: Item, **fields: object) -> list[tuple[str, str]]:
    """What could not be said: field and fate."""
    lost = HARMONY.render(Request(model="m", items=items, **fields)).losses
    return [(loss.field, loss.action) for loss in lost]


def block(author: str, text: str) -> str:
    return f"<|start|>{author}<|message|>{text}<|end|>"


def spoken(channel: str, text: str) -> str:
    return block(f"assistant<|channel|>{channel}", text)


def test_r4_9_the_system_message_comes_first() -> None:
    assert prompt(USER) == f"{SYSTEM}{block('user', 'hi')}<|start|>assistant"
    setting = Setting(today="2025-06-28", identity="You are Dra.", knowledge_cutoff="2023-01")
    high = Request(model="m", items=(USER,), reasoning=ReasoningOptions(effort="high"))
    text = HARMONY.render(high, setting).text
    about = "You are Dra.\nKnowledge cutoff: 2023-01\nCurrent date: 2025-06-28\n\nReasoning: high"
    assert text.startswith(f"<|start|>system<|message|>{about}\n\n{CHANNELS}<|end|>")
    nothing = HARMONY.render(high, Setting(identity="", knowledge_cutoff="")).text
    assert nothing.startswith(f"<|start|>system<|message|>Reasoning: high\n\n{CHANNELS}<|end|>")


def test_r4_9_the_channel_of_functions_is_named_where_there_are_any() -> None:
    note = f"{CHANNELS}\nCalls to these tools must go to the commentary channel: 'functions'."
    assert note in prompt(USER, tools=(FunctionTool("f"),))
    assert f"{CHANNELS}<|end|>" in prompt(USER, tools=(SEARCH,))
    assert f"{CHANNELS}<|end|>" in prompt(USER, tools=(Namespace("crm", (FunctionTool("f"),)),))


@pytest.mark.parametrize(
    ("effort", "told", "fate"),
    [
        (None, "medium", []),
        ("low", "low", []),
        ("none", "low", ["emulated"]),
        ("minimal", "low", ["emulated"]),
        ("xhigh", "high", ["emulated"]),
        ("frantic", "medium", ["dropped"]),
    ],
)
def test_r4_9_every_effort_is_taken(effort: str | None, told: str, fate: list[str]) -> None:
    options = ReasoningOptions(effort=effort)
    assert f"\n\nReasoning: {told}\n\n" in prompt(USER, reasoning=options)
    expected = [("reasoning.effort", action) for action in fate]
    assert losses(USER, reasoning=options) == expected


@pytest.mark.parametrize("fields", [{}, {"instructions": ""}, {"tools": (SEARCH,)}])
def test_r4_10_no_empty_developer_message(fields: dict[str, object]) -> None:
    assert "developer" not in prompt(USER, Message("developer", ""), **fields)


def test_r4_11_functions_stand_behind_the_instructions() -> None:
    text = prompt(USER, instructions="Be brief.", tools=TOOLS.tools[:4])
    developer = text[text.index("<|start|>developer") :]
    assert developer.startswith(
        "<|start|>developer<|message|># Instructions\n\nBe brief.\n\n# Tools\n\n## crm\n\n"
        "// Customers.\nnamespace crm {\n\ntype find = () => any;\n\n"
        "type note = (_: string) => any;\n\n} // namespace crm\n\n## functions\n\n"
        "namespace functions {\n\n// Does it.\ntype f = (_: {\na?: string,\n}) => any;\n\n"
        "type lookup = () => any;\n\n// Changes files.\ntype patch = (_: string) => any;\n\n"
        "} // namespace functions<|end|>"
    )


def test_r4_12_no_built_in_is_shown_where_a_hosted_tool_is_offered() -> None:
    assert prompt(USER, tools=(PYTHON, SEARCH)) == prompt(USER)
    assert losses(USER, tools=(PYTHON, SEARCH)) == [("tools[*]", "dropped")]


def test_r4_13_a_string_is_one_user_message() -> None:
    assert said(USER) == block("user", "hi")
    assert said(replace(USER, name="ann")) == block("user:ann", "hi")
    strange = replace(USER, name="ann to=python")
    assert said(strange) == block("user", "hi")
    assert losses(strange) == [("items[0].name", "dropped")]


def test_r4_14_parts_are_one_message() -> None:
    parts = (Text("one "), Text("two"))
    conversation = (Message("user", parts), Message("assistant", (*parts, Refusal("!"))))
    assert said(*conversation) == block("user", "one two") + spoken("final", "one two!")


def test_r4_w17_system_and_parts_and_emptiness() -> None:
    conversation = (Message("system", (Text("Be "), Text("brief."))), USER)
    assert said(*conversation) == block("developer", "# Instructions\n\nBe brief.") + block(
        "user", "hi"
    )


def test_r4_15_instructions_are_folded_in_their_order() -> None:
    lead = (Message("system", "Two."), Message("developer", "Three."), USER)
    folded = block("developer", "# Instructions\n\nOne.\n\nTwo.\n\nThree.") + block("user", "hi")
    assert said(*lead, instructions="One.") == folded
    items = (Message("developer", "One."), Message("system", "Two."))
    assert said(Message("developer", "Three."), USER, instructions=items) == folded
    late = said(USER, Message("developer", "Four."))
    assert late == block("user", "hi") + block("developer", "# Instructions\n\nFour.")


THOUGHT = Reasoning((Thought("Hm"),))
CALL = FunctionCall("c1", "f", '{"a": 1}')
OUTPUT = FunctionCallOutput("c1", "ok")
CALLED = (
    "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
    '{"a": 1}<|call|>'
)
RETURNED = "<|start|>functions.f to=assistant<|channel|>commentary<|message|>ok<|end|>"


def test_r4_16_reasoning_is_kept_while_its_turn_runs() -> None:
    answer = Message("assistant", "yo")
    running = (USER, THOUGHT, CALL, OUTPUT)
    assert spoken("analysis", "Hm") in said(*running)
    assert "analysis<|message|>" not in said(*running, answer, USER)
    assert said(*running, answer, USER, THOUGHT).count("Hm") == 1
    assert said(USER, THOUGHT, USER).count("Hm") == 1
    preamble = Message("assistant", "I look.", phase="commentary")
    assert said(USER, THOUGHT, preamble, CALL, OUTPUT) == "".join(
        [
            block("user", "hi"),
            spoken("analysis", "Hm"),
            spoken("commentary", "I look."),
            CALLED,
            RETURNED,
        ]
    )
    unmarked = replace(preamble, phase=None)
    assert said(USER, THOUGHT, unmarked, CALL) == said(USER, THOUGHT, preamble, CALL)


def test_sealed_reasoning_is_told() -> None:
    sealed = Reasoning(encrypted="blob")
    assert said(USER, sealed) == block("user", "hi")
    assert losses(USER, sealed) == [("items[1].encrypted_content", "dropped")]


def test_r4_17_calls_are_written_as_the_model_writes_them() -> None:
    assert said(CALL) == CALLED
    spaced = FunctionCall("c1", "find", "{}", "crm")
    assert "<|channel|>commentary to=crm.find <|constrain|>json<|message|>{}<|call|>" in said(
        spaced
    )
    free = (CustomToolCall("c2", "patch", "*** Begin"), CustomToolCallOutput("c2", "done"))
    assert said(*free) == (
        "<|start|>assistant<|channel|>commentary to=functions.patch<|message|>*** Begin<|call|>"
        "<|start|>functions.patch to=assistant<|channel|>commentary<|message|>done<|end|>"
    )


def test_r4_18_outputs_follow_their_calls() -> None:
    other = FunctionCall("c2", "lookup", "{}")
    later = FunctionCallOutput("c2", (Text("n"), Text("o")))
    text = said(USER, CALL, other, later, OUTPUT)
    assert text.startswith(block("user", "hi") + CALLED + RETURNED)
    assert text.endswith(
        "<|start|>functions.lookup to=assistant<|channel|>commentary<|message|>no<|end|>"
    )
    again = (CALL, OUTPUT, replace(CALL, name="lookup"), replace(OUTPUT, output="second"))
    assert said(*again).endswith(
        "<|start|>functions.lookup to=assistant<|channel|>commentary<|message|>second<|end|>"
    )


@pytest.mark.parametrize("items", [(USER, OUTPUT), (USER, OUTPUT, CALL)])
def test_r4_18_an_output_without_a_call_is_refused_by_name(items: tuple[Item, ...]) -> None:
    with pytest.raises(FaultError) as refused:
        prompt(*items, instructions=(Message("system", "x"),))
    fault = refused.value.fault
    assert (fault.code, fault.blame, fault.param) == (
        "invalid_request",
        "client",
        "input[1].call_id",
    )


def test_r4_19_hosted_calls_are_read_or_told() -> None:
    searched = Unknown("responses", "web_search_call", {"status": "completed", "action": {}})
    assert said(USER, searched) == block("user", "hi")
    assert losses(USER, searched) == [("items[1]", "dropped")]
    outputs = [{"type": "logs", "logs": "2"}, {"type": "image", "url": "x"}]
    ran = Unknown("responses", "code_interpreter_call", {"code": "1+1", "outputs": outputs})
    assert said(USER, ran).removeprefix(block("user", "hi")) == (
        "<|start|>assistant<|channel|>analysis to=python code<|message|>1+1<|call|>"
        "<|start|>python to=assistant<|channel|>analysis<|message|>2<|end|>"
    )
    assert "python" not in said(USER, ran, Message("assistant", "2"), USER)


def test_r4_20_the_assistant_is_next() -> None:
    pieces = HARMONY.render(Request(model="m", items=(USER,))).pieces
    assert [getattr(piece, "text", piece) for piece in pieces[-2:]] == ["<|start|>", "assistant"]
    assert HARMONY.stops(Request(model="m")).controls == (
        *("<|return|>", "<|call|>"),
        "<|endoftext|>",  # F11: models of raw vocabularies end with it
    )


def test_r4_w25_the_date_is_given_and_may_be_left_out() -> None:
    request = Request(model="m", items=(USER,))
    assert "Current date" not in HARMONY.render(request).text
    assert HARMONY.render(request) == HARMONY.render(request, PLAIN)
    assert "\nCurrent date: 1999-12-31\n" in HARMONY.render(request, Setting("1999-12-31")).text


def test_r4_w21_formats_are_described() -> None:
    schema = JSONSchema("shop", {"type": "object", "title": "é"}, "A list.\nShort.")
    text = said(USER, instructions="Help.", format=schema)
    assert text.startswith(
        block(
            "developer",
            "# Instructions\n\nHelp.\n\n# Response Formats\n\n## shop\n\n// A list.\n// Short.\n"
            '{"type":"object","title":"é"}',
        )
    )
    assert said(USER, format=JSONSchema("shop")).startswith(
        block("developer", "# Response Formats\n\n## shop\n\n{}")
    )
    assert '## json_object\n\n// Any JSON object.\n{"type":"object"}' in said(
        USER, format=JSONObject()
    )
    assert said(USER, format=TextFormat()) == block("user", "hi")


def test_r4_w21_a_named_tool_is_called_at_once() -> None:
    request = replace(TOOLS, items=(USER,), tool_choice=NamedTool("f"))
    assert HARMONY.render(request).text.endswith(
        "<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
    )
    custom = replace(request, tool_choice=NamedTool("note", "custom", "crm"))
    assert HARMONY.render(custom).text.endswith("<|channel|>commentary to=crm.note<|message|>")


def test_r4_w21_only_tools_that_may_be_called_are_shown() -> None:
    none = replace(TOOLS, items=(USER,), tool_choice="none")
    assert HARMONY.render(none).text == f"{SYSTEM}{block('user', 'hi')}<|start|>assistant"
    allowed = replace(none, tool_choice=AllowedTools("required", (NamedTool("lookup"),)))
    text = HARMONY.render(allowed).text
    assert "type lookup" in text
    assert "type f " not in text


def test_a_grammar_is_shown_with_its_tool() -> None:
    tools = (CustomTool("patch", None, "lark", "start: X"), CustomTool("note", "N", "regex", "a+"))
    text = prompt(USER, tools=tools)
    assert "// The input must match this lark grammar:\n// start: X\ntype patch = (_: str" in text
    assert "// N\n// \n// The input must match this regex grammar:\n// a+\ntype note = (" in text


@pytest.mark.parametrize(
    ("partial", "ending"),
    [
        (Message("assistant", "Once", status="incomplete"), "final<|message|>Once"),
        (Message("assistant", "", status="in_progress"), "final<|message|>"),
        (
            Message("assistant", "I", status="incomplete", phase="commentary"),
            "commentary<|message|>I",
        ),
        (replace(THOUGHT, status="incomplete"), "analysis<|message|>Hm"),
    ],
)
def test_an_unfinished_message_is_left_open(partial: Item, ending: str) -> None:
    text = prompt(USER, THOUGHT, partial)
    assert text.endswith(spoken("analysis", "Hm") + f"<|start|>assistant<|channel|>{ending}")


def test_a_caller_may_say_that_a_message_is_unfinished() -> None:
    items = (USER, Message("assistant", "Once"))
    told = {"chat": {"continue_final_message": True}}
    assert prompt(*items, extra=told).endswith("<|channel|>final<|message|>Once")
    assert prompt(*items).endswith("Once<|end|><|start|>assistant")


def test_what_the_model_cannot_take_is_told_or_refused() -> None:
    seen = Message("user", (Text("What? "), Image("https://e.com/x.png")))
    assert "[image: this model cannot see it]" in said(seen)
    assert losses(seen) == [("items[0].content[1]", "dropped")]
    for item, kind in ((ItemReference("x"), "item_reference"), (Compaction("x"), "compaction")):
        with pytest.raises(
            FaultError, match=rf"^input\[1\]: the '{kind}' can only be resolved "
        ) as refused:
            prompt(USER, item)
        assert refused.value.fault.param == "input[1]"
    strange = UnknownTool("responses", "teleport", {})
    assert losses(USER, tools=(strange, Namespace("n", (strange, FunctionTool("f"))))) == [
        ("tools[0]", "dropped"),
        ("tools[1].tools[0]", "dropped"),
    ]
    assert isinstance(HARMONY.render(Request(model="m", tools=(strange,))).losses[0], Loss)


@pytest.mark.parametrize("name", ["functions", "browser"])
def test_a_namespace_of_a_known_name_is_the_clients_own(name: str) -> None:
    text = prompt(USER, tools=(SEARCH, Namespace(name, (FunctionTool("f"),))))
    assert f"namespace {name} {{\n\ntype f = () => any;" in text


def test_a_namespace_without_tools_is_named_with_its_description() -> None:
    for about, shown in (("Nothing yet.", "\n\nNothing yet."), (None, "")):
        assert f"# Tools\n\n## empty{shown}<|end|>" in prompt(
            USER, tools=(Namespace("empty", (), about),)
        )


def test_a_function_with_an_empty_schema_takes_nothing() -> None:
    """Responses has an empty schema where Chat leaves `parameters` out."""
    for parameters in (None, {}):
        assert "type f = () => any;" in prompt(USER, tools=(FunctionTool("f", None, parameters),))


def test_controls_are_tokens() -> None:
    ids = HARMONY.render(Request(model="m", items=(USER,))).ids(BYTES)
    assert [id for id in ids if id > 255] == [256, 259, 260, 256, 259, 260, 256]
