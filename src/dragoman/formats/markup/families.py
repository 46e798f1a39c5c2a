"""The markup of the known families as data."""

from __future__ import annotations

from msgspec.structs import replace

from .profile import CallSyntax, ChatLayout, Profile, State


def _states(opening: str, closing: str, marks: dict[str, str], **others: State) -> dict[str, State]:
    """The states every family has; `opening` and `closing` are the marks of reasoning."""
    calls = {mark: to for mark, to in marks.items() if to not in ("header", "start")}
    return {
        "start": State("start", {opening: "thought", **marks}, then="text"),
        "text": State("text", marks, {opening: "thought"}),
        "thought": State("thought", {closing: "start", **calls}),
        "over": State("over"),
        **others,
    }


def _turns(turn: str, tool: str, tools: str, **more: str) -> ChatLayout:
    """A layout whose turns look alike: `@` stands for the role. `tool` is the turn of a result."""
    system, user, assistant = (turn.replace("@", each) for each in _ROLES)
    return ChatLayout(system=system, user=user, assistant=assistant, tool=tool, tools=tools, **more)


_ROLES = ("system", "user", "assistant")
_SIGNATURES = "You may call functions. Their signatures, one a line:\n{}\n\n"
_AS_JSON = f"{_SIGNATURES}To call a function, write a JSON object with its name and its arguments"
_AS_TAGS = f"{_SIGNATURES}To call a function, write a tag for each of its arguments:\n"
_AS_TRAINED = f"{_SIGNATURES}Write calls between the markers you were trained on"
_THINK = ("<think>", "</think>")
_LINE_HEADER = State("header", {"\n": "start"})

# ---- ChatML ----------------------------------------------------------------------------------

_CHATML = ("<|im_start|>", "<|im_end|>")
_CHATML_TURN = "<|im_start|>@\n{}<|im_end|>\n"
_CHATML_TOOL = "<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n"
_JSON_CALL = CallSyntax(
    opening='<tool_call>\n{"name": "',
    separator='", "arguments": ',
    closing="}\n</tool_call>",
    between="\n",
)
HERMES = Profile(
    name="hermes",
    states=_states(
        *_THINK,
        {"<tool_call>": "call", "<|im_start|>": "header"},
        call=State("call", {"</tool_call>": "start", "<tool_call>": "call"}),
        header=_LINE_HEADER,
    ),
    ends=("<|im_end|>", "<|endoftext|>"),
    strays=("</tool_call>", "</think>"),
    tags=frozenset({"<tool_call>", "</tool_call>"}),
    syntax=_JSON_CALL,
    layout=_turns(
        _CHATML_TURN,
        _CHATML_TOOL,
        f"{_AS_JSON} in tags, one pair for each call:\n"
        '<tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call>',
    ),
    controls=(*_CHATML, "<|endoftext|>"),
    hints=("<tool_call>", "<|im_start|>"),
)

LFM2 = Profile(
    name="lfm2",
    states=_states(
        *_THINK,
        {"<|tool_call_start|>": "call", "<|im_start|>": "header"},
        call=State("call", {"<|tool_call_end|>": "start", "<|tool_call_start|>": "call"}),
        header=_LINE_HEADER,
    ),
    ends=("<|im_end|>", "<|endoftext|>"),
    strays=("<|tool_call_end|>", "</think>"),
    syntax=CallSyntax(
        first="<|tool_call_start|>[",
        opening='{"name": "',
        separator='", "arguments": ',
        closing="}",
        between=", ",
        last="]<|tool_call_end|>",
    ),
    layout=_turns(
        _CHATML_TURN, "<|im_start|>tool\n{}<|im_end|>\n", f"{_AS_TRAINED}, as a JSON list."
    ),
    controls=("<|startoftext|>", *_CHATML, "<|tool_call_start|>", "<|tool_call_end|>"),
    hints=("<|tool_", "<|im_start|>"),
)

