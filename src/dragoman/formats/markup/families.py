"""The markup of the known families as data: marks, call syntax, chat layout, hints; and the tables
that a parser scans by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct, field

from dragoman.formats.prompt import Marks

Kind = Literal[
    "start",  # nothing yet: blanks, then text, or a call without a mark
    "text",
    "thought",
    "call",  # one or more whole calls, as JSON or as Python
    "name",  # of a call
    "id",  # of a call
    "typed",  # a name and then arguments, in a fence or not
    "arguments",  # JSON
    "gap",  # between things; blanks only
    "key",  # the name of one argument
    "value",  # one argument, as bare text
    "header",  # the role of the next turn: discarded
    "over",  # after the end: discarded
]


class State(Struct, frozen=True):
    """How the text between two marks is read, and the state each mark leads to.

    `ids` are marks that count only as tokens, not when spelled. `then` is the next state of a
    segment that ends by itself; `braces` is the next state of a name that is empty: JSON follows.
    """

    kind: Kind
    marks: dict[str, str] = {}
    ids: dict[str, str] = {}
    then: str = "start"
    braces: str | None = None


class CallSyntax(Struct, frozen=True, kw_only=True):
    """How calls are written: the text before the name, between name and arguments, after them.

    `first` and `last` enclose all calls of a message, `between` separates two. With `body` "xml"
    each argument is a tag, else they are JSON, kept byte for byte.
    """

    opening: str
    separator: str
    closing: str
    first: str = ""
    last: str = ""
    between: str = ""
    body: Literal["json", "xml"] = "json"


class ChatLayout(Struct, frozen=True, kw_only=True):
    """The layout of a conversation for a model that brings no template: the text around that of
    each role, which `{}` stands for.

    `call_end` ends an assistant turn with calls (None: as any other). `tools` introduces the tools,
    one JSON object per line.
    """

    begin: str = ""
    system: str
    user: str
    assistant: str
    tool: str
    call_end: str | None = None
    tools: str
    thought: str = "<think>\n{}\n</think>\n\n"


class Profile(Struct, frozen=True, kw_only=True):
    """One family's markup. Parsing begins in the state `start`.

    - `ends` are the control tokens that end the answer, in every state.
    - `strays` do not belong in text and are removed with a warning.
    - `tags` are marks made of ordinary characters: they are text where the request has no tools.
    - `bare` says that a message may be a call without any mark.
    - `code` is the tool that is called where code stands in place of a call; `builtins` take one
      `query` and are called as `name.call(query="…")` (Llama 3.1).
    - `id_length` is the length of call ids (Mistral: nine characters).
    - `hints` are texts that only templates and vocabularies of this family contain.
    """

    name: str
    states: dict[str, State]
    ends: tuple[str, ...]
    syntax: CallSyntax
    layout: ChatLayout
    strays: tuple[str, ...] = ()
    tags: frozenset[str] = frozenset()
    bare: bool = False
    code: str | None = None
    builtins: frozenset[str] = frozenset()
    id_length: int | None = None
    controls: tuple[str, ...] = ()
    hints: tuple[str, ...] = field(default_factory=tuple)


_TEXT_KINDS = ("start", "text", "thought")


class MarkTable(Marks):
    """The marks of one state; `leads` has the next state of each, None for a stray."""

    def __init__(
        self, name: str, state: State, leads: dict[str, str | None], spelled: Iterable[str]
    ) -> None:
        self.name = name
        self.state = state
        self.kind = state.kind
        self.leads = leads
        super().__init__(spelled)


def all_marks(profile: Profile) -> frozenset[str]:
    """Every mark of a profile."""
    found = {*profile.ends, *profile.strays}
    for state in profile.states.values():
        found |= {*state.marks, *state.ids}
    return frozenset(found)


def mark_tables(
    profile: Profile, calls: bool, controls: Iterable[str] = ()
) -> dict[str, MarkTable]:
    """The tables of all states, with calls or, where the request has no tools, without."""
    as_tokens = frozenset(controls)
    without_calls = (*_TEXT_KINDS, "header", "over")
    tables: dict[str, MarkTable] = {}
    for name, state in profile.states.items():
        leads: dict[str, str | None] = {**state.ids, **state.marks}
        spelled = {*state.marks, *profile.ends}
        if state.kind in _TEXT_KINDS:
            spelled.update(profile.strays)
            leads = {**dict.fromkeys(profile.strays), **leads}
            if not calls:
                leads = {
                    mark: to if to and profile.states[to].kind in without_calls else None
                    for mark, to in leads.items()
                    if mark not in profile.tags
                }
        leads |= dict.fromkeys(profile.ends, "over")
        tables[name] = MarkTable(name, state, leads, (spelled & leads.keys()) - as_tokens)
    return tables


# ---- the families ----------------------------------------------------------------------------


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


_JSON_LINE = (
    "You may call functions. Their signatures, one a line:\n{}\n\n"
    "To call a function, write a JSON object with its name and its arguments"
)

_THINK = ("<think>", "</think>")

# ---- ChatML ----------------------------------------------------------------------------------

_CHATML = ("<|im_start|>", "<|im_end|>")
_CHATML_HEADER = State("header", {"\n": "start"})


def _chatml(tools: str) -> ChatLayout:
    return ChatLayout(
        system="<|im_start|>system\n{}<|im_end|>\n",
        user="<|im_start|>user\n{}<|im_end|>\n",
        assistant="<|im_start|>assistant\n{}<|im_end|>\n",
        tool="<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n",
        tools=tools,
    )


_HERMES_MARKS = {"<tool_call>": "call", "<|im_start|>": "header"}
HERMES = Profile(
    name="hermes",
    states=_states(
        *_THINK,
        _HERMES_MARKS,
        call=State("call", {"</tool_call>": "start", "<tool_call>": "call"}),
        header=_CHATML_HEADER,
    ),
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
    states=_states(
        *_THINK,
        _XML_MARKS,
        call=State("call", {"<function=": "name", "</tool_call>": "start", "<tool_call>": "call"}),
        name=State("name", {">": "between"}),
        between=State("gap", {"<parameter=": "key", "<function=": "name", **_XML_CALL_ENDS}),
        key=State("key", {">": "value"}),
        value=State(
            "value",
            {"</parameter>": "between", "\n<parameter=": "key", "</tool_call>": "start"},
        ),
        after=State("start", {"</tool_call>": "start", **_XML_MARKS}, then="text"),
        header=_CHATML_HEADER,
    ),
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
        "You may call functions. Their signatures, one a line:\n{}\n\n"
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

PROFILES = (QWEN_XML, HERMES, MISTRAL, DEEPSEEK, LLAMA4, LLAMA)
"""In the order of recognition: of two whose hints are all found, the first is taken."""

BY_NAME = {profile.name: profile for profile in PROFILES}
