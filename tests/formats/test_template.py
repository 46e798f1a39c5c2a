"""Chat templates: rendered in a sandbox, with the words of the conversation kept words."""

import json
import sys
import time
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.item import (
    Audio,
    Compaction,
    CustomToolCall,
    FunctionCall,
    FunctionCallOutput,
    Image,
    ItemReference,
    Message,
    Reasoning,
    Text,
    Thought,
    Unknown,
    UnknownPart,
)
from dragoman.core.loss import Loss
from dragoman.core.request import (
    CustomTool,
    FunctionTool,
    JSONObject,
    ReasoningOptions,
    Request,
    UnknownTool,
)
from dragoman.core.turn import Turn
from dragoman.formats.format import Setting
from dragoman.formats.prompt import ByteTokenizer, Control
from dragoman.formats.template import Template, from_config, profile_of
from tests.formats.markup.parsing import TOOLS, parse

CONTROLS = ("<|im_start|>", "<|im_end|>", "<think>")
CHATML = """
{%- if tools %}<|im_start|>tools
{% for tool in tools %}
{{ tool | tojson }}
{% endfor %}
<|im_end|>
{% endif %}
{%- for message in messages %}
<|im_start|>{{ message.role }}
{% if message.reasoning_content %}({{ message.reasoning_content }}){% endif %}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function.name }} {{ call.function.arguments | tojson }}</tool_call>
{%- endfor %}
<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking %}<think>
{% endif %}{% endif %}"""


USER = Message("user", "hi")


def request(*items: object, **more: object) -> Request:
    return Request(model="m", items=items or (Message("user", "hi"),), **more)


def render(text: str, *items: object, **more: object) -> str:
    return Template(text, "hermes", CONTROLS).render(request(*items, **more)).text


def refusal(text: str, *items: object, **more: object) -> FaultError:
    with pytest.raises(FaultError) as raised:
        render(text, *items, **more)
    return raised.value


def test_a_conversation_is_rendered() -> None:
    items = (
        Message("developer", "Be kind."),
        Message("user", (Text("one "), Text("two"))),
        Reasoning((Thought("old"),)),
        Message("assistant", "ok"),
        Message("user", "more", name="Ann"),
        Reasoning((Thought("hm"),)),
        Message("assistant", "look"),
        FunctionCall("c1", "now", '{"a":  1}'),
        CustomToolCall("c2", "patch", "***"),
        FunctionCallOutput("c1", (Text("noon"),)),
        Message("assistant", "so"),
    )
    prompt = Template(CHATML, "hermes", CONTROLS).render(request(*items, instructions="Hey."))
    assert prompt.text == (
        "<|im_start|>system\nHey.\n\nBe kind.<|im_end|>\n"
        "<|im_start|>user\none two<|im_end|>\n"
        "<|im_start|>assistant\nok<|im_end|>\n"
        "<|im_start|>user\nmore<|im_end|>\n"
        "<|im_start|>assistant\n(hm)look"
        '<tool_call>now {"a":  1}</tool_call>'
        '<tool_call>patch {"input": "***"}</tool_call><|im_end|>\n'
        "<|im_start|>tool\nnoon<|im_end|>\n"
        "<|im_start|>assistant\nso<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert [loss.field for loss in prompt.losses] == ["items"]


CHAT = Template(CHATML, "hermes", CONTROLS)
anything = st.lists(
    st.sampled_from([*CONTROLS, "<", "<|im", "_start|>", "|", "\ue000", "\ue001", "x", "\n", '"'])
).map("".join)


@given(anything, anything, anything)
def test_text_never_becomes_control_tokens(system, user, described) -> None:
    tools = (FunctionTool("f", described, {"type": "object", "title": user}),)
    items = (
        Message("system", system),
        Message("user", (Text(user), Text(system))),
        FunctionCall("c", "f", json.dumps({"a": user}, ensure_ascii=False)),
        FunctionCallOutput("c", described),
    )
    prompt = CHAT.render(request(*items, tools=tools))
    plain = [Message("system", "s"), Message("user", "u"), *items[2:3], *items[3:]]
    bare = CHAT.render(request(*plain, tools=(FunctionTool("f"),)))
    controls = [piece for piece in prompt.pieces if isinstance(piece, Control)]
    assert controls == [piece for piece in bare.pieces if isinstance(piece, Control)]
    assert f"\n{user}{system}" in prompt.text
    tokenizer = ByteTokenizer(CONTROLS)
    assert [id for id in prompt.ids(tokenizer) if id > 255] == [
        tokenizer.controls[piece.text] for piece in controls
    ]


@pytest.mark.uncounted
def test_text_is_scanned_once_for_any_number_of_control_tokens() -> None:
    words = [Message("user", f"word {number}") for number in range(1_000)]
    text = "{% for m in messages %}{{ m.content }}{% endfor %}"

    def once(count: int) -> float:
        controls = [f"<|reserved_special_token_{number}|>" for number in range(count)]
        template = Template(text, "hermes", controls)
        start = time.thread_time()
        template.render(request(*words))
        return time.thread_time() - start

    assert any(once(300) < 10 * once(1) for _ in range(5))


def test_text_that_ends_as_a_control_token_begins_does_not_make_one() -> None:
    template = Template("{% for m in messages %}{{ m.content }}s>{% endfor %}", "hermes", ["<s>"])
    assert template.render(request(Message("user", "a<"))).pieces == ("a<s>",)


def test_private_characters_may_all_occur_in_a_conversation() -> None:
    """They are what control tokens are hidden with."""
    words = "".join(map(chr, range(0xE000, 0xF900)))
    template = Template("{% for m in messages %}<s>{{ m.content }}{% endfor %}", "hermes", ["<s>"])
    pieces = template.render(request(Message("user", f"{words}<s>"))).pieces
    assert pieces == (Control("<s>"), f"{words}<s>")
    words += "".join(map(chr, (*range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE))))
    error = refusal("{{ messages[0].content }}", Message("user", words))
    assert "no character for private use" in error.fault.message