GRANITE = Profile(
    name="granite",
    states=_states(
        *_THINK,
        {"<|tool_call|>": "list", "<tool_call>": "call", "<|start_of_role|>": "header"},
        list=State("call", {"<|tool_call|>": "list"}),
        call=State("call", {"</tool_call>": "start", "<tool_call>": "call"}),
        header=State("header", {"<|end_of_role|>": "start"}),
        thought=State("thought", {"</think>": "answer", "<tool_call>": "call"}),
        answer=State("start", {"<response>": "response", "<tool_call>": "call"}, then="text"),
        response=State("text", {"</response>": "start", "<tool_call>": "call"}),
    ),
    ends=("<|end_of_text|>",),
    strays=("<|end_of_role|>", "</tool_call>", "</think>"),
    tags=frozenset({"<tool_call>", "</tool_call>"}),
    syntax=_JSON_CALL,
    layout=_turns(
        "<|start_of_role|>@<|end_of_role|>{}<|end_of_text|>\n",
        "<|start_of_role|>tool<|end_of_role|>{}<|end_of_text|>\n",
        HERMES.layout.tools,
    ),
    controls=("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<|tool_call|>"),
    hints=("<|start_of_role|>",),
)

# ---- a tag for each argument -----------------------------------------------------------------


def _function_tags(name: str, outer: str, thinking: tuple[str, str], pad: str) -> Profile:
    """`<function=NAME>` with `<parameter=NAME>` inside of the tag `outer`; each value is between
    two `pad`s."""
    opening, closing = f"<{outer}>", f"</{outer}>"
    marks = {opening: "call", "<function=": "name", "<|im_start|>": "header"}
    ends = {"</function>": "after", closing: "start"}
    argument = f"<parameter={{}}>{pad}{{}}{pad}</parameter>\n"
    shown = argument.format("ARGUMENT", "VALUE")
    return Profile(
        name=name,
        states=_states(
            *thinking,
            marks,
            call=State("call", {"<function=": "name", closing: "start", opening: "call"}),
            name=State("name", {">": "between"}),
            between=State("gap", {"<parameter=": "key", "<function=": "name", **ends}),
            key=State("key", {">": "value"}),
            value=State(
                "value",
                {"</parameter>": "between", "\n<parameter=": "key"},
                doubtful={closing: "start"},
            ),
            after=State("start", {closing: "start", **marks}, then="text"),
            header=_LINE_HEADER,
        ),
        ends=HERMES.ends,
        strays=(closing, thinking[1]),
        tags=frozenset({opening, closing, "<function="}),
        syntax=CallSyntax(
            opening=f"{opening}\n<function=",
            separator=">\n",
            closing=f"</function>\n{closing}",
            between="\n",
            argument=argument,
        ),
        layout=_turns(
            _CHATML_TURN,
            _CHATML_TOOL,
            f"{_AS_TAGS}{opening}\n<function=NAME>\n{shown}</function>\n{closing}",
        ),
        controls=HERMES.controls,
        hints=("<function=", "<parameter=", "<|im_start|>"),
    )


QWEN_XML = _function_tags("qwen-xml", "tool_call", _THINK, "\n")
_SEED = _function_tags("seed-oss", "seed:tool_call", ("<seed:think>", "</seed:think>"), "")
SEED = replace(
    _SEED,
    ends=("<seed:eos>",),
    layout=_turns(
        "<seed:bos>@\n{}<seed:eos>",
        "<seed:bos>tool\n{}<seed:eos>",
        _SEED.layout.tools,
        thought="<seed:think>{}</seed:think>\n",
    ),
    controls=(
        *("<seed:bos>", "<seed:eos>", "<seed:think>", "</seed:think>"),
        *("<seed:tool_call>", "</seed:tool_call>"),
    ),
    hints=("<seed:tool_call>",),
)

