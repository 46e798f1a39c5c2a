"""What each family's parser makes of a text, and the layout of its prompts."""

import pytest
from msgspec.structs import replace

from dragoman.core.item import FunctionCall, Message
from dragoman.core.request import (
    CustomTool,
    FunctionTool,
    JSONObject,
    Namespace,
    Request,
    UnknownTool,
)
from dragoman.formats.format import Setting
from dragoman.formats.markup.emitter import schemas
from dragoman.formats.markup.families import BY_NAME
from dragoman.formats.markup.format import Markup
from dragoman.formats.markup.profile import State
from tests.formats.markup.parsing import NOW, TOOLS, Parsed, asked, parse, parse_ids, tokens

GET = ("get_weather", '{"city": "Rome"}')
CALLS = "<｜tool▁calls▁begin｜>"
CALL, SEP, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
CALLS_END, EOS = "<｜tool▁calls▁end｜>", "<｜end▁of▁sentence｜>"
CLEAN = [
    ("hermes", "Hello\n\nworld.\n<|im_end|>", [("text", "Hello\n\nworld.\n")]),
    ("hermes", " leading", [("text", " leading")]),
    ("hermes", "<think>\nhm\n\nm\n</think>\n\nHi", [("thought", "hm\n\nm"), ("text", "Hi")]),
    ("hermes", "see <think> tags", [("text", "see <think> tags")]),
    ("hermes", "<|im_start|>assistant\nHi<|im_end|>", [("text", "Hi")]),
    (
        "hermes",
        (
            'Look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n'
            "</tool_call>\n"
            '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\nDone'
        ),
        [("text", "Look."), GET, ("now", "{}"), ("text", "Done")],
    ),
    (
        "hermes",
        '<tool_call>{"arguments": {"city": "</tool_call>"}, "name": "get_weather"}</tool_call>',
        [("get_weather", '{"city": "</tool_call>"}')],
    ),
    (
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "</tool_call> x"}}</tool_call>',
        [("get_weather", '{"city": "</tool_call> x"}')],
    ),
    (
        "hermes",
        (
            '<tool_call>{"type": "function", "id": "c9", "function": {"name": "now", '
            '"arguments": {}}}</tool_call>'
        ),
        [("now", "{}")],
    ),
    (
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Rome\\"}"}</tool_call>',
        [GET],
    ),
    (
        "hermes",
        '<think>I will <tool_call>{"name": "now", "arguments": null}</tool_call>',
        [("thought", "I will"), ("now", "{}")],
    ),
    ("hermes", '<tool_call>get_weather(city="Rome")</tool_call>', [GET]),
    (
        "qwen-xml",
        (
            "Ok\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRo\n\nme\n</parameter>\n"
            "<parameter=days>\n3\n</parameter>\n<parameter=exact>True</parameter>\n"
            '<parameter=tags>\n["a"]\n</parameter>\n</function>\n</tool_call>'
        ),
        [
            ("text", "Ok"),
            (
                "get_weather",
                '{"city": "Ro\\n\\nme", "days": 3, "exact": true, "tags": ["a"]}',
            ),
        ],
    ),
    (
        "qwen-xml",
        (
            "<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n"
            "<tool_call>\n<function=now>\n</function>\n</tool_call> Bye"
        ),
        [GET, ("now", "{}"), ("text", "Bye")],
    ),
    (
        "qwen-xml",
        (
            "<tool_call><function=get_weather><parameter=city>\nRome\n<parameter=days>\n3\n"
            "</parameter></function></tool_call>"
        ),
        [("get_weather", '{"city": "Rome", "days": 3}')],
    ),
    (
        "mistral",
        '[THINK]hm[/THINK]Ok[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}[TOOL_CALLS]now[ARGS]{}',
        [("thought", "hm"), ("text", "Ok"), GET, ("now", "{}")],
    ),
    ("mistral", "[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}</s>", [("now", "{}")]),
    ("mistral", '[TOOL_CALLS]get_weather{"city": "Rome"} Bye', [GET, ("text", "Bye")]),
    (
        "mistral",
        (
            '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Rome"}, '
            '"id": "abcdefghi"}, '
            '{"name": "now", "arguments": {}}]</s>'
        ),
        [GET, ("now", "{}")],
    ),
    ("mistral", "a [list] and [TOOL", [("text", "a [list] and [TOOL")]),
    (
        "deepseek",
        (
            f"<think>hm</think>Ok{CALLS}{CALL}function{SEP}get_weather\n```json\n"
            f'{{"city": "Rome"}}\n```{END}\n'
            f"{CALL}function{SEP}now\n```json\n{{}}\n```{END}{CALLS_END}{EOS}"
        ),
        [("thought", "hm"), ("text", "Ok"), GET, ("now", "{}")],
    ),
    (
        "deepseek",
        f'{CALLS}{CALL}get_weather{SEP}{{"city": "Rome"}}{END}{CALL}now{SEP}{{}}{END}{CALLS_END}',
        [GET, ("now", "{}")],
    ),
    ("deepseek", f"{CALLS}{CALL}now{SEP}{END}{CALLS_END}", [("now", "{}")]),
    (
        "llama",
        (
            '{"name": "get_weather", "parameters": {"city": "Rome"}}; '
            '{"type": "function", "name": "now", "parameters": {}}<|eom_id|>'
        ),
        [GET, ("now", "{}")],
    ),
    (
        "llama",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Rome"}}<|eom_id|>',
        [GET],
    ),
    ("llama", '[{"name": "now", "parameters": {}}]<|eot_id|>', [("now", "{}")]),
    ("llama", '[get_weather(city="Rome"), now()]<|eot_id|>', [GET, ("now", "{}")]),
    (
        "llama",
        'Ok <function=get_weather>{"city": "Rome"}</function> and <function=now>{}</function>',
        [("text", "Ok"), GET, ("text", "and"), ("now", "{}")],
    ),
    ("llama", "\n\n{1, 2} is a set", [("text", "\n\n{1, 2} is a set")]),
    ("llama", '{"name": "now", "city": 1}', [("text", '{"name": "now", "city": 1}')]),
    ("llama", "[1, 2, 3]", [("text", "[1, 2, 3]")]),
    ("llama", "[print(1)]", [("text", "[print(1)]")]),
    ("llama", '{"parameters": {}, "name": "now"}', [("now", "{}")]),
    (
        "llama4",
        '<|python_start|>[get_weather(city="Rome")]<|python_end|>Ok<|eot|>',
        [GET, ("text", "Ok")],
    ),
    (
        "llama4",
        '<|python_start|>{"name": "now", "parameters": {}}<|python_end|><|eom|>',
        [("now", "{}")],
    ),
    ("llama4", "<|header_start|>assistant<|header_end|>\n\n[now()]<|eom|>", [("now", "{}")]),
]


