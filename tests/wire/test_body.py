"""The one door for JSON: numbers that are none, and answers without an end."""

import json
import sys
from typing import Annotated, Literal

import pytest
from msgspec import Meta, Raw, Struct

from dragoman.core.error import FaultError
from dragoman.core.event import Delta, Failed, Finished, ItemAdded, PartAdded, Started
from dragoman.core.fold import unfold
from dragoman.core.item import (
    Audio,
    CustomToolCall,
    FunctionCall,
    FunctionCallOutput,
    Message,
    Reasoning,
    Refusal,
    Summary,
    Text,
    Thought,
    Token,
)
from dragoman.core.request import Request, Sampling
from dragoman.core.response import Response
from dragoman.core.turn import Turn
from dragoman.wire import json as body
from dragoman.wire import pieces
from dragoman.wire.cache import Cache
from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD, Wire
from dragoman.wire.registry import WIRES
from dragoman.wire.responses import RESPONSES, encode, items
from tests.cases import cases

TALKING = [wire for wire in WIRES.values() if wire.conversation]
each = pytest.mark.parametrize("wire", TALKING, ids=lambda wire: wire.name)


@pytest.mark.parametrize(
    ("value", "number"),
    [(7, 7), (2.0, 2), (0, 0), (True, None), ("7", None), (None, None), (float("inf"), None)],
)
def test_a_count_is_a_number_that_can_be_counted_with(value, number) -> None:
    assert body.whole(value) == number


def test_many_brackets_are_no_depth() -> None:
    wide = "[" + "[]," * body.MAX_DEPTH + "[]]"
    assert body.load(wide) == [[] for _ in range(body.MAX_DEPTH + 1)]
    deep = "[" * (body.MAX_DEPTH + 1) + "]" * (body.MAX_DEPTH + 1)
    with pytest.raises(ValueError, match=f"more than {body.MAX_DEPTH} levels deep"):
        body.load(deep)


_DEEP = 100_000
_NESTS = {
    "arrays": ("[", "]"),
    "objects": ('{"a":', "}"),
    "spaced": ('[ 1,\n{ "]" : ', "}]"),
    "beside closing brackets in strings": ('["]]]]}}}}", ', "]"),
}


@pytest.mark.parametrize("inner", ["1", "[]", "{}"])
@pytest.mark.parametrize("nest", _NESTS.values(), ids=_NESTS)
def test_nesting_at_the_limit_loads_and_one_level_more_is_an_error(nest, inner) -> None:
    start, end = nest
    levels = 2 if nest is _NESTS["spaced"] else 1
    most = (body.MAX_DEPTH - (inner != "1")) // levels
    for depth in (most, most + 1):
        said = start * depth + inner + end * depth
        if depth == most:
            assert body.dump(body.load(said)) == body.dump(json.loads(said))
        else:
            with pytest.raises(ValueError, match=f"more than {body.MAX_DEPTH} levels deep"):
                body.load(said)


@pytest.mark.parametrize("half", [False, True], ids=["whole characters", "half a character"])
@pytest.mark.parametrize("depth", [900, sys.getrecursionlimit(), 9_000, _DEEP])
def test_hostile_nesting_is_an_error_that_names_it(depth, half) -> None:
    said = '["\\ud83d", ' if half else '["", '
    for start, end in _NESTS.values():
        for body_ in (said + start * depth + "1" + end * depth + "]", said + start * depth):
            with pytest.raises(ValueError, match=r"more than 256 levels deep|is not valid JSON"):
                body.load(body_)


def test_a_truncated_shallow_body_is_not_called_deep() -> None:
    with pytest.raises(ValueError, match="is not valid JSON"):
        body.load("[" * 3)


@each
@pytest.mark.parametrize(
    "field", ["model", "messages", "input", "tools", "metadata", "response_format", "vendor"]
)
def test_a_request_nested_without_end_in_any_field_is_refused(wire, field) -> None:
    asked = json.dumps({"model": "m", wire_input(wire): "Hi"})[:-1]
    for start, end in _NESTS.values():
        said = f'{asked}, "{field}": {start * _DEEP}1{end * _DEEP}}}'
        with pytest.raises(FaultError, match="The body is nested more than 256 levels deep"):
            wire.decode_request(said.encode())


@pytest.mark.parametrize("field", ["choices", "usage", "vendor"])
def test_an_answer_nested_without_end_is_a_fault_of_the_upstream(field) -> None:
    nest = "[" * _DEEP + "]" * _DEEP
    said = json.dumps({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]})
    decoder = CHAT.decoder(Turn("1", 0, "m"))
    events = [*decoder.feed(f'{said[:-1]}, "{field}": {nest}}}'.encode()), *decoder.close()]
    assert isinstance(events[-1], Failed)


def wire_input(wire: Wire) -> str:
    """The field that holds the conversation."""
    return "input" if wire is RESPONSES else "messages"


def test_lone_surrogate_beside_raw_json_is_replaced() -> None:
    assert (
        body.dump({"a": "\ud83d", "b": Raw(b'[1, "\\ude00"]')})
        == '{"a":"\ufffd","b":[1,"\ufffd"]}'.encode()
    )