def test_deeply_nested_tools_are_refused() -> None:
    deep: dict[str, object] = {}
    for _ in range(5_000):
        deep = {"a": deep}
    error = refusal("{{ tools }}", tools=(FunctionTool("f", None, deep),))
    assert error.fault.code == "invalid_request"
    assert "nested too deeply" in error.fault.message


def test_tools_documents_and_options_reach_the_template() -> None:
    text = "{{ tools | length }}{{ documents[0].title }}{{ mood }}{{ reasoning_effort }}"
    text += "{{ messages | length }}"
    extra = {
        "chat": {
            "chat_template_kwargs": {"mood": "blue", "messages": []},
            "documents": [{"title": "T"}],
        }
    }
    more = {"tools": TOOLS, "extra": extra, "reasoning": ReasoningOptions("low")}
    assert render(text, **more) == "2Tbluelow1"
    assert render("{{ tools is none }}", tools=TOOLS, tool_choice="none") == "True"


def test_an_answer_may_begin_inside_the_reasoning(monkeypatch) -> None:
    template = Template(CHATML, "hermes", CONTROLS)
    thought = parse(template, "hm</think>Hi", reasoning=ReasoningOptions("high"))
    assert thought.said == [("thought", "hm"), ("text", "Hi")]
    said = parse(template, "hm</think>Hi", reasoning=ReasoningOptions("none"))
    assert said.said == [("text", "hmHi")]
    assert parse(template, "Hi").said == [("text", "Hi")]
    faulty = Template("{{ raise_exception('no') }}", "hermes")
    assert parse(faulty, "Hi").said == [("text", "Hi")]
    monkeypatch.setattr("dragoman.formats.template.MAX_REMEMBERED", 64)
    for number in range(70):  # what is remembered of options is bounded
        extra = {"chat": {"chat_template_kwargs": {"n": number}}}
        template.parser(request(extra=extra), Turn("1", 0, "m"))
    assert len(template._starts_thinking) <= 64


def test_large_options_do_not_decide_about_the_reasoning_and_are_rendered() -> None:
    seen: list[dict[str, object]] = []

    def program(variables: dict[str, object], today: str | None) -> str:
        seen.append(variables)
        return "<think>"

    template = Template(CHATML, "hermes", CONTROLS, program=program)
    for size in (101, 102):
        large = {"list": [0] * size, "text": "x" * size, "n" * size: 1, "object": {}}
        asked = request(extra={"chat": {"chat_template_kwargs": {"small": 1, **large}}})
        template.render(asked)
        template.parser(asked, Turn("1", 0, "m"))
    first, hello, second = seen  # the second time it is known
    assert {"small", "list", "text", "object", "n" * 101} <= first.keys()
    assert {"small", "list", "text", "object", "n" * 102} <= second.keys()
    assert "small" in hello
    assert hello.keys().isdisjoint({"list", "text", "object", "n" * 101})