def all_ways(family: str, text: str) -> Parsed:
    """The text in one piece, after checking that pieces and tokens say the same."""
    whole = parse(family, text)
    for size in (1, 3, 11):
        pieces = parse(family, text, size)
        assert (pieces.said, pieces.warnings) == (whole.said, whole.warnings)
        assert (pieces.reason, pieces.statuses) == (whole.reason, whole.statuses)
    return whole


@pytest.mark.parametrize(("family", "text", "said"), CLEAN)
def test_well_formed(family: str, text: str, said: list[tuple[str, str]]) -> None:
    outcome = all_ways(family, text)
    assert outcome.said == said
    assert outcome.warnings == []
    assert outcome.statuses == ["completed"] * len(said)
    called = any(kind not in ("text", "thought") for kind, _ in said)
    assert outcome.reason == ("tool_calls" if called else "stop")


@pytest.mark.parametrize(("family", "text", "said"), CLEAN)
def test_well_formed_as_tokens(family: str, text: str, said: list[tuple[str, str]]) -> None:
    ids, tokenizer = tokens(family, text)
    outcome = parse_ids(family, ids, tokenizer)
    if text not in ("see <think> tags",):  # as a token, it means what it says
        assert outcome.said == [
            (kind, words.replace("</tool_call>", "")) for kind, words in said
        ] or "</tool_call>" in str(said)


