"""Canonical requests and answers of Messages, for Hypothesis: what it can say, said one way."""

from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.item import (
    Annotation,
    File,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    Message,
    Reasoning,
    Text,
    Thought,
    Unknown,
    UnknownPart,
)
from dragoman.core.request import (
    FunctionTool,
    JSONSchema,
    NamedTool,
    ReasoningOptions,
    Request,
    Sampling,
    Tool,
    UnknownTool,
)
from dragoman.core.response import Response, Usage
from dragoman.wire.messages.blocks import NEW_TURN
from tests.strategies import base64, json, text, word

some = text.filter(bool)
names = word.map("x_{}".format)
said = st.integers(1, 9) | some | st.lists(some, min_size=1, max_size=2)
fields = st.dictionaries(names, said, min_size=1, max_size=2)
extra = st.none() | st.fixed_dictionaries({"messages": fields})
objects = st.dictionaries(names, json, max_size=3)
maybe = st.none().__or__


# ---- parts and items ---------------------------------------------------------------------

citations = st.builds(
    lambda kind, title, more: Annotation(
        kind, title=title, extra={"messages": {"type": kind, "title": title, **more}}
    ),
    st.sampled_from(["char_location", "page_location"]),
    some,
    fields,
)
texts = st.builds(Text, some, st.lists(citations, max_size=1).map(tuple), extra=extra)
urls = st.just("https://example.com/x")
images = st.one_of(
    st.builds(Image, st.builds("data:image/png;base64,{}".format, base64) | urls, extra=extra),
    st.builds(Image, file_id=some, extra=extra),
)
files = st.one_of(
    st.builds(
        File,
        data=st.builds("data:application/pdf;base64,{}".format, base64),
        filename=maybe(some),
        extra=extra,
    ),
    st.builds(
        File, data=st.just("data:text/plain;charset=utf-8;base64,SGnDqQ=="), filename=maybe(some)
    ),
    st.builds(File, url=urls, extra=extra),
    st.builds(File, some, filename=maybe(some), extra=extra),
)
unknown = st.builds(lambda f: UnknownPart("messages", {"type": "search_result", **f}), objects)
spoken = texts | images | files | unknown
contents = some | st.lists(spoken, min_size=1, max_size=3).map(tuple)
thoughts = st.one_of(
    st.builds(
        lambda words, signature, more: Reasoning(
            (Thought(words),), extra={"messages": {"signature": signature, **more}}
        ),
        some,
        some,
        st.just({}) | fields,
    ),
    st.builds(lambda data: Reasoning(extra={"messages": {"data": data}}), some),
)
arguments = st.sampled_from(["{}", '{"a": 1}', '{ "b" : "é😀" }', '{"a":{"c":[1.0]}}'])
calls = st.builds(FunctionCall, word, word, arguments, extra=extra)
replies = st.builds(
    Message, st.just("assistant"), st.lists(texts, min_size=1, max_size=2).map(tuple)
)
hosted = st.builds(lambda f: Unknown("messages", "server_tool_use", f), objects)
outputs = st.just("") | some | st.lists(spoken, min_size=1, max_size=2).map(tuple)


@st.composite
def turns(draw: st.DrawFn) -> list[Item]:
    """A turn of the assistant with the results of its calls, and what the user says with them."""
    if draw(st.booleans()):
        return [Message("assistant", draw(some))]
    items: list[Item] = []
    called = draw(st.lists(calls, max_size=3, unique_by=lambda call: call.call_id))
    for item in (*draw(st.lists(thoughts | hosted, max_size=2)), draw(maybe(replies)), *called):
        if item is not None:
            items.append(item)
    if not items:
        items = [Message("assistant", (Text("x"),))]
    items += [FunctionCallOutput(c.call_id, draw(outputs), extra=draw(extra)) for c in called]
    if called and draw(st.booleans()):
        items.append(Message("user", draw(st.lists(spoken, min_size=1, max_size=2).map(tuple))))
    return items


@st.composite
def histories(draw: st.DrawFn) -> tuple[Item, ...]:
    """A whole conversation; two turns of the assistant in a row know that they are two."""
    system = some | st.lists(texts, min_size=1, max_size=2).map(tuple)
    asked = st.builds(Message, st.just("user"), contents)
    later = st.builds(Message, st.just("system"), system)
    items: list[Item] = [draw(asked)]
    for turn in draw(st.lists((asked | later).map(lambda m: [m]) | turns(), max_size=5)):
        first = turn[0]
        if _assistants(items[-1]) and _assistants(first):
            first = replace(first, extra=(first.extra or {}) | NEW_TURN)
        items += [first, *turn[1:]]
    before = draw(maybe(st.builds(Message, st.just("system"), system)))
    return tuple(items if before is None else [before, *items])


def _assistants(item: Item) -> bool:
    mine = isinstance(item, Reasoning | FunctionCall | Unknown)
    return mine or (isinstance(item, Message) and item.role == "assistant")