def test_too_many_options_are_refused() -> None:
    names = [f"n{number}" for number in range(65)]
    asked = [
        request(extra={"chat": {"chat_template_kwargs": dict.fromkeys(names[:count], 1)}})
        for count in (64, 65)
    ]
    template = Template(CHATML, "hermes", CONTROLS)
    template.render(asked[0])
    with pytest.raises(FaultError, match="chat_template_kwargs: has 65 names, and 64 are the most"):
        template.render(asked[1])


def test_the_date_is_given_and_never_looked_up() -> None:
    template = Template("{{ strftime_now('%d %b %Y') }}", "hermes")
    assert template.render(request(), Setting("2026-11-21")).text == "21 Nov 2026"
    assert template.render(request()).text == ""
    asks = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}-{% endif %}"
    assert Template(asks, "hermes").render(request()).text == "-"
    assert Template(asks, "hermes").render(request(), Setting("2026-11-21")).text == "2026"


def test_template_features_of_transformers_are_supported() -> None:
    text = """{% for m in messages %}
    {% if loop.first %}
{{ m.content }}
    {% continue %}
    {% endif %}
{% endfor %}
{% generation %}g{% endgeneration %}
{{ {"b": "é<", "a": [1]} | tojson }}|{{ [1] | tojson(indent=2) }}
{{- {"b": 1, "a": 2} | tojson(sort_keys=True, separators=(",", ":")) }}
{{- 2 * 3 }}{{ "a" * 2 }}{{ 2 ** 3 }}"""
    expected = 'hi\ng{"b": "é<", "a": [1]}|[\n  1\n]{"a":2,"b":1}6aa8'
    assert render(text, Message("user", "hi"), Message("user", "ho")) == expected


def test_p34_template_exception_is_a_fault_with_its_message() -> None:
    error = refusal("{{ raise_exception('Roles must alternate') }}")
    assert error.fault.code == "invalid_request"
    assert "Roles must alternate" in error.fault.message


@pytest.mark.parametrize(
    "text",
    [
        "{{ nothing.at.all }}",
        "{{ 'a' * 10000000 }}",
        "{{ 2 ** 1000 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 1 / 0 }}",
        "{{ messages[99].x.y }}",
    ],
)
def test_a_template_that_fails_is_our_fault(text) -> None:
    assert refusal(text).fault.code == "internal"


def test_a_prompt_has_a_greatest_length(monkeypatch) -> None:
    monkeypatch.setattr("dragoman.formats.template.MAX_CHARACTERS", 1000)
    text = "{% for i in range(1000) %}{{ i }} {% endfor %}"
    assert "longer than 1000 characters" in refusal(text).fault.message


@pytest.mark.parametrize("status", ["in_progress", "incomplete"])
def test_a_message_is_continued_where_the_template_shows_it(status) -> None:
    opened = Message("assistant", "1, <|im_end|> ", status=status)
    assert render(CHATML, USER, opened).endswith("assistant\n1, <|im_end|> ")
    with pytest.raises(FaultError, match="items: this model's chat template cannot continue"):
        render("{{ messages[0].content }}", USER, opened)
    strict = replace(TOOLS[0], strict=True)
    asked = request(USER, opened, tools=(strict,))
    assert CHAT.grammar(asked) is None
    with pytest.raises(FaultError, match="items: the answer has begun"):
        CHAT.grammar(replace(asked, tool_choice="required"))


def test_invalid_template_is_an_error_with_its_line() -> None:
    with pytest.raises(ValueError, match="line 1"):
        Template("{% if %}", "hermes")