BROKEN = [
    (  # F8: once its arguments are emitted it is a call, whatever follows
        "llama",
        '{"name": "get_weather", "parameters": {"a": ]"x"}}',
        [("get_weather", '{"a": ]')],
        "the call of get_weather was not closed: }}",
    ),
    # nothing is lost, and what is good beside it stays good
    (
        "hermes",
        (
            '<tool_call>{"name": "now", "arguments": {oops}}</tool_call>\n'
            '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
        ),
        [("now", "{oops}"), GET],
        "the arguments of now are not a JSON object",
    ),
    (
        "hermes",
        (
            '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome}}</tool_call>\n'
            '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
        ),
        [("get_weather", '{"city": "Rome}}'), ("now", "{}")],
        "the call of get_weather was not closed",
    ),
    (
        "hermes",
        "<tool_call>{'name': 'now'}</tool_call>",
        [("text", "{'name': 'now'}")],
        "a call could not be read: {'name': 'now'}",
    ),
    (
        "hermes",
        '<tool_call>{"name": "now", arguments: {}}</tool_call>',
        [("now", '{"name": "now", arguments: {}}')],
        'the call of now could not be read: {"name": "now", arguments: {}}',
    ),
    (
        "hermes",
        '<tool_call>{oops "name": "now"}</tool_call>',
        [("now", '{oops "name": "now"}')],
        'the call of now could not be read: {oops "name": "now"}',
    ),
    (
        "hermes",
        '<tool_call>{"city": "Rome"}</tool_call>',
        [("text", '{"city": "Rome"}')],
        'a call without a name: {"city": "Rome"}',
    ),
    (
        "hermes",
        '<tool_call>{"name": "now", "arguments": {}}}</tool_call>',
        [("now", "{}")],
        "a brace too many after a call",
    ),
    (
        "hermes",
        '<tool_call>{"name": "now", "arguments": {} oops</tool_call>',
        [("now", "{}")],
        "the call of now was not closed: oops",
    ),
    (
        "hermes",
        '<tool_call>{"name": "now", "arguments": "x"</tool_call>',
        [("now", '"x"')],
        "the call of now was not closed",
    ),
    (
        "hermes",
        '<tool_call>{"name": "now"} Bye',
        [("now", "{}"), ("text", "Bye")],
        None,
    ),
    (
        "qwen-xml",
        "<function=now><parameter=x<|im_end|>",
        [("now", "{}")],
        "an argument of now has no value: x",
    ),
    (
        "hermes",
        "Put calls into <tool_call> tags.",
        [("text", "Put calls into <tool_call> tags.")],
        "<tool_call> was not followed by a call",
    ),
    (
        "hermes",
        "hm</think>Hi",
        [("text", "hmHi")],
        "</think> does not belong there and is left out",
    ),
    ("hermes", "Hi<|im_end|>\nmore", [("text", "Hi")], "the model wrote on after its end"),
    ("hermes", "<tool_call>now(</tool_call>", [("text", "now(")], "a call could not be read: now("),
    ("hermes", "<tool_call>now() or</tool_call>", [("now", "{}"), ("text", "or")], None),
    ("hermes", "<tool_call>[ </tool_call>", [("text", "[ ")], "a call could not be read: [ "),
    (
        "hermes",
        '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>',
        [("nobody", "{}")],
        "nobody is called, and no tool of that name was offered",
    ),
    (
        "qwen-xml",
        "<tool_call><function=get_weather>\n<parameter=city>\nRome\n</function>\n</tool_call>",
        [GET],
        "an argument of get_weather was not closed",
    ),
    (
        "qwen-xml",
        "<tool_call><function=now> or </function></tool_call>",
        [("now", "{}"), ("text", "or")],
        "not expected there: or",
    ),
    (
        "qwen-xml",
        "<tool_call><function=now></tool_call><function=\nfunction is a word",
        [("now", "{}"), ("text", "<function=\nfunction is a word")],
        "<function= was not followed by a call",
    ),
    ("qwen-xml", "<function=now", [("text", "now")], "a call could not be read: now"),
    (
        "mistral",
        "[TOOL_CALLS]get_weather[ARGS]Rome[TOOL_CALLS]now[ARGS]{}",
        [("get_weather", "Rome"), ("now", "{}")],
        "the arguments of get_weather are not a JSON object",
    ),
    ("mistral", "Hi[ARGS]!", [("text", "Hi!")], "[ARGS] does not belong there and is left out"),
    ("deepseek", f"{CALLS}Hm{CALL}now{SEP}{{}}{END}", [("text", "Hm"), ("now", "{}")], None),
    (
        "llama",
        "<|python_tag|>{oops}<|eom_id|>",
        [("text", "{oops}")],
        "a call could not be read: {oops}",
    ),
    ("llama", "[now(]", [("text", "[now(]")], "a call could not be read: [now(]"),
    ("llama", "[now(a=b), now()]", [("now", "a=b"), ("now", "{}")], None),
    ("llama", '{"name": "now"', [("text", '{"name": "now"')], None),
    ("llama", '["a", now', [("text", '["a", now')], None),
]


@pytest.mark.parametrize(("family", "text", "said", "warning"), BROKEN)
def test_malformed(
    family: str, text: str, said: list[tuple[str, str]], warning: str | None
) -> None:
    outcome = all_ways(family, text)
    assert outcome.said == said
    assert warning is None or warning in outcome.warnings


