"""The official SDK reads what we say: its types, its stream helper, and the published schemas."""

import json
from typing import Any

import httpx2
import pytest
from openai import APIError, OpenAI
from openai.types.chat import ChatCompletion

from dragoman.core.error import Fault
from dragoman.core.event import Event, Failed
from dragoman.core.fold import fold
from dragoman.core.request import Request, Sampling, StreamOptions
from dragoman.wire.chat import CHAT
from dragoman.wire.protocol import STANDARD
from tests.oracle import problems, request_problems, sdk_problems
from tests.wire.chat.answering import ASKED, body, chunk, chunks, hear, sse, tell
from tests.wire.chat.test_request import FIELDS

NOTE = {
    "type": "url_citation",
    "url_citation": {"start_index": 0, "end_index": 2, "url": "http://x", "title": "X"},
}
WEIGHED = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
ROLE = chunk({"role": "assistant", "content": ""})
TEXT, MORE = chunk({"content": "Hi"}), chunk({"content": " there"})
STOP, CALLED = chunk({}, "stop"), chunk({}, "tool_calls")
COUNTED = chunk(usage=USAGE) | {"choices": []}


def call(index: int, id: str | None = None, name: str | None = None, arguments: str = "") -> Any:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    named = {"id": id, "type": "function"} if id else {}
    return chunk({"tool_calls": [{"index": index, **named, "function": function}]})


STREAMS: dict[str, list[Any]] = {
    "text": [ROLE, TEXT, MORE, STOP, COUNTED],
    "text in several parts, with annotations": [
        TEXT,
        chunk({"annotations": [NOTE]}),
        chunk({"refusal": "No"}),
        MORE,
        STOP,
    ],
    "refusal": [ROLE, chunk({"refusal": "I can"}), chunk({"refusal": "not."}), STOP],
    "reasoning": [ROLE, chunk({"reasoning_content": "Hm"}), TEXT, STOP, COUNTED],
    "log-probabilities": [
        chunk({"content": "Hi"}, choice={"logprobs": {"content": [WEIGHED], "refusal": None}}),
        chunk({"refusal": "Hi"}, choice={"logprobs": {"content": None, "refusal": [WEIGHED]}}),
        STOP,
    ],
    "one call": [call(0, "c1", "f"), call(0, arguments='{"a":'), call(0, arguments="1}"), CALLED],
    "two parallel calls, interleaved": [
        call(0, "c1", "f"),
        call(1, "c2", "g"),
        call(0, arguments='{"a":'),
        call(1, arguments='{"b":'),
        call(0, arguments="1}"),
        call(1, arguments="2}"),
        CALLED,
        COUNTED,
    ],
    "a call after text": [TEXT, call(0, "c1", "f", '{"a":1}'), CALLED],
    "cut by length": [TEXT, chunk({}, "length"), COUNTED],
    "filtered": [chunk({"role": "assistant"}), chunk({}, "content_filter")],
    "audio": [
        chunk({"audio": {"id": "a1", "transcript": "Hi"}}),
        chunk({"audio": {"data": "QUJD"}}),
        chunk({"audio": {"expires_at": 99}}),
        STOP,
    ],
    "two choices": [
        TEXT,
        chunk({"content": "Yo"}, index=1),
        chunk({}, "length", index=1),
        STOP,
        COUNTED,
    ],
    "no words": [ROLE, STOP],
}


@pytest.fixture(params=STREAMS)
def events(request: pytest.FixtureRequest) -> list[Event]:
    return hear(sse(*STREAMS[request.param]))


@pytest.fixture(params=[True, False], ids=["asking for usage", "not asking"])
def request_(request: pytest.FixtureRequest, events: list[Event]) -> Request:
    weighed = any(getattr(event, "tokens", ()) for event in events)
    return Request(
        model="m",
        items=ASKED.items,
        stream=True,
        stream_options=StreamOptions(include_usage=request.param),
        sampling=Sampling(logprobs=True if weighed else None),
    )


def client(stream: bytes) -> OpenAI:
    """The official client, in front of a server that says this."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, content=stream)

    transport = httpx2.MockTransport(answer)
    return OpenAI(
        api_key="none",
        base_url="http://test/v1",
        max_retries=0,
        http_client=httpx2.Client(transport=transport),
    )


def test_p17_every_chunk_fits_the_published_schema_and_the_sdks_strict_types(
    events: list[Event], request_: Request
) -> None:
    for said in chunks(tell(events, request_)):
        if said != "[DONE]":
            assert problems(said) == []
            assert sdk_problems(said) == []


def test_the_plain_answer_fits_them_too(events: list[Event], request_: Request) -> None:
    said = body(fold(events), request_)
    assert sdk_problems(said) == []
    assert problems(said) == []


def test_the_sdks_stream_helper_ends_on_the_plain_answer(
    events: list[Event], request_: Request
) -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    with (
        client(tell(events, request_)) as sdk,
        sdk.chat.completions.stream(model="m", messages=messages) as stream,
    ):
        for _ in stream:
            pass
        final = stream.current_completion_snapshot.model_dump(exclude_none=True)
    plain = body(fold(events), request_)
    if not (request_.stream_options and request_.stream_options.include_usage):
        plain.pop("usage", None)
    assert _alike(final) == _alike(ChatCompletion(**plain).model_dump(exclude_none=True))


def _alike(completion: Any) -> Any:
    """A completion without what the SDK's helper adds and what only a whole answer has."""
    for choice in completion["choices"]:
        message = choice["message"]
        if not message.get("annotations"):
            message.pop("annotations", None)
        message.pop("parsed", None)
        for called in message.get("tool_calls") or ():
            called.pop("index", None)
            called["function"].pop("parsed_arguments", None)
        weighed = choice.get("logprobs") or {}
        choice["logprobs"] = {kind: tokens for kind, tokens in weighed.items() if tokens}
    return completion


def test_a_failure_in_the_stream_is_the_sdks_error_with_our_words() -> None:
    events = [*hear(sse(TEXT, done=False))[:-1], Failed(Fault("upstream_cut", "It was cut."))]
    messages: Any = [{"role": "user", "content": "hello"}]
    with client(tell(events)) as sdk:
        stream = sdk.chat.completions.create(model="m", messages=messages, stream=True)
        with pytest.raises(APIError, match="It was cut") as caught:
            for _ in stream:
                pass
    assert caught.value.code == "upstream_cut"


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in ("unknown", "min_p")])
def test_a_request_said_fits_the_published_schema(name: str) -> None:
    wire = {"model": "m", "messages": [{"role": "user", "content": "x"}], **FIELDS[name][0]}
    said = json.loads(
        CHAT.encode_request(CHAT.decode_request(json.dumps(wire).encode()), STANDARD)[0]
    )
    assert request_problems(said, "chat") == request_problems(wire, "chat")


def test_the_helper_gathers_a_custom_call_for_which_it_has_no_type() -> None:
    def piece(**custom: str) -> Any:
        return chunk({"tool_calls": [{"index": 0, "id": "c1", "type": "custom", "custom": custom}]})

    events = hear(sse(piece(name="g", input="x = "), piece(input="1"), CALLED))
    messages: Any = [{"role": "user", "content": "hello"}]
    with (
        client(tell(events)) as sdk,
        sdk.chat.completions.stream(model="m", messages=messages) as stream,
    ):
        for _ in stream:
            pass
        (called,) = stream.current_completion_snapshot.choices[0].message.model_dump()["tool_calls"]
    assert (called["id"], called["type"]) == ("c1", "custom")
    assert called["custom"] == {"name": "g", "input": "x = 1"}