@pytest.mark.parametrize(
    ("items", "where"),
    [
        ((Message("user", (Text("a"), Image("http://x"))),), "items[0].content[1]"),
        ((Message("user", "a"), Message("user", (Audio("x"),))), "items[1].content[0]"),
        (
            (FunctionCall("c", "f", ""), FunctionCallOutput("c", (Image("x"),))),
            "items[1].output[0]",
        ),
        ((ItemReference("x"),), "items[0]"),
        (
            (USER, Message("user", (UnknownPart("responses", {"type": "x"}),))),
            "items[1].content[0]",
        ),
    ],
)
def test_part_that_is_not_text_is_refused_by_its_path(items, where) -> None:
    error = refusal(CHATML, *items)
    assert (error.fault.code, error.fault.param) == ("unsupported", where)


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        (Unknown("responses", "compaction_trigger", {}), "'compaction_trigger'"),
        (Compaction("blob"), "'compaction'"),
    ],
)
@pytest.mark.parametrize("lead", [None, "Be brief."])
def test_an_item_without_a_place_is_refused_by_its_type_and_place(item, kind, lead) -> None:
    error = refusal(CHATML, Message("system", "s"), USER, USER, item, instructions=lead)
    assert error.fault.param == "items[3]"
    assert error.fault.message == (
        f"items[3]: this model's prompt cannot hold an item of type {kind}"
    )


@pytest.mark.parametrize(
    ("kind", "shown"),
    [("web_search_call", "'web_search_call'"), ("x\n" * 99, repr(("x\n" * 99)[:99] + "…"))],
)
def test_r4_19_hosted_calls_are_dropped_and_reported(kind, shown) -> None:
    items = (USER, Unknown("responses", kind, {"id": "ws_1"}), USER)
    prompt = Template(CHATML).render(Request(model="m", items=items))
    assert prompt.text == Template(CHATML).render(Request(model="m", items=(USER, USER))).text
    assert prompt.losses == (Loss("items[1]", "dropped", f"the model cannot read a {shown}"),)


def test_part_that_is_not_text_is_called_by_its_type() -> None:
    error = refusal(CHATML, Message("user", (UnknownPart("responses", {"type": "scent"}),)))
    assert error.fault.message.endswith("this model reads text only, and this is 'scent'")


def test_tools_that_are_no_functions_are_refused_by_name() -> None:
    error = refusal(CHATML, tools=(FunctionTool("f"), CustomTool("g")))
    assert (error.fault.code, error.fault.param) == ("unsupported", "tools[1]")
    assert error.fault.message.endswith("only has functions, and this is a 'custom'")
    error = refusal(CHATML, tools=(UnknownTool("responses", "web_search", {}),))
    assert error.fault.message.endswith("only has functions, and this is a 'web_search'")


def test_answer_format_is_described_in_the_prompt() -> None:
    words = "Answer with one JSON object, and nothing else."
    assert f"system\n{words}<" in render(CHATML, format=JSONObject())


def test_instructions_in_parts() -> None:
    text = "{{ messages[0].content }}{{ messages | length }}"
    assert render(text, instructions=(Message("system", "Be kind."),)) == "Be kind.2"
    assert render(text, instructions="") == "hi1"


def test_arguments_that_are_no_object_stay_text() -> None:
    text = "{% for m in messages %}{{ m.tool_calls[0].function.arguments }}{% endfor %}"
    assert render(text, FunctionCall("c", "f", "{oops")) == "{oops"


def test_the_stops_are_the_familys_and_the_models_own() -> None:
    assert Template("", "hermes", (), {"eos_token": "</s>"}).stops(request()).controls == (
        "<|im_end|>",
        "<|endoftext|>",
        "</s>",
    )
    assert (
        len(Template("", "hermes", (), {"eos_token": "<|im_end|>"}).stops(request()).controls) == 2
    )


def test_grammar_is_the_familys() -> None:
    template = Template(CHATML, "hermes", CONTROLS)
    assert template.name == "hermes"
    assert template.grammar(request()) is None
    assert template.grammar(request(tools=TOOLS, tool_choice="required")) is not None


def test_p36_a_folder_is_read_by_its_configuration() -> None:
    config = {
        "chat_template": [
            {"name": "default", "template": "d"},
            {"name": "tool_use", "template": "{{ bos_token }}[INST]{{ eos_token }}"},
        ],
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
        "pad_token": None,
        "added_tokens_decoder": {
            "5": {"content": "[INST]", "special": True},
            "6": {"content": "[TOOL_CALLS]", "special": True},
            "7": {"content": "<x>", "special": False},
        },
    }
    template = from_config(json.dumps(config))
    assert template.name == "mistral"
    assert template.render(request()).pieces == (Control("<s>"), Control("[INST]"), Control("</s>"))
    assert from_config("{}", "plain").render(request()).text == "plain"
    own = from_config("{}", "<a>b", ["<a>"])
    assert own.render(request()).pieces == (Control("<a>"), "b")
    for wrong in ("[]", "{}", '{"chat_template": [{"name": "x"}]}', "nonsense"):
        with pytest.raises(ValueError):
            from_config(wrong)


