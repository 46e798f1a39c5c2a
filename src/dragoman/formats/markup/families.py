"""The profiles of the known families, as data: marks, call syntax, chat layout, hints."""

from __future__ import annotations

from .profile import CallSyntax, ChatLayout, Profile, State, TurnLayout

_THOUGHT = State("thought", {"</think>": "start"})
_OVER = State("over")

_JSON_LINE = (
    "You may call functions. Their signatures, one a line:\n{tools}\n\n"
    "To call a function, write a JSON object with its name and its arguments"
)

# ---- ChatML ----------------------------------------------------------------------------------

_CHATML = ("<|im_start|>", "<|im_end|>")
_CHATML_HEADER = State("header", {"\n": "start"})


def _chatml(tools: str) -> ChatLayout:
    return ChatLayout(
        system=TurnLayout("<|im_start|>system\n", "<|im_end|>\n"),
        user=TurnLayout("<|im_start|>user\n", "<|im_end|>\n"),
        assistant=TurnLayout("<|im_start|>assistant\n", "<|im_end|>\n"),
        tool=TurnLayout("<|im_start|>user\n<tool_response>\n", "\n</tool_response><|im_end|>\n"),
        tools=tools,
    )


_HERMES_MARKS = {"<tool_call>": "call", "<|im_start|>": "header"}
HERMES = Profile(
    name="hermes",
    states={
        "start": State("start", {"<think>": "thought", **_HERMES_MARKS}, then="text"),
        "text": State("text", _HERMES_MARKS, {"<think>": "thought"}),
        "thought": State("thought", {"</think>": "start", "<tool_call>": "call"}),
        "call": State("call", {"</tool_call>": "start", "<tool_call>": "call"}),
        "header": _CHATML_HEADER,
        "over": _OVER,
    },
    ends=("<|im_end|>", "<|endoftext|>"),
    strays=("</tool_call>", "</think>"),
    tags=frozenset({"<tool_call>", "</tool_call>"}),
    syntax=CallSyntax(
        opening='<tool_call>\n{"name": "',
        separator='", "arguments": ',
        closing="}\n</tool_call>",
        between="\n",
    ),
    layout=_chatml(
        f"{_JSON_LINE} in tags, one pair for each call:\n"
        '<tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call>'
    ),
    controls=(*_CHATML, "<|endoftext|>"),
    hints=("<tool_call>", "<|im_start|>"),
)

_XML_MARKS = {"<tool_call>": "call", "<function=": "name", "<|im_start|>": "header"}
_XML_CALL_ENDS = {"</function>": "after", "</tool_call>": "start"}
QWEN_XML = Profile(
    name="qwen-xml",
    states={
        "start": State("start", {"<think>": "thought", **_XML_MARKS}, then="text"),
        "text": State("text", _XML_MARKS, {"<think>": "thought"}),
        "thought": State(
            "thought", {"</think>": "start", "<tool_call>": "call", "<function=": "name"}
        ),
        "call": State(
            "call", {"<function=": "name", "</tool_call>": "start", "<tool_call>": "call"}
        ),
        "name": State("name", {">": "between"}),
        "between": State("gap", {"<parameter=": "key", "<function=": "name", **_XML_CALL_ENDS}),
        "key": State("key", {">": "value"}),
        "value": State(
            "value",
            {"</parameter>": "between", "\n<parameter=": "key", "</tool_call>": "start"},
        ),
        "after": State("start", {"</tool_call>": "start", **_XML_MARKS}, then="text"),
        "header": _CHATML_HEADER,
        "over": _OVER,
    },
    ends=HERMES.ends,
    strays=HERMES.strays,
    tags=HERMES.tags | {"<function="},
    syntax=CallSyntax(
        opening="<tool_call>\n<function=",
        separator=">\n",
        closing="</function>\n</tool_call>",
        between="\n",
        body="xml",
    ),
    layout=_chatml(
        "You may call functions. Their signatures, one a line:\n{tools}\n\n"
        "To call a function, write a tag for each of its arguments:\n"
        "<tool_call>\n<function=NAME>\n<parameter=ARGUMENT>\nVALUE\n</parameter>\n"
        "</function>\n</tool_call>"
    ),
    controls=HERMES.controls,
    hints=("<function=", "<parameter=", "<|im_start|>"),
)

