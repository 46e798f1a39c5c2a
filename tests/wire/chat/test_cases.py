"""The corpora: streams as servers send them, whole, byte by byte and cut; requests both ways."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from dragoman.core.event import Event, Failed, Finished, Progress
from dragoman.core.fold import fold
from dragoman.core.request import Request, Sampling, StreamOptions
from dragoman.core.response import Response
from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD, Dialect
from tests.samples import samples
from tests.wire.chat.answering import ASKED, body, chunks, gathered, hear, read, tell

CASES = Path(__file__).with_name("cases")
STREAMS = json.loads((CASES / "streams.json").read_text())
REQUESTS = json.loads((CASES / "requests.json").read_text())
ALL = Request(
    model="m",
    items=ASKED.items,
    stream=True,
    stream_options=StreamOptions(include_usage=True),
    sampling=Sampling(logprobs=True),
)


def stream(case: dict[str, Any]) -> bytes:
    events = (e if isinstance(e, str) else f"data: {json.dumps(e)}" for e in case["events"])
    return "".join(f"{event}\n\n" for event in events).encode()


def play(case: dict[str, Any], *pieces: bytes) -> list[Event]:
    return hear(*pieces, think=case.get("think", "inline"))


def known(response: Response) -> Response:
    """The answer without what the upstream said of itself, which is never said again."""
    extra = {wire: fields for wire, fields in (response.extra or {}).items() if wire != "upstream"}
    return replace(response, extra=extra or None)


def described(events: list[Event]) -> dict[str, Any]:
    """The answer as the corpus writes it down."""
    response = to_builtins(known(fold(events)))
    names = ("status", "output", "choices", "reasons", "usage", "error", "extra")
    told = {name: response[name] for name in names if name in response}
    told.setdefault("output", [])
    beside = [event.data["chat"] for event in events if isinstance(event, Progress)]
    return json.loads(json.dumps(told | ({"beside": beside} if beside else {})))


@pytest.fixture(params=STREAMS, ids=lambda case: case["name"])
def case(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_stream_is_heard_as_expected(case: dict[str, Any]) -> None:
    assert described(play(case, stream(case))) == case["expect"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_byte_by_byte_and_with_any_line_end_the_events_are_the_same(
    case: dict[str, Any], end: bytes
) -> None:
    data = stream(case)
    ends = data.replace(b"\n", end)
    assert play(case, *(ends[n : n + 1] for n in range(len(ends)))) == play(case, data)


def test_r1_w11_p24_a_stream_cut_at_any_byte_is_cut_or_complete_and_what_came_is_kept(
    case: dict[str, Any],
) -> None:
    data = stream(case)
    whole = play(case, data)
    for place in range(0, len(data), samples(5, 1)):
        events = play(case, data[:place])
        last = events[-1]
        if isinstance(last, Failed):
            seen = data[:place].strip()
            allowed = {"upstream_cut"} if seen else {"upstream_error"}
            if isinstance(whole[-1], Failed):
                allowed.add(whole[-1].fault.code)
            assert last.fault.code in allowed, place
        else:
            assert b"finish_reason" in data[:place]
        assert begins(messages(events), messages(whole)), place


def messages(events: list[Event]) -> list[Any]:
    """The messages that were said, as far as they go."""
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


def test_what_was_heard_and_said_again_is_heard_the_same(case: dict[str, Any]) -> None:
    events = play(case, stream(case))
    again = hear(tell(events, ALL), think=case.get("think", "inline"))
    assert known(fold(again)).output == fold(events).output
    assert known(fold(again)).reasons == fold(events).reasons
    assert fold(again).usage == _summed(fold(events).usage)
    assert isinstance(again[-1], type(events[-1]))


def test_law_3_the_plain_answer_is_what_a_reader_of_the_stream_gathers(
    case: dict[str, Any],
) -> None:
    events = play(case, stream(case))
    if isinstance(events[-1], Failed):
        assert "error" in chunks(tell(events))[-1]
        return
    plain = [event for event in events if not isinstance(event, Progress)]
    streamed, said = gathered(tell(plain, ALL)), body(fold(events), ALL)
    for choice in streamed["choices"]:
        choice["message"].setdefault("annotations", [])
    assert streamed == said | {"object": "chat.completion.chunk"}


def test_a_plain_answer_is_heard_like_the_stream(case: dict[str, Any]) -> None:
    events = play(case, stream(case))
    if isinstance(events[-1], Finished):
        said = body(fold(events), ALL)
        again = read(json.dumps(said).encode())
        assert body(again, ALL) == said


def _summed(usage: Any) -> Any:
    if usage is None or None in (usage.input_tokens, usage.output_tokens):
        return usage
    total = usage.total_tokens
    return replace(
        usage,
        total_tokens=usage.input_tokens + usage.output_tokens if total is None else total,
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
def test_law_1_a_request_read_said_and_read_is_the_same_and_nothing_is_lost_in_silence(
    wire: dict[str, Any], dialect: Dialect
) -> None:
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