GLM = Profile(
    name="glm",
    states=_states(
        *_THINK,
        {"<tool_call>": "name", "<|assistant|>": "start"},
        name=State("name", {"<arg_key>": "key", "</tool_call>": "start"}),
        key=State("key", {"</arg_key>": "named", "<arg_value>": "value"}),
        named=State("gap", {"<arg_value>": "value", "</tool_call>": "start"}),
        value=State("value", {"</arg_value>": "between"}, doubtful={"</tool_call>": "start"}),
        between=State("gap", {"<arg_key>": "key", "</tool_call>": "start", "<tool_call>": "name"}),
    ),
    ends=("<|user|>", "<|observation|>", "<|endoftext|>"),
    strays=("</tool_call>", "</think>"),
    tags=frozenset({"<tool_call>", "</tool_call>"}),
    syntax=CallSyntax(
        opening="<tool_call>",
        separator="\n",
        closing="</tool_call>",
        between="\n",
        argument="<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n",
    ),
    layout=_turns(
        "<|@|>\n{}",
        "<|observation|>\n<tool_response>\n{}\n</tool_response>",
        f"{_AS_TAGS}<tool_call>NAME\n<arg_key>ARGUMENT</arg_key>\n<arg_value>VALUE</arg_value>\n"
        "</tool_call>",
        begin="[gMASK]<sop>",
        thought="<think>{}</think>\n",
    ),
    controls=(
        *("[gMASK]", "<sop>", "<|endoftext|>", "<|observation|>"),
        *("<|system|>", "<|user|>", "<|assistant|>", *_THINK, "<tool_call>", "</tool_call>"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    hints=("<tool_call>", "<arg_key>"),
)


def _invoke_tags(name: str, outers: tuple[str, ...], layout: ChatLayout, dsml: str = "") -> Profile:
    """`<invoke name="NAME">` with `<parameter name="NAME">` inside of one of the tags `outers`, of
    which the first is written. `dsml` begins every tag; with it an argument says whether it is a
    string."""
    first, last = f"<{dsml}{outers[0]}>", f"</{dsml}{outers[0]}>"
    opened = {f"<{dsml}{outer}>": "calls" for outer in outers}
    closed = {f"</{dsml}{outer}>": "start" for outer in outers}
    invoke, parameter = f'<{dsml}invoke name="', f'<{dsml}parameter name="'
    ends = {f"</{dsml}invoke>": "calls", **closed}
    closing = f"</{dsml}parameter>"
    string, data = ('" string="true">', '" string="false">') if dsml else ('">', '">')
    kinds = {string: "string", data: "json"} if dsml else {}
    example = f"{parameter}ARGUMENT{string}VALUE{closing}\n"
    shown = f'{first}\n{invoke}NAME">\n{example}</{dsml}invoke>\n{last}'
    return Profile(
        name=name,
        states=_states(
            *_THINK,
            {**opened, layout.assistant.partition("{}")[0].strip(): "start"},
            calls=State("gap", {invoke: "name", **opened, **closed}),
            name=State("name", {'">': "between"}),
            between=State("gap", {parameter: "key", invoke: "name", **ends}),
            key=State("key", {**kinds, '">': "value"}),
            value=State("value", {closing: "between"}, doubtful=ends),
            string=State("value", {closing: "between"}, doubtful=ends, known="string"),
            json=State("value", {closing: "between"}, doubtful=ends, known="json"),
        ),
        ends=(layout.assistant.partition("{}")[2].strip(),),
        strays=(*closed, "</think>"),
        tags=frozenset({*opened, *closed}),
        syntax=CallSyntax(
            first=f"{first}\n",
            opening=invoke,
            separator='">\n',
            closing=f"</{dsml}invoke>\n",
            last=last,
            argument=f"{parameter}{{}}{string}{{}}{closing}\n",
            data=f"{parameter}{{}}{data}{{}}{closing}\n",
        ),
        layout=replace(layout, tools=f"{_AS_TAGS}{shown}"),
        fragments=(dsml,) if dsml else (),
        hints=tuple(opened),
    )


MINIMAX = replace(
    _invoke_tags(
        "minimax",
        ("minimax:tool_call",),
        ChatLayout(
            begin="]~!b[",
            system="]~b]system\n{}[e~[\n",
            user="]~b]user\n{}[e~[\n",
            assistant="]~b]ai\n{}[e~[\n",
            tool="]~b]tool\n<response>{}</response>[e~[\n",
            tools="",
        ),
    ),
    controls=("]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>"),
)
MINIMAX_M1 = Profile(
    name="minimax-m1",
    states=_states(
        *_THINK,
        {"<tool_calls>": "call", "<beginning_of_sentence>": "header"},
        call=State("call", {"</tool_calls>": "start"}),
        header=_LINE_HEADER,
    ),
    ends=("<end_of_sentence>",),
    strays=("</tool_calls>", "</think>"),
    tags=frozenset({"<tool_calls>", "</tool_calls>"}),
    syntax=CallSyntax(
        first="<tool_calls>\n",
        opening='{"name": "',
        separator='", "arguments": ',
        closing="}\n",
        last="</tool_calls>",
    ),
    layout=ChatLayout(
        begin="<begin_of_document>",
        system="<beginning_of_sentence>system ai_setting=assistant\n{}<end_of_sentence>\n",
        user="<beginning_of_sentence>user name=user\n{}<end_of_sentence>\n",
        assistant="<beginning_of_sentence>ai name=assistant\n{}<end_of_sentence>\n",
        tool="<beginning_of_sentence>tool name=tools\n{}<end_of_sentence>\n",
        tools=f"{_AS_JSON} in a tag, one a line:\n<tool_calls>\n"
        '{"name": NAME, "arguments": OBJECT}\n</tool_calls>',
    ),
    controls=("<begin_of_document>", "<beginning_of_sentence>", "<end_of_sentence>"),
    hints=("<beginning_of_sentence>", "<tool_calls>"),
)

# ---- Mistral ---------------------------------------------------------------------------------

_MISTRAL_MARKS = {"[TOOL_CALLS]": "name"}
MISTRAL = Profile(
    name="mistral",
    states=_states(
        "[THINK]",
        "[/THINK]",
        _MISTRAL_MARKS,
        name=State(
            "name",
            {"[ARGS]": "arguments", "[CALL_ID]": "id"},
            then="arguments",
            braces="call",
        ),
        id=State("id", {"[ARGS]": "arguments"}),
        arguments=State("arguments", _MISTRAL_MARKS),
        call=State("call", _MISTRAL_MARKS),
    ),
    ends=("</s>",),
    strays=("[ARGS]", "[CALL_ID]", "[/THINK]"),
    syntax=CallSyntax(opening="[TOOL_CALLS]", separator="[ARGS]", closing=""),
    layout=ChatLayout(
        begin="<s>",
        system="[SYSTEM_PROMPT]{}[/SYSTEM_PROMPT]",
        user="[INST]{}[/INST]",
        assistant="{}</s>",
        tool="[TOOL_RESULTS]{}[/TOOL_RESULTS]",
        tools="[AVAILABLE_TOOLS][{}][/AVAILABLE_TOOLS]",
        thought="[THINK]{}[/THINK]",
    ),
    id_length=9,
    controls=(
        *("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
    ),
    hints=("[TOOL_CALLS]", "[INST]"),
)

# ---- DeepSeek --------------------------------------------------------------------------------

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEP, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_EOS = "<｜end▁of▁sentence｜>"
_RESULTS, _RESULTS_END = "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"
_RESULT, _RESULT_END = "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"
_DEEPSEEK_MARKS = {_CALLS: "calls", _CALL: "name", "<｜Assistant｜>": "start"}
DEEPSEEK = Profile(
    name="deepseek",
    states=_states(
        *_THINK,
        _DEEPSEEK_MARKS,
        calls=State("gap", {_CALL: "name", _CALLS_END: "start"}),
        name=State("name", {_SEP: "typed", _CALL_END: "calls"}),
        typed=State("typed", {_CALL_END: "calls", _CALL: "name", _CALLS_END: "start"}),
    ),
    ends=(_EOS,),
    strays=(_SEP, _CALL_END, _CALLS_END, "</think>"),
    syntax=CallSyntax(
        first=_CALLS,
        opening=_CALL,
        separator=_SEP,
        closing=_CALL_END,
        last=_CALLS_END,
    ),
    layout=ChatLayout(
        begin="<｜begin▁of▁sentence｜>",
        system="{}\n\n",
        user="<｜User｜>{}",
        assistant="<｜Assistant｜>{}" + _EOS,
        tool=_RESULTS + _RESULT + "{}" + _RESULT_END + _RESULTS_END,
        tools=(
            "You may call functions. Their signatures, one a line:\n{}\n\n"
            "Write calls between the markers you were trained on, arguments as a JSON object."
        ),
        thought="<think>{}</think>",
    ),
    controls=(
        *("<｜begin▁of▁sentence｜>", _EOS, "<｜User｜>", "<｜Assistant｜>"),
        *(_CALLS, _CALLS_END, _CALL, _SEP, _CALL_END),
        *(_RESULTS, _RESULTS_END, _RESULT, _RESULT_END),
    ),
    hints=(_CALLS,),
)

# ---- DeepSeek, Kimi --------------------------------------------------------------------------

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEP, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_EOS = "<｜end▁of▁sentence｜>"
_RESULTS, _RESULTS_END = "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"
_RESULT, _RESULT_END = "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"
_DEEPSEEK_CONTROLS = ("<｜begin▁of▁sentence｜>", _EOS, "<｜User｜>", "<｜Assistant｜>")
_DEEPSEEK_LAYOUT = ChatLayout(
    begin="<｜begin▁of▁sentence｜>",
    system="{}\n\n",
    user="<｜User｜>{}",
    assistant="<｜Assistant｜>{}" + _EOS,
    tool=_RESULTS + _RESULT + "{}" + _RESULT_END + _RESULTS_END,
    tools=f"{_AS_TRAINED}, arguments as a JSON object.",
    thought="<think>{}</think>",
)
DEEPSEEK = Profile(
    name="deepseek",
    states=_states(
        *_THINK,
        {_CALLS: "calls", _CALL: "name", "<｜Assistant｜>": "start"},
        calls=State("gap", {_CALL: "name", _CALLS_END: "start"}),
        name=State("name", {_SEP: "typed", _CALL_END: "calls"}),
        typed=State("typed", {_CALL_END: "calls", _CALL: "name", _CALLS_END: "start"}),
    ),
    ends=(_EOS,),
    strays=(_SEP, _CALL_END, _CALLS_END, "</think>"),
    syntax=CallSyntax(
        first=_CALLS,
        opening=_CALL,
        separator=_SEP,
        closing=_CALL_END,
        last=_CALLS_END,
    ),
    layout=_DEEPSEEK_LAYOUT,
    controls=(
        *_DEEPSEEK_CONTROLS,
        *(_CALLS, _CALLS_END, _CALL, _SEP, _CALL_END),
        *(_RESULTS, _RESULTS_END, _RESULT, _RESULT_END),
    ),
    hints=(_CALLS,),
)


def _deepseek_dsml(name: str, *outers: str) -> Profile:
    """DeepSeek's markup since V3.2, whose tags begin with a control token."""
    tool = "<｜User｜><tool_result>{}</tool_result>"
    made = _invoke_tags(name, outers, replace(_DEEPSEEK_LAYOUT, tool=tool), "｜DSML｜")
    hints = ("｜DSML｜", f'{outers[0]}>" block')
    return replace(made, controls=(*_DEEPSEEK_CONTROLS, "｜DSML｜"), hints=hints)


DEEPSEEK_V32 = _deepseek_dsml("deepseek-v3.2", "function_calls", "tool_calls")
DEEPSEEK_V4 = _deepseek_dsml("deepseek-v4", "tool_calls", "function_calls")

_KIMI_CALLS, _KIMI_CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_KIMI_CALL, _KIMI_CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_KIMI_ARGUMENTS = "<|tool_call_argument_begin|>"
_KIMI_HEADER = "<|im_assistant|>assistant<|im_middle|>"
KIMI = Profile(
    name="kimi",
    states=_states(
        *_THINK,
        {_KIMI_CALLS: "calls", _KIMI_CALL: "name", "<|im_assistant|>": "header"},
        calls=State("gap", {_KIMI_CALL: "name", _KIMI_CALLS_END: "start"}),
        name=State("name", {_KIMI_ARGUMENTS: "arguments", _KIMI_CALL_END: "calls"}),
        arguments=State(
            "arguments",
            {_KIMI_CALL_END: "calls", _KIMI_CALL: "name", _KIMI_CALLS_END: "start"},
        ),
        header=State("header", {"<|im_middle|>": "start"}),
    ),
    ends=("<|im_end|>", "[EOS]", "[EOT]"),
    strays=(_KIMI_ARGUMENTS, _KIMI_CALL_END, _KIMI_CALLS_END, "<|im_middle|>", "</think>"),
    syntax=CallSyntax(
        first=_KIMI_CALLS,
        opening=f"{_KIMI_CALL}functions.",
        separator=f":#{_KIMI_ARGUMENTS}",
        closing=_KIMI_CALL_END,
        last=_KIMI_CALLS_END,
    ),
    layout=ChatLayout(
        system="<|im_system|>system<|im_middle|>{}<|im_end|>",
        user="<|im_user|>user<|im_middle|>{}<|im_end|>",
        assistant=f"{_KIMI_HEADER}{{}}<|im_end|>",
        tool="<|im_system|>tool<|im_middle|>{}<|im_end|>",
        tools=f"{_AS_TRAINED}, arguments as a JSON object.",
        thought="<think>{}</think>",
    ),
    name_form=r"(?:functions\.)?(.*?)(?::\d+)?",
    controls=(
        *("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"),
        *(_KIMI_CALLS, _KIMI_CALLS_END, _KIMI_CALL, _KIMI_CALL_END, _KIMI_ARGUMENTS),
    ),
    hints=(_KIMI_CALLS,),
)

# ---- Gemma, Command-R ------------------------------------------------------------------------

GEMMA = Profile(
    name="gemma",
    states=_states(
        "<|channel>",
        "<channel|>",
        {"<|tool_call>": "name", "<|turn>": "header"},
        start=State(
            "start",
            {"<|channel>": "channel", "<|tool_call>": "name", "<|turn>": "header"},
            then="text",
        ),
        text=State(
            "text", {"<|tool_call>": "name", "<|turn>": "header"}, {"<|channel>": "channel"}
        ),
        channel=State("header", {"\n": "thought", "<channel|>": "start"}),
        name=State("name", {"<tool_call|>": "start"}, then="literal", braces="literal"),
        literal=State(
            "literal", {'<|"|>': "string", "<tool_call|>": "start", "<|tool_call>": "name"}
        ),
        string=State("string", {'<|"|>': "literal"}),
        header=_LINE_HEADER,
    ),
    ends=("<turn|>", "<|tool_response>", "<eos>"),
    strays=("<tool_call|>", "<channel|>", '<|"|>'),
    syntax=CallSyntax(opening="<|tool_call>call:", separator="", closing="<tool_call|>"),
    layout=ChatLayout(
        begin="<bos>",
        system="<|turn>system\n{}<turn|>\n",
        user="<|turn>user\n{}<turn|>\n",
        assistant="<|turn>model\n{}<turn|>\n",
        tool="<|turn>user\n<|tool_response>{}<tool_response|><turn|>\n",
        tools=f"{_AS_TRAINED}.",
        thought="<|channel>thought\n{}\n<channel|>",
    ),
    name_form=r"(?:call:)?(.*)",
    controls=(
        *("<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", '<|"|>'),
        *("<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
    ),
    hints=("<|tool_call>call:",),
)

_TURN, _TURN_END = "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"
_ANSWERS = {"<|START_RESPONSE|>": "start", "<|START_TEXT|>": "start"}
_ANSWER_ENDS = {"<|END_RESPONSE|>": "start", "<|END_TEXT|>": "start"}
COMMAND = Profile(
    name="command",
    states=_states(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        {"<|START_ACTION|>": "call", _TURN: "header", **_ANSWERS, **_ANSWER_ENDS},
        call=State("call", {"<|END_ACTION|>": "start"}),
        header=State("header", {"<|CHATBOT_TOKEN|>": "start"}),
    ),
    ends=(_TURN_END, "<EOS_TOKEN>"),
    strays=("<|END_ACTION|>", "<|END_THINKING|>", "<|CHATBOT_TOKEN|>"),
    syntax=CallSyntax(
        first="<|START_ACTION|>[",
        opening='{"tool_name": "',
        separator='", "parameters": ',
        closing="}",
        between=", ",
        last="]<|END_ACTION|>",
    ),
    layout=ChatLayout(
        begin="<BOS_TOKEN>",
        system=f"{_TURN}<|SYSTEM_TOKEN|>{{}}{_TURN_END}",
        user=f"{_TURN}<|USER_TOKEN|>{{}}{_TURN_END}",
        assistant=f"{_TURN}<|CHATBOT_TOKEN|>{{}}{_TURN_END}",
        tool=f"{_TURN}<|SYSTEM_TOKEN|><|START_TOOL_RESULT|>{{}}<|END_TOOL_RESULT|>{_TURN_END}",
        tools=f"{_AS_TRAINED}, as a JSON list.",
        thought="<|START_THINKING|>{}<|END_THINKING|>",
    ),
    controls=(
        *("<BOS_TOKEN>", "<EOS_TOKEN>", _TURN, _TURN_END, "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>"),
        *("<|CHATBOT_TOKEN|>", "<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>"),
        *("<|END_ACTION|>", *_ANSWERS, *_ANSWER_ENDS),
        *("<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>"),
    ),
    hints=("<|START_ACTION|>",),
)

# ---- Llama -----------------------------------------------------------------------------------


def _llama(
    name: str, head: tuple[str, str], python: tuple[str, str], eot: str, eom: str
) -> Profile:
    """The markup of a generation of Llama: a header and a call are between two marks each, of which
    the one that ends a call may be missing."""
    marks = {python[0]: "call", "<function=": "name", head[0]: "header"}
    more_calls = {python[0]: "call"}
    python_end = (python[1],) if python[1] else ()

    def turn(role: str, end: str = eot) -> str:
        return f"{head[0]}{role}{head[1]}\n\n{{}}{end}"

    return Profile(
        name=name,
        states=_states(
            *_THINK,
            marks,
            text=State("text", marks),
            thought=State("thought", {"</think>": "start"}),
            bare=State("call", more_calls),
            call=State("call", {**dict.fromkeys(python_end, "start"), **more_calls}),
            name=State("name", {">": "arguments"}),
            arguments=State("arguments", {"</function>": "start"}),
            header=State("header", {head[1]: "start"}),
        ),
        ends=(eot, eom, "<|end_of_text|>"),
        strays=(head[1], *python_end, "</think>"),
        tags=frozenset({"<function="}),
        bare=True,
        code="code_interpreter",
        builtins=frozenset({"brave_search", "wolfram_alpha", "photogen"}),
        syntax=CallSyntax(
            first=python[0] if python_end else "",
            opening='{"name": "',
            separator='", "parameters": ',
            closing="}",
            between="; ",
            last=python[1],
        ),
        layout=ChatLayout(
            begin="<|begin_of_text|>",
            system=turn("system"),
            user=turn("user"),
            assistant=turn("assistant"),
            tool=turn("ipython", eom if python_end else eot),
            call_end=eom,
            tools=(
                "Environment: ipython\n\nYou may call functions. Their signatures, one a line:\n"
                '{}\n\nTo call a function, answer with nothing but {"name": NAME, '
                '"parameters": OBJECT}; several calls are joined by semicolons.'
            ),
        ),
        controls=("<|begin_of_text|>", "<|end_of_text|>", *head, eot, eom, python[0], *python_end),
        hints=(head[0],),
    )


LLAMA = _llama(
    "llama",
    ("<|start_header_id|>", "<|end_header_id|>"),
    ("<|python_tag|>", ""),
    eot="<|eot_id|>",
    eom="<|eom_id|>",
)
LLAMA4 = _llama(
    "llama4",
    ("<|header_start|>", "<|header_end|>"),
    ("<|python_start|>", "<|python_end|>"),
    eot="<|eot|>",
    eom="<|eom|>",
)

PROFILES = (
    *(SEED, MINIMAX, MINIMAX_M1, GLM, GRANITE, KIMI, GEMMA, COMMAND, DEEPSEEK_V32, DEEPSEEK_V4),
    *(QWEN_XML, HERMES, LFM2, MISTRAL, DEEPSEEK, LLAMA4, LLAMA),
)
"""In the order of recognition: of two whose hints are all found, the first is taken."""

BY_NAME = {profile.name: profile for profile in PROFILES}
