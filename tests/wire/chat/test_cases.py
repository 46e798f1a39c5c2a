"""The corpora: streams as servers send them, in any pieces and cut; requests both ways."""

import json
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from dragoman.core.event import Event, Failed, Progress
from dragoman.core.fold import fold
from dragoman.core.request import Request, Sampling, StreamOptions
from dragoman.core.response import Response
from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD, Dialect
from tests.cases import cases
from tests.samples import samples
from tests.wire.chat.answering import ASKED, body, chunks, gathered, hear, read, tell

STREAMS = cases(__file__, "streams")
ANSWERS = cases(__file__, "answers")
"""More answers, whole and streamed, each with the behaviours it shows and how it is encoded."""
REQUESTS = cases(__file__, "requests")
ALL = Request(
    model="m",
    items=ASKED.items,
    stream=True,
    stream_options=StreamOptions(include_usage=True),
    sampling=Sampling(logprobs=True),
)


def stream(events: list[Any]) -> bytes:
    """The events of a case as a server sends them; a string stands as the line it is."""
    lines = (each if isinstance(each, str) else f"data: {json.dumps(each)}" for each in events)
    return "".join(f"{line}\n\n" for line in lines).encode("utf-8", "surrogatepass")


def without_upstream(response: Response) -> Response:
    """The answer without the upstream's own id and time, which are never encoded again."""
    extra = {wire: fields for wire, fields in (response.extra or {}).items() if wire != "upstream"}
    return replace(response, extra=extra or None)


def described(events: list[Event]) -> dict[str, Any]:
    """The answer as the corpus writes it down."""
    response = to_builtins(without_upstream(fold(events)))
    names = ("status", "output", "choices", "reasons", "usage", "error", "extra", "stop_sequence")
    found = {"output": []} | {name: response[name] for name in names if name in response}
    beside = [event.data["chat"] for event in events if isinstance(event, Progress)]
    return json.loads(json.dumps(found | ({"beside": beside} if beside else {})))


def data_of(case: Any) -> bytes:
    """The bytes of a case: events, one JSON body, or whatever else a server sends."""
    if "events" in case:
        return stream(case["events"])
    return json.dumps(case["body"]).encode() if "body" in case else str(case["raw"]).encode()


@pytest.mark.parametrize("case", STREAMS + ANSWERS, ids=lambda case: case["name"])
def test_answer_is_decoded_as_expected_in_any_pieces_and_encoded_the_same_again(case) -> None:
    data, think = data_of(case), case.get("think", "inline")
    events = hear(data, think=think)
    assert described(events) == case["expect"]
    if "encoded" in case:
        assert body(fold(events), ALL)["choices"] == case["encoded"]
    assert hear(*(data[n : n + 1] for n in range(len(data))), think=think) == events
    assert CHAT.encoder(ALL, STANDARD).feed(events) == tell(events, ALL)  # in one batch
    response = fold(events)
    if isinstance(events[-1], Failed):
        assert "error" in chunks(tell(events))[-1]
        return
    whole = body(response, ALL)
    assert body(read(json.dumps(whole).encode()), ALL) == whole
    if "events" in case and case.get("again", True):  # an item is closed by the first reason
        again = without_upstream(fold(hear(tell(events, ALL), think=think)))
        assert (again.output, again.reasons) == (response.output, response.reasons)
        assert again.usage == _summed(response.usage)
        # Law 3: what a reader of the stream gathers is the whole answer.
        plain = [event for event in events if not isinstance(event, Progress)]
        streamed = gathered(tell(plain, ALL))
        for choice in streamed["choices"]:
            choice["message"].setdefault("annotations", [])
        assert streamed == whole | {"object": "chat.completion.chunk"}


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["name"])
def test_r1_w11_p24_stream_cut_at_any_byte_fails_or_completes_and_keeps_what_came(case) -> None:
    data, think = stream(case["events"]), case.get("think", "inline")
    whole = hear(data, think=think)
    for place in range(0, len(data), samples(23, 1)):
        events = hear(data[:place], think=think)
        last = events[-1]
        if isinstance(last, Failed):
            allowed = {"upstream_cut"} if data[:place].strip() else {"upstream_error"}
            if isinstance(whole[-1], Failed):
                allowed.add(whole[-1].fault.code)
            assert last.fault.code in allowed, place
        else:
            assert b"finish_reason" in data[:place]
        assert begins(messages(events), messages(whole)), place


def messages(events: list[Event]) -> list[Any]:
    """The messages of the answer, as far as they go."""
    stream = tell(event for event in events if not isinstance(event, Failed))
    return [choice["message"] for choice in gathered(stream)["choices"]]


def begins(part: Any, whole: Any) -> bool:
    """Whether a cut value is the beginning of the whole one."""
    match part, whole:
        case (str(), str()):
            return whole.startswith(part)
        case (list(), list()):
            return len(part) <= len(whole) and all(map(begins, part, whole))
        case (dict(), dict()):
            return all(begins(value, whole.get(name)) for name, value in part.items())
        case _:
            return part is None or bool(part == whole)


def _summed(usage: Any) -> Any:
    """The usage with the total that a reader of the encoded answer is given."""
    if usage is None or None in (usage.input_tokens, usage.output_tokens):
        return usage
    total = usage.total_tokens
    return replace(
        usage, total_tokens=usage.input_tokens + usage.output_tokens if total is None else total
    )


# ---- requests ----------------------------------------------------------------------------


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every value that is no container and no null, with the path of names to it."""
    match value:
        case dict():
            return [leaf for k, v in value.items() for leaf in leaves(v, f"{path}.{k}")]
        case list():
            return [leaf for v in value for leaf in leaves(v, path)]
        case None:
            return []
        case _:
            return [(path, value)]


@pytest.mark.parametrize("wire", REQUESTS)
@pytest.mark.parametrize("dialect", [STANDARD, Dialect(ask_usage=False)])
def test_law_1_request_survives_decode_and_encode_and_every_loss_is_reported(wire, dialect) -> None:
    request = CHAT.decode_request(json.dumps(wire).encode())
    said, losses = CHAT.encode_request(request, dialect)
    again = CHAT.decode_request(said)
    told = {loss.field for loss in losses}
    if "tool_choice" in told:
        request = replace(request, tool_choice=None, parallel_tool_calls=None)
    if dialect.ask_usage and wire.get("stream"):
        assert request.stream_options == again.stream_options
    assert again == request
    assert CHAT.encode_request(again, dialect)[0] == said
    found = [value for _, value in leaves(json.loads(said))]
    for path, value in leaves(wire):
        if path.split(".")[1] not in told:
            assert value in found, path