@pytest.mark.parametrize("texts", [["a"], ["a", "b\n", "é"], ["a", "half \ud83d", "b"]])
def test_many_values_are_encoded_each_on_a_line(texts) -> None:
    assert body.dump_all(texts) == b"\n".join(map(body.dump, texts))


def dumped(value, more) -> bytes:
    return pieces.in_pieces(value, more, body.value_of) if more else body.dump(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "abc",
        "abcdefghij",
        '"\\\n' * 5,
        "w\u00f6rd\N{GRINNING FACE}" * 3,
        "abc\ud83d\ude00defghi\ud83d\ude00",  # the halves of one, cut and not cut
        "abc\ud83ddefg\ud83d",
    ],
)
@pytest.mark.parametrize("more", [b"", b'"z":0'])
@pytest.mark.parametrize("beside", ["x", "\ud83d"])
def test_long_texts_are_encoded_in_pieces(text, more, beside, monkeypatch) -> None:
    whole = {"a": text, "b": [text, Raw(b"[1]")], "c": beside}
    expected = body.load(dumped(whole, more))
    monkeypatch.setattr(pieces, "LONG", 4)
    long = {"a": pieces.long(text), "b": [pieces.Long(text), Raw(b"[1]")], "c": beside}
    assert body.load(dumped(long, more)) == expected


@pytest.mark.parametrize("members", [[], [1], [*range(5)], ["a", "half \ud83d", {"b": ["c"] * 5}]])
@pytest.mark.parametrize("more", [b"", b'"z":0'])
def test_long_lists_are_encoded_in_pieces(members, more, monkeypatch) -> None:
    expected = dumped({"a": members, "b": "x"}, more)
    monkeypatch.setattr(pieces, "MANY", 2)
    assert dumped({"a": pieces.long(members), "b": "x"}, more) == expected
    assert dumped({"a": pieces.Long(members), "b": pieces.Long("x")}, more) == expected


@pytest.mark.parametrize("wire", [CHAT, RESPONSES], ids=lambda wire: wire.name)
def test_log_probabilities_of_an_answer_are_encoded_as_any_other(wire, monkeypatch) -> None:
    tokens = tuple(Token(str(n), -n, b"x", top=(Token("y", -1.0),)) for n in range(5))
    parts = Text("01234", tokens=tokens), Refusal("01234", tokens=tokens)
    message = Message("assistant", parts, id="msg_1", status="completed")
    about = {"id": "1", "created_at": 1, "model": "m", "status": "completed"}
    answer = Response(**about, output=(message,), reasons=("stop",))
    request = Request(model="m", sampling=Sampling(logprobs=True, top_logprobs=1))
    plain = wire.encode_response(answer, request, STANDARD)
    monkeypatch.setattr(pieces, "MANY", 2)
    assert wire.encode_response(answer, request, STANDARD) == plain
    assert plain.count(b'"logprob":-4') >= 1


LARGE = [
    [],
    {},
    "word " * 20,
    [*range(100)],
    [{"a": [n] * 3} for n in range(50)],
    {"a": [["b" * 90, "c"], {"d": [[*range(90)], 1]}], "e": {"f": "g" * 90}, "h": None},
    [[[[[[[[[["deep" * 30]]]]]]]]]],
    ["\N{GRINNING FACE}" * 30, -1.5, True, None],
]


@pytest.mark.parametrize("value", LARGE, ids=lambda value: str(value)[:20])
@pytest.mark.parametrize("space", [b"", b" \n", b" " * 40])
def test_large_values_are_loaded_in_parts(value, space, monkeypatch) -> None:
    monkeypatch.setattr(pieces, "LARGE", 64)
    monkeypatch.setattr(pieces, "MANY", 3)
    for data in (body.dump(value), json.dumps(value, indent=1).encode()):
        assert body.load(space + data + space, pieces.decode_in_pieces) == value


def test_large_values_that_are_broken_are_errors(monkeypatch) -> None:
    monkeypatch.setattr(body, "LARGE", 64)
    monkeypatch.setattr(pieces, "LARGE", 64)
    long = b'["%b", ' % (b"x" * 100)
    assert body.load(long + b'"\\ud83d"]', pieces.decode_in_pieces) == ["x" * 100, "\ufffd"]
    for end in (b"", b"}", b'"\xff"]', b"01]"):
        with pytest.raises(ValueError, match="is not valid JSON"):
            body.load(long + end, pieces.decode_in_pieces)
    for deep in (300, 100_000):
        with pytest.raises(ValueError, match="levels deep"):
            body.load(b"[" * deep + b"]" * deep, pieces.decode_in_pieces)


