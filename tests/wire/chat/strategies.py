"""Canonical requests and answers of Chat, for Hypothesis: what this wire can say, said one way.

A turn of the assistant is reasoning, then a message, then calls, each at most once but the calls;
fields we do not know have names that no protocol has.
"""

from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.item import (
    Annotation,
    Audio,
    CustomToolCall,
    CustomToolCallOutput,
    File,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    Message,
    Reasoning,
    Refusal,
    Text,
    Thought,
    Token,
    UnknownPart,
)
from dragoman.core.request import (
    AllowedTools,
    AudioOutput,
    CustomTool,
    FunctionTool,
    JSONObject,
    JSONSchema,
    NamedTool,
    Namespace,
    ReasoningOptions,
    Request,
    Sampling,
    StreamOptions,
    TextFormat,
    Tool,
    UnknownTool,
)
from dragoman.core.response import Response, Usage
from dragoman.wire.chat.messages import NEW_TURN
from tests.strategies import base64, count, json, text, word

some = text.filter(bool)
names = word.map("x_{}".format)
said = st.integers(1, 9) | some | st.lists(some, min_size=1, max_size=2)
fields = st.dictionaries(names, said, min_size=1, max_size=2)
extra = st.none() | st.fixed_dictionaries({"chat": fields})
objects = st.dictionaries(names, json, max_size=3)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


# ---- parts and items ---------------------------------------------------------------------

texts = st.builds(Text, text, extra=extra)
spoken = st.one_of(
    texts,
    st.builds(Image, some, detail=maybe(word), extra=extra),
    st.builds(Audio, base64, maybe(word), extra=extra),
    st.builds(File, some, maybe(some), filename=maybe(some), extra=extra),
    st.builds(lambda f: UnknownPart("chat", {"type": "video_url", **f}), objects),
)
contents = text | st.lists(spoken, max_size=3).map(tuple)
asked = st.builds(
    Message,
    st.sampled_from(["system", "developer", "user"]),
    contents,
    name=maybe(some),
    extra=extra,
)
ends = st.sampled_from(
    [(), (Refusal("No."),), (Audio(id="a1"),), (Refusal("No."), Audio(id="a1", extra=None))]
)
answers = text | st.builds(
    lambda parts, end: (*parts, *end), st.lists(texts, min_size=1, max_size=2), ends
)
thoughts = st.builds(
    Reasoning,
    st.builds(lambda words: (Thought(words),), text),
    extra=st.none()
    | st.builds(
        lambda d: {"chat": {"reasoning_details": [d]}}, st.dictionaries(names, said, min_size=1)
    ),
)
replies = st.builds(Message, st.just("assistant"), answers, name=maybe(some), extra=extra)
function_calls = st.builds(FunctionCall, word, word, text, maybe(word), extra=extra)
custom_calls = st.builds(CustomToolCall, word, word, text, maybe(word), extra=extra)
outputs = text | st.lists(texts, min_size=1, max_size=2).map(tuple)


@st.composite
def turns(draw: st.DrawFn) -> list[Item]:
    """A turn of the assistant with the results of its calls."""
    thought, reply = draw(maybe(thoughts)), draw(maybe(replies))
    calls = draw(st.lists(function_calls | custom_calls, max_size=3, unique_by=lambda c: c.call_id))
    if reply is None and not calls:
        reply = Message("assistant", "")
    items: list[Item] = [item for item in (thought, reply, *calls) if item is not None]
    for call in calls:
        made = CustomToolCallOutput if isinstance(call, CustomToolCall) else FunctionCallOutput
        items.append(made(call.call_id, draw(outputs), extra=draw(extra)))
    return items


@st.composite
def histories(draw: st.DrawFn) -> tuple[Item, ...]:
    """A whole conversation; two turns of the assistant in a row know that they are two."""
    items: list[Item] = []
    for turn in draw(
        st.lists(asked.map(lambda message: [message]) | turns(), min_size=1, max_size=5)
    ):
        first = turn[0]
        if items and _assistants(items[-1]) and _assistants(first):
            first = replace(first, extra=(first.extra or {}) | NEW_TURN)
        items += [first, *turn[1:]]
    return tuple(items)