# ---- Mistral ---------------------------------------------------------------------------------

_MISTRAL_MARKS = {"[TOOL_CALLS]": "name"}
MISTRAL = Profile(
    name="mistral",
    states={
        "start": State("start", {"[THINK]": "thought", **_MISTRAL_MARKS}, then="text"),
        "text": State("text", _MISTRAL_MARKS, {"[THINK]": "thought"}),
        "thought": State("thought", {"[/THINK]": "start", "[TOOL_CALLS]": "name"}),
        "name": State(
            "name",
            {"[ARGS]": "arguments", "[CALL_ID]": "id"},
            then="arguments",
            braces="call",
        ),
        "id": State("id", {"[ARGS]": "arguments"}),
        "arguments": State("arguments", _MISTRAL_MARKS),
        "call": State("call", _MISTRAL_MARKS),
        "over": _OVER,
    },
    ends=("</s>",),
    strays=("[ARGS]", "[CALL_ID]", "[/THINK]"),
    syntax=CallSyntax(opening="[TOOL_CALLS]", separator="[ARGS]", closing=""),
    layout=ChatLayout(
        begin="<s>",
        system=TurnLayout("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        user=TurnLayout("[INST]", "[/INST]"),
        assistant=TurnLayout("", "</s>"),
        tool=TurnLayout("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        tools="[AVAILABLE_TOOLS][{tools}][/AVAILABLE_TOOLS]",
        thought=TurnLayout("[THINK]", "[/THINK]"),
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
    states={
        "start": State("start", {"<think>": "thought", **_DEEPSEEK_MARKS}, then="text"),
        "text": State("text", _DEEPSEEK_MARKS, {"<think>": "thought"}),
        "thought": State("thought", {"</think>": "start", _CALLS: "calls", _CALL: "name"}),
        "calls": State("gap", {_CALL: "name", _CALLS_END: "start"}),
        "name": State("name", {_SEP: "typed", _CALL_END: "calls"}),
        "typed": State("typed", {_CALL_END: "calls", _CALL: "name", _CALLS_END: "start"}),
        "over": _OVER,
    },
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
        system=TurnLayout("", "\n\n"),
        user=TurnLayout("<｜User｜>", ""),
        assistant=TurnLayout("<｜Assistant｜>", _EOS),
        tool=TurnLayout(f"{_RESULTS}{_RESULT}", f"{_RESULT_END}{_RESULTS_END}"),
        tools=(
            "You may call functions. Their signatures, one a line:\n{tools}\n\n"
            "Write calls between the markers you were trained on, arguments as a JSON object."
        ),
        thought=TurnLayout("<think>", "</think>"),
    ),
    controls=(
        *("<｜begin▁of▁sentence｜>", _EOS, "<｜User｜>", "<｜Assistant｜>"),
        *(_CALLS, _CALLS_END, _CALL, _SEP, _CALL_END),
        *(_RESULTS, _RESULTS_END, _RESULT, _RESULT_END),
    ),
    hints=(_CALLS,),
)

# ---- Llama -----------------------------------------------------------------------------------

_BUILTINS = frozenset({"brave_search", "wolfram_alpha", "photogen"})
_HEAD, _HEAD_END = "<|start_header_id|>", "<|end_header_id|>"
_LLAMA_MARKS = {"<|python_tag|>": "call", "<function=": "name", _HEAD: "header"}
_LLAMA_CALL = {"<|python_tag|>": "call"}
LLAMA = Profile(
    name="llama",
    states={
        "start": State("start", {"<think>": "thought", **_LLAMA_MARKS}, then="text"),
        "text": State("text", _LLAMA_MARKS),
        "thought": _THOUGHT,
        "bare": State("call", _LLAMA_CALL),
        "call": State("call", _LLAMA_CALL),
        "name": State("name", {">": "arguments"}),
        "arguments": State("arguments", {"</function>": "start"}),
        "header": State("header", {_HEAD_END: "start"}),
        "over": _OVER,
    },
    ends=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    strays=(_HEAD_END, "</think>"),
    tags=frozenset({"<function="}),
    bare=True,
    code="code_interpreter",
    builtins=_BUILTINS,
    syntax=CallSyntax(
        opening='{"name": "', separator='", "parameters": ', closing="}", between="; "
    ),
    layout=ChatLayout(
        begin="<|begin_of_text|>",
        system=TurnLayout(f"{_HEAD}system{_HEAD_END}\n\n", "<|eot_id|>"),
        user=TurnLayout(f"{_HEAD}user{_HEAD_END}\n\n", "<|eot_id|>"),
        assistant=TurnLayout(f"{_HEAD}assistant{_HEAD_END}\n\n", "<|eot_id|>"),
        tool=TurnLayout(f"{_HEAD}ipython{_HEAD_END}\n\n", "<|eot_id|>"),
        call_end="<|eom_id|>",
        tools=(
            "Environment: ipython\n\nYou may call functions. Their signatures, one a line:\n"
            '{tools}\n\nTo call a function, answer with nothing but {"name": NAME, '
            '"parameters": OBJECT}; several calls are joined by semicolons.'
        ),
    ),
    controls=(
        *("<|begin_of_text|>", "<|end_of_text|>", _HEAD, _HEAD_END),
        *("<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
    ),
    hints=(_HEAD,),
)

_HEAD4, _HEAD4_END = "<|header_start|>", "<|header_end|>"
_PYTHON, _PYTHON_END = "<|python_start|>", "<|python_end|>"
_LLAMA4_MARKS = {_PYTHON: "call", "<function=": "name", _HEAD4: "header"}
LLAMA4 = Profile(
    name="llama4",
    states={
        **LLAMA.states,
        "start": State("start", {"<think>": "thought", **_LLAMA4_MARKS}, then="text"),
        "text": State("text", _LLAMA4_MARKS),
        "bare": State("call", {_PYTHON: "call"}),
        "call": State("call", {_PYTHON_END: "start", _PYTHON: "call"}),
        "header": State("header", {_HEAD4_END: "start"}),
    },
    ends=("<|eot|>", "<|eom|>", "<|end_of_text|>"),
    strays=(_HEAD4_END, _PYTHON_END, "</think>"),
    tags=LLAMA.tags,
    bare=True,
    code=LLAMA.code,
    builtins=_BUILTINS,
    syntax=CallSyntax(
        first=_PYTHON,
        opening='{"name": "',
        separator='", "parameters": ',
        closing="}",
        between="; ",
        last=_PYTHON_END,
    ),
    layout=ChatLayout(
        begin="<|begin_of_text|>",
        system=TurnLayout(f"{_HEAD4}system{_HEAD4_END}\n\n", "<|eot|>"),
        user=TurnLayout(f"{_HEAD4}user{_HEAD4_END}\n\n", "<|eot|>"),
        assistant=TurnLayout(f"{_HEAD4}assistant{_HEAD4_END}\n\n", "<|eot|>"),
        tool=TurnLayout(f"{_HEAD4}ipython{_HEAD4_END}\n\n", "<|eom|>"),
        call_end="<|eom|>",
        tools=LLAMA.layout.tools,
    ),
    controls=(
        *("<|begin_of_text|>", "<|end_of_text|>", _HEAD4, _HEAD4_END),
        *("<|eot|>", "<|eom|>", _PYTHON, _PYTHON_END),
    ),
    hints=(_HEAD4,),
)

PROFILES = (QWEN_XML, HERMES, MISTRAL, DEEPSEEK, LLAMA4, LLAMA)
"""In the order of recognition: of two whose hints are all found, the first is taken."""

BY_NAME = {profile.name: profile for profile in PROFILES}