@pytest.mark.parametrize("wire_text", ["a" * 30, "\N{GRINNING FACE}" * 9])
def test_an_answer_of_long_texts_is_encoded_as_any_other(wire_text, monkeypatch) -> None:
    text = wire_text
    message = Message("assistant", (Text(text), Refusal(text)), id="msg_1", status="completed")
    thought = Reasoning((Thought(text),), (Summary(text),), id="rs_1", status="completed")
    calls = FunctionCall("c", "f", text, id="fc_1"), CustomToolCall("d", "g", text, id="ctc_1")
    outputs = FunctionCallOutput("c", text), Message("user", text)
    output = (message, thought, *calls)
    answer = Response(id="1", created_at=1, model="m", status="completed", output=output)
    request = Request(model="m", items=(*output, *outputs))

    def encoded() -> list[bytes]:
        events = list(unfold(answer))
        again = RESPONSES.encoder(request, STANDARD)
        deltas = [Delta(0, 0, "text", text)] * 2
        opening = Started("1", 1, "m"), ItemAdded(0, Message("assistant", ())), *events[2:3]
        return [
            RESPONSES.encode_response(answer, request, STANDARD),
            RESPONSES.encode_request(request, STANDARD)[0],
            RESPONSES.encoder(request, STANDARD).feed(events),
            b"".join([again.feed([event]) for event in (*opening, *deltas)]),
        ]

    plain = encoded()
    for module in (pieces, items, encode):
        monkeypatch.setattr(module, "LONG", 5)
    assert encoded() == plain


def test_a_whole_number_may_be_written_as_a_float() -> None:
    assert body.Fields({"n": 3.0}).integer("n") == 3
    with pytest.raises(FaultError, match="n: is a number, and must be an integer"):
        body.Fields({"n": 3.5}).integer("n")


def test_a_number_beyond_all_numbers_ends_no_answer() -> None:
    """`1e999` is JSON, and infinity is no count and no time."""
    decoder = RESPONSES.decoder(Turn("1", 0, "m"))
    said = b'"output": [], "completed_at": 1e999, "usage": {"input_tokens": 1e999}'
    event = b'{"type": "response.completed", "response": {%b}}' % said
    *_, end = decoder.feed(b"data: " + event + b"\n\n")
    assert end == Finished("completed")
    decoder = CHAT.decoder(Turn("1", 0, "m"))
    piece = b'{"choices": [{"delta": {"audio": {"id": "a", "expires_at": 1e999}}}]}'
    *_, end = decoder.feed(b"data: " + piece + b"\n\n")
    assert isinstance(end, PartAdded)
    assert end.part == Audio(id="a")


@each
def test_answer_without_an_end_is_not_buffered(wire) -> None:
    decoder = wire.decoder(Turn("1", 0, "m"))
    piece = b" " * (body.MAX_ANSWER // 4)
    events = decoder.feed(b"{")
    for _ in range(4):
        events += decoder.feed(piece)
    assert decoder.ended
    assert events[-1].fault.code == "upstream_error"
    assert decoder.feed(piece) == decoder.close() == []


@pytest.mark.parametrize(("data", "message"), cases(__file__, "fields"))
def test_a_struct_that_does_not_fit_is_an_error_that_names_the_field(data, message) -> None:
    with pytest.raises(FaultError) as caught:
        body.Reader(Sample).read(data.encode(), "p")
    assert caught.value.fault.message == message


class Sample(Struct):
    name: Annotated[str, Meta(min_length=1)]
    n: Annotated[int, Meta(ge=1, le=9)] | Annotated[float, Meta(ge=1, le=9)] | None = None
    each: list[str] | None = None
    kind: Literal["a", "b"] | None = None


def test_objects_in_an_array_keep_their_unknown_fields_apart() -> None:
    reader = body.Reader(Sample)
    both = b'[{"name": "a"}, {"name": "b", "vendor": [1], "other": null}]'
    values, unknown = reader.read_all(both, "p")
    assert [value.name for value in values] == ["a", "b"]
    assert unknown == {1: {"vendor": [1]}}
    for data, param in ((b"{}", "p"), (b'[{"name": "a"}, 7]', "p[1]"), (b"null", "p")):
        with pytest.raises(FaultError) as caught:
            reader.read_all(data, "p")
        assert caught.value.fault.param == param


def test_a_cache_forgets_what_was_used_least_recently() -> None:
    cache = Cache[int](limit=10)
    for number, key in enumerate("abc"):
        cache.put(key, number, 3)
    assert cache.get("a") == 0
    cache.put("d", 3, 3)
    assert [cache.get(key) for key in "abcd"] == [0, None, 2, 3]
    cache.put("e", 4, 11)  # larger than the limit: nothing is left
    assert [cache.get(key) for key in "abcde"] == [None] * 5


def test_a_cache_keeps_the_first_value_of_a_key() -> None:
    """Two threads may make one at the same time, and its bytes count once."""
    cache = Cache[int](limit=10)
    cache.put("a", 1, 6)
    cache.put("a", 2, 6)
    assert cache.get("a") == 1


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("2", "is a string, and must be a number"),
        (True, "is a boolean, and must be a number"),
        (-0.5, "is -0.5, and must be at least 0"),
        (3, "is 3, and must be between 0 and 2"),
    ],
)
def test_number_of_another_kind_or_out_of_bounds_is_an_error_that_names_it(value, problem) -> None:
    high = None if value == -0.5 else 2
    with pytest.raises(FaultError, match=f"p.n: {problem}"):
        body.Fields({"n": value}, "p").number("n", 0, high)
