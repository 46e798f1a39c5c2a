"""Answers fit the official SDK: its types, its stream helper, and the published schemas."""

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
from tests.wire.chat.answering import ASKED, STOP, TEXT, body, chunk, chunks, hear, sse, tell
from tests.wire.chat.test_cases import STREAMS, stream
from tests.wire.chat.test_request import TRANSLATIONS

NAMES = (
    *("text with usage, fingerprint and tier", "annotations", "audio", "an answer of no words"),
    *("reasoning under both names", "log-probabilities", "log-probabilities of a refusal"),
    *("one call", "two calls in one delta", "content, then a call, then content"),
    *("cut by length in a call", "two choices interleaved"),
)
CASES = {case["name"]: case for case in STREAMS if case["name"] in NAMES}
FILTERED = [chunk({"role": "assistant"}), chunk({}, "content_filter")]


@pytest.fixture(params=[*NAMES, "filtered"])
def events(request) -> list[Event]:
    if request.param == "filtered":
        return hear(sse(*FILTERED))
    return hear(stream(CASES[request.param]["events"]))


@pytest.fixture(params=[True, False], ids=["asking for usage", "not asking"])
def request_(request, events: list[Event]) -> Request:
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


def test_p17_chunks_and_whole_answer_fit_the_published_schema_and_the_sdk_types(
    events: list[Event], request_: Request
) -> None:
    for encoded in [*chunks(tell(events, request_)), body(fold(events), request_)]:
        if encoded != "[DONE]":
            assert problems(encoded) == sdk_problems(encoded) == []


def test_sdk_stream_helper_ends_on_the_whole_answer(events: list[Event], request_: Request) -> None:
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


def test_sdk_stream_helper_joins_citations_that_come_one_by_one() -> None:
    cited = [{"type": "url_citation", "url_citation": {"url": f"http://{n}"}} for n in range(3)]
    events = hear(sse(chunk({"content": "Hi"}), chunk({"annotations": cited}), STOP))
    messages: Any = [{"role": "user", "content": "hello"}]
    with (
        client(tell(events)) as sdk,
        sdk.chat.completions.stream(model="m", messages=messages) as stream,
    ):
        final = stream.get_final_completion().choices[0].message
    assert [note.url_citation.url for note in final.annotations or ()] == [
        each["url_citation"]["url"] for each in cited
    ]


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0), (2,)])
def test_sdk_stream_helper_keeps_choices_apart_that_begin_in_another_order(order) -> None:
    texts = [chunk({"content": f"I am {number}."}, index=number) for number in order]
    ends = [chunk({}, "stop", index=number) for number in order]
    request = Request(model="m", items=ASKED.items, stream=True, sampling=Sampling(n=3))
    messages: Any = [{"role": "user", "content": "hello"}]
    with (
        client(tell(hear(sse(*texts, *ends)), request)) as sdk,
        sdk.chat.completions.stream(model="m", messages=messages, n=3) as stream,
    ):
        for _ in stream:
            pass
        choices = stream.current_completion_snapshot.choices
    said = {choice.index: choice.message.content for choice in choices if choice.message.content}
    assert said == {number: f"I am {number}." for number in order}


def _alike(completion: Any) -> Any:
    """A completion without what the SDK's helper adds and what only a whole answer has."""
    for choice in completion["choices"]:
        message = choice["message"]
        if not message.get("annotations"):
            message.pop("annotations", None)
        for note in message.get("annotations", ()):
            note.pop("index", None)
        message.pop("parsed", None)
        for called in message.get("tool_calls") or ():
            called.pop("index", None)
            called["function"].pop("parsed_arguments", None)
        weighed = choice.get("logprobs") or {}
        choice["logprobs"] = {kind: tokens for kind, tokens in weighed.items() if tokens}
    return completion


def test_failure_in_the_stream_is_an_sdk_error_with_its_message() -> None:
    events = [*hear(sse(TEXT, done=False))[:-1], Failed(Fault("upstream_cut", "It was cut."))]
    messages: Any = [{"role": "user", "content": "hello"}]
    with client(tell(events)) as sdk:
        stream = sdk.chat.completions.create(model="m", messages=messages, stream=True)
        with pytest.raises(APIError, match="It was cut") as caught:
            for _ in stream:
                pass
    assert caught.value.code == "upstream_cut"


@pytest.mark.parametrize(
    "body", [c["body"] for c in TRANSLATIONS if c["name"].startswith("field ")]
)
def test_encoded_request_fits_the_published_schema(body) -> None:
    request = CHAT.decode_request(json.dumps(body).encode())
    encoded = json.loads(CHAT.encode_request(request, STANDARD)[0])
    assert request_problems(encoded, "chat") == request_problems(body, "chat")


def test_sdk_stream_helper_gathers_a_custom_call() -> None:
    def piece(**custom: str) -> Any:
        return chunk({"tool_calls": [{"index": 0, "id": "c1", "type": "custom", "custom": custom}]})

    events = hear(sse(piece(name="g", input="x = "), piece(input="1"), chunk({}, "tool_calls")))
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