@pytest.mark.parametrize(
    ("text", "controls", "name"),
    [
        ("<|im_start|> <tool_call>", (), "hermes"),
        ("<|im_start|> <tool_call><function=x><parameter=y>", (), "qwen-xml"),
        ("[INST]", ("[TOOL_CALLS]",), "mistral"),
        ("", ("<｜tool▁calls▁begin｜>",), "deepseek"),
        ("<|start_header_id|>", (), "llama"),
        ("<|header_start|>", (), "llama4"),
    ],
)
def test_families_are_recognised(text, controls, name) -> None:
    profile = profile_of(text, controls)
    assert profile.name == name


def test_f7_unknown_family_is_parsed_as_hermes_and_not_recognised() -> None:
    assert profile_of("anything") is None
    assert (Template("x").name, Template("x").recognised) == ("hermes", False)
    assert Template("<|im_start|> <tool_call>").recognised


def test_missing_jinja_is_an_error_that_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.delitem(sys.modules, "dragoman.formats.template", raising=False)
    with pytest.raises(ImportError, match=r"pip install '\.\[local\]'"):
        import_module("dragoman.formats.template")


STRICT = """
{%- set said = namespace(count=0) %}
{%- for message in messages %}
{%- if message.role == 'system' %}
{%- if not (taken and loop.first) %}{{ raise_exception('System role not supported') }}{% endif %}
{%- elif message.role == 'user' or message.role == 'assistant' and not message.tool_calls %}
{%- if (message.role == 'user') != (said.count % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- set said.count = said.count + 1 %}
{%- endif -%}
[{{ message.role }}: {{ message.content }}]
{%- endfor %}"""
WHY_JOINED = "messages are joined, as the model takes none but alternating roles"
WHY_USERS = "system messages are sent as the user's, as the model takes none"


@pytest.mark.parametrize("taken", ["yes", ""])
def test_messages_are_joined_where_a_template_takes_alternating_roles_alone(taken) -> None:
    chat = Template(STRICT, "hermes", variables={"taken": taken})
    twice = (Message("user", "/tmp"), Message("user", "Go."))
    asked = Request(model="m", instructions="Be kind.", items=twice)
    prompt = chat.render(asked)
    if taken:
        assert prompt.text == "[system: Be kind.][user: /tmp\n\nGo.]"
        assert prompt.losses == (Loss("items", "emulated", WHY_JOINED),)
    else:
        assert prompt.text == "[user: Be kind.\n\n/tmp\n\nGo.]"
        assert prompt.losses == (Loss("items", "emulated", WHY_USERS),)
    alone = replace(asked, instructions=None, items=twice[1:])
    assert (chat.render(alone).text, chat.render(alone).losses) == ("[user: Go.]", ())


def test_a_format_is_asked_for_by_the_user_where_a_template_takes_no_system_message() -> None:
    chat = Template(STRICT, "hermes", variables={"taken": ""})
    words = "Answer with one JSON object, and nothing else."
    for items, begun in (
        ((Message("user", "Go."),), f"[user: Go.\n\n{words}]"),
        ((Message("system", "Be kind."), Message("user", "Go.")), "[user: Be kind.\n\nGo.\n\n"),
    ):
        prompt = chat.render(Request(model="m", items=items, format=JSONObject()))
        assert prompt.text.startswith(begun)
        assert words in prompt.text
    assert prompt.losses == (Loss("items", "emulated", WHY_USERS),)


def test_a_template_that_refuses_alternating_roles_too_is_asked_no_more() -> None:
    chat = Template("{{ raise_exception('roles must alternate') }}", "hermes")
    for items in ((Message("user", "a"),), (Message("user", "a"), Message("user", "b"))):
        with pytest.raises(FaultError, match="roles must alternate"):
            chat.render(Request(model="m", items=items))
