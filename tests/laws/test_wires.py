"""Laws 2, 5, 7, 8 and 9 for every pair of wires: a new wire joins by its line in the registry.

What is drawn is the common core: what every wire of conversations can say. What each wire has
beyond that is in the tests of its own folder, and in the cases of its loss table.
"""

from itertools import pairwise, permutations
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.event import Event
from dragoman.core.fold import fold, unfold
from dragoman.core.item import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    Text,
    Thought,
)
from dragoman.core.lifecycle import check
from dragoman.core.request import FunctionTool, NamedTool, Request, Sampling, StreamOptions
from dragoman.core.response import Response, Usage
from dragoman.core.turn import Turn
from dragoman.engines.remote import Remote
from dragoman.engines.script import Script
from dragoman.server.app import App
from dragoman.server.settings import Settings
from dragoman.wire.protocol import STANDARD, Dialect
from dragoman.wire.registry import WIRES as REGISTERED
from tests.answers import answer
from tests.engines.stage import heard
from tests.samples import samples
from tests.server.stubs import served
from tests.strategies import text, word

WIRES = [wire.name for wire in REGISTERED.values() if wire.conversation]
"""The wires of conversations. Completions has a bare prompt, and answers of text alone."""
some_examples = settings(max_examples=samples(12, 300))
each = pytest.mark.parametrize("wire", WIRES)
pairs = pytest.mark.parametrize(("wire", "other"), list(permutations(WIRES, 2)))
answering = pytest.mark.parametrize(
    ("wire", "other"), list(permutations((*WIRES, "completions"), 2))
)
EXACT = Dialect(ask_usage=False)
ASKED = Request(model="m", stream=True, stream_options=StreamOptions(include_usage=True))

# ---- the common core -------------------------------------------------------------------------

said = text.filter(bool)
arguments = st.sampled_from(["{}", '{"a": 1}', '{ "b" : "é😀" }', '{"a":{"c":[1.0]}}'])
functions = st.builds(
    FunctionTool,
    word,
    st.none() | said,
    st.just({"type": "object", "properties": {"city": {"type": "string"}}}),
)


@st.composite
def turns(draw: st.DrawFn) -> tuple[Item, ...]:
    """What the user says, what the model calls, what comes of it, and what the model says."""
    called = draw(st.lists(st.tuples(word, arguments, text), max_size=2))
    number = draw(st.integers(0, 1 << 40))
    calls = [FunctionCall(f"c{number}_{n}", *call[:2]) for n, call in enumerate(called)]
    given = zip(calls, called, strict=True)
    results = [FunctionCallOutput(call.call_id, output) for call, (*_, output) in given]
    asked, told = Message("user", draw(said)), Message("assistant", draw(said))
    return (asked, *calls, *results, told)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    system = draw(st.none() | st.builds(Message, st.just("system"), said))
    history = draw(st.lists(turns(), min_size=1, max_size=3))
    tools = tuple(draw(st.lists(functions, max_size=2, unique_by=lambda tool: tool.name)))
    choices: list[Any] = [None, "auto", "required", "none", *(NamedTool(t.name) for t in tools)]
    before = (system,) if system else ()
    return Request(
        model=draw(said),
        items=(*before, *(item for turn in history for item in turn), Message("user", draw(said))),
        tools=tools,
        tool_choice=draw(st.sampled_from(choices)) if tools else None,
        sampling=Sampling(
            temperature=draw(st.none() | st.floats(0, 1)), top_p=draw(st.none() | st.floats(0, 1))
        ),
        max_output_tokens=draw(st.integers(1, 99)),
        stream=draw(st.booleans()),
    )


@st.composite
def responses(draw: st.DrawFn, *wires: str) -> Response:
    """An answer that these wires can give."""
    output: list[Item] = []
    alone = "completions" in wires
    if not alone and draw(st.booleans()):
        output.append(Reasoning((Thought(draw(said)),), id="rs_x_0", status="completed"))
    if alone or draw(st.booleans()):
        words = (Text(draw(said)),)
        output.append(Message("assistant", words, id=f"msg_x_{len(output)}", status="completed"))
    for _ in range(0 if alone else draw(st.integers(0 if output else 1, 2))):
        at = len(output)
        call = FunctionCall(f"call_{at}", draw(word), draw(arguments), id=f"fc_x_{at}")
        output.append(replace(call, status="completed"))
    called = isinstance(output[-1], FunctionCall)
    reason = "tool_calls" if called else draw(st.sampled_from(["stop", "length"]))
    cached = draw(st.integers(0, 99))
    usage = Usage(cached + draw(st.integers(0, 99)), draw(st.integers(0, 99)), cached_tokens=cached)
    return answer(
        *output,
        reasons=(reason,),
        status="incomplete" if reason == "length" else "completed",
        usage=replace(usage, total_tokens=usage.input_tokens + usage.output_tokens),
    )


# ---- requests --------------------------------------------------------------------------------


def encoded(name: str, request: Request, dialect: Dialect = EXACT) -> bytes:
    """The body of a request, which loses nothing."""
    body, losses = REGISTERED[name].encode_request(request, dialect)
    assert losses == ()
    return body