# ---- requests ----------------------------------------------------------------------------

functions = st.builds(
    FunctionTool,
    word,
    maybe(text),
    st.builds(lambda f: {"type": "object", **f}, objects),
    maybe(st.booleans()),
    extra,
)
servers = st.builds(UnknownTool, st.just("messages"), st.just("web_search_20260318"), fields)
samplings = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 1),
        "top_p": st.floats(0, 1),
        "top_k": st.integers(0, 99),
        "stop": st.lists(text, min_size=1, max_size=4).map(tuple),
    },
).map(lambda values: Sampling(**values))
_budget = {"type": "enabled", "budget_tokens": 4096}
reasonings = st.sampled_from(
    [
        ReasoningOptions("high", extra={"messages": {"thinking": {"type": "adaptive"}}}),
        ReasoningOptions("none", extra={"messages": {"thinking": {"type": "disabled"}}}),
        ReasoningOptions(
            "none", extra={"messages": {"thinking": {"type": "disabled"}, "effort": "high"}}
        ),
        ReasoningOptions("medium", extra={"messages": {"thinking": _budget}}),
        ReasoningOptions("max", extra={"messages": {"thinking": _budget}}),
        ReasoningOptions("low", extra={"messages": {"thinking": None}}),
        ReasoningOptions(extra={"messages": {"thinking": {"type": "adaptive"}}}),
    ]
)
optional = st.fixed_dictionaries(
    {},
    optional={
        "sampling": samplings,
        "format": st.builds(
            JSONSchema, st.just("answer"), objects, strict=st.just(True), extra=extra
        ),
        "reasoning": reasonings,
        "user": text,
        "service_tier": st.sampled_from(["auto", "default"]),
        "extra": extra,
    },
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Any canonical request."""
    several = st.lists(
        functions | servers, max_size=3, unique_by=lambda t: getattr(t, "name", id(t))
    )
    tools: tuple[Tool, ...] = tuple(draw(several))
    choices: list[Any] = [None, "auto", "required", "none"]
    choices += [NamedTool(tool.name) for tool in tools if isinstance(tool, FunctionTool)]
    choice = draw(st.sampled_from(choices)) if tools else None
    parallel = draw(maybe(st.booleans())) if choice not in (None, "none") else None
    *before, last = draw(histories())
    if isinstance(last, Message) and last.role == "assistant":
        last = replace(last, status="in_progress")
    return Request(
        model=draw(some),
        items=(*before, last),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        max_output_tokens=draw(st.integers(1, 99)),
        stream=draw(st.booleans()),
        **draw(optional),
    )


# ---- answers -----------------------------------------------------------------------------

count = st.integers(0, 1 << 40)
usages = st.builds(
    lambda fresh, read, written, answered, thought, more: Usage(
        fresh + (read or 0) + (written or 0),
        answered,
        cached_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=thought,
        extra=more,
    ),
    *(count, maybe(count), maybe(count), count, maybe(count), extra),
)
STOPS: list[tuple[str, dict[str, Any]]] = [
    ("stop", {}),
    ("length", {}),
    ("content_filter", {}),
    ("stop", {"stop_sequence": "\n"}),
    ("stop", {"stop_reason": "pause_turn"}),
    ("length", {"stop_reason": "model_context_window_exceeded"}),
    ("content_filter", {"stop_details": {"type": "refusal", "category": "bio"}}),
]
_PREFIXES = {Message: "msg", Reasoning: "rs", FunctionCall: "fc"}


@st.composite
def responses(draw: st.DrawFn) -> Response:
    """Any canonical answer. Texts in a row are one message."""
    id, output = draw(word), []
    for item in draw(st.lists(thoughts | replies | hosted | calls, min_size=1, max_size=4)):
        if not (isinstance(item, Message) and output and isinstance(output[-1], Message)):
            output.append(item)
    known: set[str] = set()
    done: list[Item] = []
    for number, item in enumerate(output):
        if isinstance(item, Unknown):
            done.append(item)
            continue
        item = replace(item, id=f"{_PREFIXES[type(item)]}_{id}_{number}", status="completed")
        if isinstance(item, FunctionCall):
            item = replace(item, call_id=f"toolu_{number}")
            known.add(item.call_id)
        done.append(item)
    reason, own = ("tool_calls", {}) if known else draw(st.sampled_from(STOPS))
    own = own | draw(st.just({}) | fields)
    status = "incomplete" if reason in ("length", "content_filter") else "completed"
    if not isinstance(done[-1], Unknown):
        done[-1] = replace(done[-1], status=status)
    return Response(
        id=id,
        created_at=0,
        model=draw(some),
        status=status,
        output=tuple(done),
        reasons=(reason,),
        usage=draw(usages),
        stop_sequence=own.pop("stop_sequence", None),
        extra={"messages": dict(own)} if own else None,
    )