def _assistants(item: Item) -> bool:
    mine = isinstance(item, Reasoning | FunctionCall | CustomToolCall)
    return mine or (isinstance(item, Message) and item.role == "assistant")


# ---- requests ----------------------------------------------------------------------------

functions = st.builds(FunctionTool, word, maybe(text), maybe(objects), maybe(st.booleans()), extra)
grammars = st.builds(CustomTool, word, maybe(text), st.just("lark"), some, extra)
customs = st.builds(CustomTool, word, maybe(text), extra=extra) | grammars
hosted = st.builds(UnknownTool, st.just("chat"), st.just("x_hosted"), fields)
single = functions | customs | hosted
namespaces = st.builds(Namespace, word, st.lists(single, max_size=2).map(tuple), maybe(text), extra)
samplings = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0, 1),
        "top_k": st.integers(-1, 99),
        "min_p": st.floats(0, 1),
        "frequency_penalty": st.floats(-2, 2),
        "presence_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0, 2),
        "seed": count,
        "stop": st.lists(some, min_size=1, max_size=4).map(tuple),
        "logit_bias": st.dictionaries(word, st.floats(-100, 100), max_size=2),
        "top_logprobs": st.integers(0, 20),
        "n": st.integers(1, 128),
    },
).map(lambda values: Sampling(**values, logprobs=True))
formats = st.one_of(
    st.just(TextFormat()),
    st.just(JSONObject()),
    st.builds(JSONSchema, word, maybe(objects), maybe(text), maybe(st.booleans()), extra),
)