@pytest.mark.parametrize(
    ("family", "text", "said"),
    [
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "b', [("now", '{"a": "b')]),
        ("hermes", '<tool_call>{"na', []),  # F9: no half call is shown
        ("hermes", 'Hi\n<tool_call>\n{"name": "ge', [("text", "Hi")]),
        ("qwen-xml", "<tool_call>\n<fun", []),
        ("qwen-xml", "<tool_call>\n<function=get_w", []),
        ("deepseek", f"{CALLS}{CALL}func", []),
        ("mistral", "Ok.[TOOL_CALLS]get_weat", [("text", "Ok.")]),
        ("llama", '<|python_tag|>{"name": "ge', []),
        ("llama", '{"name": "ge', [("text", '{"name": "ge')]),  # may be an answer in JSON
        ("hermes", "Hi <tool_c", [("text", "Hi <tool_c")]),
        ("hermes", "Hi\n<tool_call>\n", [("text", "Hi")]),
        ("hermes", "<think>\nhm\n", [("thought", "hm\n")]),
        ("qwen-xml", "<function=now>\n<parameter=a>\n1", [("now", '{"a": "1')]),
        ("mistral", '[TOOL_CALLS]now[ARGS]{"a"', [("now", '{"a"')]),
        ("llama", "[now(a=1", [("text", "[now(a=1")]),
    ],
)
def test_cut_short(family: str, text: str, said: list[tuple[str, str]]) -> None:
    outcome = parse(family, text, 2, reason="length")
    assert [each for each in outcome.said if each[1]] == said  # an empty answer is an empty text
    assert outcome.reason == "length"
    assert outcome.statuses[-1] == "incomplete"


@pytest.mark.parametrize("choice", ["no tools", "none"])
def test_where_no_tool_may_be_called_its_markup_is_text(choice: str) -> None:
    more = {"tools": ()} if choice == "no tools" else {"tool_choice": "none"}
    text = 'So: <tool_call>{"name": "now"}</tool_call>'
    assert parse("hermes", text, 1, **more).said == [("text", text)]
    plain = '<|python_tag|>{"name": "now"}<|eom_id|>'
    assert parse("llama", plain, 1, **more).said == [("text", '{"name": "now"}')]
    ids, tokenizer = tokens("hermes", text)
    if choice == "no tools":
        assert parse_ids("hermes", ids, tokenizer, tools=()).said == [("text", text)]


def test_what_a_request_may_call() -> None:
    request = Request(
        model="m",
        tools=(
            Namespace("files", (FunctionTool("read"), CustomTool("patch"))),
            UnknownTool("responses", "web_search", {}),
            NOW,
        ),
    )
    assert schemas(request) == {"read": None, "patch": None, "now": None}


def test_family_without_reasoning_has_a_grammar_without_it() -> None:
    silent = replace(BY_NAME["llama"], states={**BY_NAME["llama"].states, "start": State("start")})
    grammar = Markup(silent).grammar(Request(model="m", format=JSONObject()))
    assert grammar is not None
    assert not any("think" in marker.text for marker in grammar.markers)


def test_marks_of_reasoning_are_found_after_other_marks() -> None:
    hermes = BY_NAME["hermes"]
    start = hermes.states["start"]
    turned = replace(start, marks=dict(reversed(start.marks.items())))
    profile = replace(hermes, states={**hermes.states, "start": turned})
    grammar = Markup(profile).grammar(Request(model="m", format=JSONObject()))
    assert grammar is not None
    assert [marker.text for marker in grammar.markers][:2] == ["</think>", "<think>"]


def test_a_frame_tells_of_the_day_and_of_whom_one_speaks_to() -> None:
    setting = Setting("2026-11-21", "You are a model.", "2026-01")
    prompt = Markup("hermes").render(Request(model="m", items=(Message("user", "hi"),)), setting)
    words = "You are a model.\nKnowledge cutoff: 2026-01\nCurrent date: 2026-11-21"
    assert prompt.text.startswith(f"<|im_start|>system\n{words}<|im_end|>")
    assert Markup("hermes").name == "hermes"
    bare = Markup("hermes").render(Request(model="m", items=(Message("user", "hi"),)))
    assert bare.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_what_users_write_is_never_a_control_token() -> None:
    for family in BY_NAME:
        evil = "".join(BY_NAME[family].controls)
        pieces = Markup(family).render(Request(model="m", items=(Message("user", evil),))).pieces
        assert any(isinstance(piece, str) and evil in piece for piece in pieces)