def unsaid(request: Request) -> Request:
    """The request without what Responses says of itself: there, silence means the opposite."""
    tools = tuple(replace(tool, strict=tool.strict or None) for tool in request.tools)
    return replace(request, store=request.store or None, tools=tools)


@pairs
@some_examples
@given(request=requests())
def test_law_5_request_is_the_same_after_another_wire(wire, other, request) -> None:
    body = encoded(wire, request)
    there = encoded(other, REGISTERED[wire].decode_request(body))
    assert encoded(wire, unsaid(REGISTERED[other].decode_request(there))) == body


@pairs
@some_examples
@given(request=requests())
def test_law_7_a_growing_conversation_has_the_same_bytes_before_it(wire, other, request) -> None:
    """Asked by clients of one wire, sent over another, which marks what is to be cached."""
    dialect = replace(EXACT, cache_control=True)
    items, before = request.items, None
    for place, item in enumerate(items):
        if isinstance(item, Message) and item.role == "user":
            body = encoded(wire, replace(request, items=items[: place + 1]))
            sent = encoded(other, REGISTERED[wire].decode_request(body), dialect)
            fields = msgspec.json.decode(sent, type=dict[str, msgspec.Raw])
            name = "input" if "input" in fields else "messages"
            said = bytes(fields.pop(name))
            assert b"cache_control" not in said
            if before is not None:
                assert (said.startswith(before[0][:-1]), fields) == (True, before[1])
            before = said, fields


# ---- answers ---------------------------------------------------------------------------------


def streamed(wire: str, events: list[Event]) -> bytes:
    return REGISTERED[wire].encoder(ASKED, STANDARD).feed(events)


def decoded(wire: str, *pieces: bytes) -> list[Event]:
    decoder = REGISTERED[wire].decoder(Turn("r", 5, "m", think=None))
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.close()
    check(events)
    return events


def outcome(response: Response) -> Any:
    """What an answer says, by the names that all wires have for it."""
    calls = [(call.call_id, call.name, call.arguments) for call in response.calls]
    kinds = [type(item) for item in response.output]
    usage = response.usage
    counts = usage and (usage.input_tokens, usage.output_tokens, usage.cached_tokens or 0)
    words = response.text, response.reasoning
    return words, kinds, calls, response.status, response.reasons, counts


@answering
@some_examples
@given(data=st.data(), whole=st.booleans())
def test_law_5_answer_is_the_same_after_another_wire(wire, other, data, whole) -> None:
    response = data.draw(responses(wire, other))
    expected = outcome(response)
    for name in (wire, other, wire):
        if whole:
            body = REGISTERED[name].encode_response(response, ASKED, STANDARD)
        else:
            body = streamed(name, list(unfold(response)))
        response = fold(decoded(name, body))
        assert outcome(response) == expected


@answering
@some_examples
@given(data=st.data())
def test_law_2_answer_split_at_any_bytes_is_the_same_on_another_wire(wire, other, data) -> None:
    response = data.draw(responses(wire, other))
    stream = streamed(wire, list(unfold(response)))
    cuts = data.draw(st.sets(st.integers(0, len(stream)), max_size=10))
    pieces = [stream[a:b] for a, b in pairwise([0, *sorted(cuts), len(stream)])]
    assert streamed(other, decoded(wire, *pieces)) == streamed(other, decoded(wire, stream))


@each
@some_examples
@given(response=responses(), data=st.data())
def test_law_9_events_in_any_batches_are_the_same_bytes(wire, response, data) -> None:
    events = list(unfold(response))
    cuts = data.draw(st.sets(st.integers(0, len(events)), max_size=5))
    encoder = REGISTERED[wire].encoder(ASKED, STANDARD)
    edges = [0, *sorted(cuts), len(events)]
    assert b"".join(encoder.feed(events[a:b]) for a, b in pairwise(edges)) == streamed(wire, events)


# ---- the whole way ---------------------------------------------------------------------------

RICH = answer(
    Reasoning((Thought("hm hm"),), id="a", status="completed"),
    Message("assistant", (Text("Good day to you"),), id="b", status="completed"),
    FunctionCall("call_a", "get_weather", '{"city": "Rome"}', id="c", status="completed"),
    reasons=("tool_calls",),
    usage=Usage(9, 4, cached_tokens=2, total_tokens=13),
)
WEATHER = FunctionTool("get_weather", None, {"type": "object", "properties": {}})


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@each
async def test_law_8_engine_behind_a_server_is_the_engine(wire, stream) -> None:
    asked = Request(
        model="script", items=(Message("user", "Go."),), tools=(WEATHER,), stream=stream
    )
    engine = Script(RICH)
    direct = outcome(fold(await heard(engine, asked)))
    async with served(App(engine, Settings()), Settings()) as port:
        remote = Remote(f"http://127.0.0.1:{port}/v1", wire=wire)
        behind = outcome(fold(await heard(remote, asked)))
        await remote.close()
    assert behind == direct