optional = st.fixed_dictionaries(
    {},
    optional={
        "sampling": samplings,
        "max_output_tokens": st.integers(1, 99),
        "format": formats,
        "verbosity": word,
        "reasoning": st.builds(ReasoningOptions, word, extra=extra),
        "modalities": st.lists(word, max_size=2).map(tuple),
        "audio": st.builds(AudioOutput, maybe(objects | word), maybe(word), extra),
        "prediction": objects,
        "store": st.booleans(),
        "metadata": objects,
        "user": text,
        "safety_identifier": text,
        "prompt_cache_key": text,
        "prompt_cache_retention": text,
        "prompt_cache_options": objects,
        "service_tier": word,
        "moderation": objects | word,
        "web_search": objects,
        "extra": extra,
    },
)
options = st.builds(StreamOptions, st.booleans(), maybe(st.booleans()), extra)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Any canonical request."""
    tools = tuple(draw(st.lists(single | namespaces, max_size=3)))
    stream = draw(st.booleans())
    return Request(
        model=draw(some),
        items=draw(histories()),
        tools=tools,
        tool_choice=draw(maybe(_choices(tools))) if tools else None,
        parallel_tool_calls=draw(maybe(st.booleans())) if tools else None,
        stream=stream,
        stream_options=draw(maybe(options)) if stream else None,
        **draw(optional),
    )


def _choices(tools: tuple[Tool, ...]) -> st.SearchStrategy[Any]:
    offered: list[Any] = []
    for tool in tools:
        match tool:
            case FunctionTool():
                offered.append(NamedTool(tool.name))
            case CustomTool():
                offered.append(NamedTool(tool.name, "custom"))
            case Namespace(name=space):
                inner = (t for t in tool.tools if isinstance(t, FunctionTool))
                offered += [NamedTool(t.name, namespace=space) for t in inner]
            case UnknownTool():
                offered.append(UnknownTool("chat", tool.kind, {}))
    modes = st.sampled_from(["none", "auto", "required"])
    if not offered:
        return modes
    several = st.lists(st.sampled_from(offered), min_size=1, max_size=2).map(tuple)
    allowed = st.builds(AllowedTools, st.sampled_from(["auto", "required"]), several)
    return modes | st.sampled_from(offered) | allowed


# ---- answers -----------------------------------------------------------------------------

token = st.builds(Token, text, st.none() | st.floats(-20, 0), maybe(st.binary(max_size=4)))
tokens = st.lists(
    st.builds(
        replace,
        token,
        top=st.lists(token, max_size=2).map(tuple),
        id=maybe(count),
        extra=extra,
    ),
    max_size=3,
).map(tuple)
notes = st.builds(
    Annotation, st.just("url_citation"), maybe(count), maybe(count), url=maybe(text), extra=extra
)
arguments = st.sampled_from(["{}", '{"a": 1}', '{ "b" : "é😀" }', "oops", "[1]", '{"a'])
usages = st.builds(
    lambda counts, more: Usage(*counts, extra=more),
    st.lists(maybe(count), min_size=13, max_size=13),
    extra,
).filter(lambda usage: usage != Usage() and _summed(usage))


def _summed(usage: Usage) -> bool:
    return usage.total_tokens is not None or None in (usage.input_tokens, usage.output_tokens)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """A message as the assembler would have it, without an id."""
    refusal = draw(maybe(st.builds(Refusal, some, tokens)))
    audio = draw(maybe(st.builds(Audio, maybe(base64), st.none(), maybe(some), some, maybe(count))))
    words = maybe(st.builds(Text, some, st.lists(notes, max_size=2).map(tuple), tokens))
    said = draw(words)
    parts = tuple(part for part in (said, refusal, audio) if part is not None)
    return Message("assistant", parts or (Text("x"),))


_EMPTY = Message("assistant", (Text(""),))


@st.composite
def choices(draw: st.DrawFn, number: int, empty: str) -> tuple[list[Item], str]:
    """The items of one alternative, and the reason for which it ended.

    `empty` is what one says that says nothing: an empty text, where there is no other.
    """
    thought = draw(maybe(thoughts))
    if thought is not None and thought.text == "":
        thought = replace(thought, content=(Thought("x"),))
    reply = draw(maybe(messages()))
    ids = st.integers(0, 99).map(lambda n: f"call_{number}_{n}")
    calls = st.builds(FunctionCall, ids, word, arguments, maybe(word), extra=extra) | st.builds(
        CustomToolCall, ids, word, text, maybe(word), extra=extra
    )
    called = draw(st.lists(calls, max_size=3, unique_by=lambda call: call.call_id))
    if thought is None and reply is None and not called:
        reply = _EMPTY if empty == "" else Message("assistant", (Text(empty),))
    items = [item for item in (thought, reply, *called) if item is not None]
    # An answer that was filtered before its first word has no items.
    short = st.sampled_from(["length", "content_filter"] if items != [_EMPTY] else ["length"])
    long = st.sampled_from(["stop", "tool_calls"])
    reason = draw(long if called else long | short)
    done = [replace(item, status="completed") for item in items]
    if reason not in ("stop", "tool_calls"):
        done[-1] = replace(done[-1], status="incomplete")
    return done, reason


_PREFIXES = {Message: "msg", Reasoning: "rs", FunctionCall: "fc", CustomToolCall: "ctc"}


@st.composite
def responses(draw: st.DrawFn) -> Response:
    """Any canonical answer."""
    id, output, owners, reasons = draw(word), [], [], []
    total = draw(st.integers(1, 3))
    for number in range(total):
        items, reason = draw(choices(number, "" if total == 1 else "x"))
        reasons.append(reason)
        for item in items:
            output.append(replace(item, id=f"{_PREFIXES[type(item)]}_{id}_{len(output)}"))
            owners.append(number)
    short = any(reason in ("length", "content_filter") for reason in reasons)
    said = draw(maybe(fields))
    late = [
        {"index": number, **draw(fields)} for number in range(len(reasons)) if draw(st.booleans())
    ]
    beside = (said or {}) | ({"choices": late} if late else {})
    return Response(
        id=id,
        created_at=draw(count),
        model=draw(some),
        status="incomplete" if short else "completed",
        output=tuple(output),
        choices=tuple(owners) if any(owners) else (),
        reasons=tuple(reasons),
        usage=draw(maybe(usages)),
        extra={"chat": beside} if beside else None,
    )