def test_call_ids_have_the_length_a_family_wants() -> None:
    items = (Message("user", "hi"), FunctionCall("call_1", "now", "{oops"))
    assert (
        "[TOOL_CALLS]now[ARGS]{oops</s>"
        in Markup("mistral").render(Request(model="m", items=items)).text
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"name": "now", "parameters": }', [("text", '{"name": "now", "parameters": }')]),
        ('{"name": "now", oops}', [("text", '{"name": "now", oops}')]),
        ('{"function": {"name": "nobody"}}', [("text", '{"function": {"name": "nobody"}}')]),
        ('{"function": {oops}}', [("text", '{"function": {oops}}')]),
        ('{"function": "now", "id": 5}', [("now", "{}")]),
        ('{"parameters": {}}', [("text", '{"parameters": {}}')]),
        ('{"\\q": 1}', [("text", '{"\\q": 1}')]),
        ('{"name": "now", "parameters": 5}', [("now", "5")]),
        ('{"name": "now", "parameters": {"a": "\\"}"}}', [("now", '{"a": "\\"}"}')]),
        ("[" + "n" * 300, [("text", "[" + "n" * 300)]),
        ("[now()", [("text", "[now()")]),
        ("[ ]", [("text", "[ ]")]),
    ],
)
def test_messages_that_are_nearly_calls(text: str, said: list[tuple[str, str]]) -> None:
    assert all_ways("llama", text).said == said


@pytest.mark.parametrize(
    ("family", "text", "said"),
    [
        ("hermes", "a" + " " * 200 + "b", [("text", "a" + " " * 200 + "b")]),
        ("hermes", " \n ", [("text", " \n ")]),
        ("hermes", " \n <|im_end|>", [("text", " \n ")]),
        (
            "hermes",
            '<tool_call>{"name": "now", "arguments": {"a": "</tool_call>' + " " * 99 + '"}}',
            [("now", '{"a": "</tool_call>' + " " * 99 + '"}')],
        ),
        ("hermes", "Use <tool_call> tags.", [("text", "Use <tool_call> tags.")]),
        ("hermes", "Use <tool_call> tags <", [("text", "Use <tool_call> tags <")]),
        ("mistral", "[TOOL_CALLS]" + "n" * 200, [("text", "n" * 200)]),
        ("mistral", "[TOOL_CALLS]now[ARGS]{} [1]", [("now", "{}"), ("text", "[1]")]),
        ("mistral", "[TOOL_CALLS]", [("text", "")]),
        ("mistral", "[TOOL_CALLS]now[ARGS] {}", [("now", "{}")]),
        (
            "hermes",
            '<tool_call>{"name": "now", "arguments": {"a": "b</tool_call> \n',
            [("now", '{"a": "b')],
        ),
        ("deepseek", f"{CALL}now{SEP} {{}}\n {END}", [("now", "{}")]),
        ("deepseek", f"{CALL}now{SEP}{{}} Hi", [("now", "{}"), ("text", "Hi")]),
        ("deepseek", f'{CALL}now{SEP}{{"a": "{END}"}}{END}', [("now", f'{{"a": "{END}"}}')]),
    ],
)
def test_edges(family: str, text: str, said: list[tuple[str, str]]) -> None:
    assert all_ways(family, text).said == said


USER = Message("user", "hi")


def test_arguments_as_tags_are_written_as_they_are_read() -> None:
    call = FunctionCall("c", "get_weather", '{"city": "Rome", "days": 2, "tags": ["a"]}')
    text = Markup("qwen-xml").render(Request(model="m", items=(USER, call))).text
    written = (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
        '<parameter=days>\n2\n</parameter>\n<parameter=tags>\n["a"]\n</parameter>\n'
        "</function>\n</tool_call>"
    )
    assert written in text
    assert parse("qwen-xml", written).said == [(call.name, call.arguments)]


def test_calls_in_a_row_stand_in_their_frame() -> None:
    calls = (FunctionCall("a", "now", "{}"), FunctionCall("b", "now", '{"x": 1}'))
    text = Markup("llama4").render(Request(model="m", items=(USER, *calls))).text
    row = '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {"x": 1}}'
    assert f"<|python_start|>{row}<|python_end|><|eom|>" in text


def test_the_grammar_is_made_of_what_the_profile_says() -> None:
    format = Markup("hermes")
    assert format.grammar(asked()) is None
    grammar = format.grammar(asked(TOOLS, tool_choice="required"))
    assert grammar is not None
    assert "get_weather" in grammar.lark
    assert format.name == "hermes"
