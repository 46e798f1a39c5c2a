"""The real upstream does what the other tests rely on, asked by the standard library alone.

What is found here is llama.cpp's behaviour, its faults included; Dragoman has no part in it.
"""

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.upstream.llamacpp import MODEL_FILE, MODEL_FOLDER, SLOTS, SONG, Llamacpp, run_llamacpp
from tests.upstream.model.transcripts import (
    GET_WEATHER,
    HELLO,
    IDENTITY,
    SYSTEMS,
    Message,
    Transcript,
    counting,
    transcripts,
)
from tests.upstream.record import CASES, RECORDED, body_of, chat, responses

PARIS = '{"city": "Paris"}'
ROME = '{"city": "Rome"}'


def ask(server: Llamacpp, case: tuple[str, bytes]) -> Any:
    """Ask for a whole answer that must succeed."""
    answer = server.request(*case)
    assert answer.status == 200, answer.body
    return answer.json()


def stream(server: Llamacpp, case: tuple[str, bytes]) -> list[Any]:
    """Ask for a stream that must succeed and return its data."""
    answer = server.request(*case)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "text/event-stream"
    return answer.events()


def deltas(chunks: Iterable[Any], key: str) -> list[Any]:
    """Collect what the chunks of a chat stream say under one key of their delta."""
    found = [choice["delta"].get(key) for chunk in chunks for choice in chunk["choices"]]
    return [value for value in found if value is not None]


def calls(message: Message) -> list[tuple[str, str]]:
    functions = [call["function"] for call in message.get("tool_calls", [])]
    return [(function["name"], function["arguments"]) for function in functions]


def test_the_model_is_the_committed_one() -> None:
    digest = hashlib.sha256((MODEL_FOLDER / MODEL_FILE).read_bytes()).hexdigest()
    assert f"{digest}  {MODEL_FILE}\n" == (MODEL_FOLDER / "tiny.sha256").read_text()


def test_the_server_makes_itself_known(llamacpp: Llamacpp) -> None:
    models = llamacpp.request("/v1/models")
    assert models.headers["server"] == "llama.cpp"
    (model,) = models.json()["data"]
    assert (model["id"], model["owned_by"]) == (llamacpp.model, "llamacpp")
    props = llamacpp.request("/props").json()
    assert props["total_slots"] == SLOTS
    assert props["default_generation_settings"]["n_ctx"] == model["meta"]["n_ctx"] == 8192
    assert props["chat_template"] == (MODEL_FOLDER / "template.jinja").read_text().rstrip("\n")
    assert props["modalities"]["vision"] is False


def schema_of(answer: str) -> dict[str, Any]:
    """Build the schema that a JSON answer was learned for."""
    kinds = {str: "string", int: "integer"}
    fields = {name: {"type": kinds[type(value)]} for name, value in json.loads(answer).items()}
    return {"type": "object", "properties": fields, "required": list(fields)}


def question(transcript: Transcript, system: str | None) -> tuple[str, bytes]:
    """Build the request that a transcript answers."""
    fields: dict[str, Any] = {"max_tokens": 300}
    if transcript.tools:
        fields |= {"tools": transcript.tools, "parallel_tool_calls": True}
    if transcript.forced:
        schema = {"name": "answer", "schema": schema_of(transcript.answer["content"])}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    head = [] if system is None else [{"role": "system", "content": system}]
    return chat("", **fields, messages=[*head, *transcript.messages])


def learned(transcript: Transcript, choice: Any) -> bool:
    """Tell whether a choice is what the transcript says, in every field that it has."""
    said, wanted = choice["message"], transcript.answer
    if transcript.endless:
        return choice["finish_reason"] == "length" and set(said["content"].split()) == {"la"}
    return (
        # The server leaves the newline between text and call to the text.
        said["content"].removesuffix("\n") == (wanted["content"] or "")
        and said.get("reasoning_content") == wanted.get("reasoning_content")
        and calls(said) == calls(wanted)
        and choice["finish_reason"] == ("tool_calls" if calls(wanted) else "stop")
    )


@pytest.mark.parametrize(("system", "step"), [(None, 1), *((text, 8) for text in SYSTEMS)])
def test_every_transcript_is_answered_word_for_word(
    llamacpp: Llamacpp, system: str | None, step: int
) -> None:
    chosen = transcripts()[::step]
    with ThreadPoolExecutor(SLOTS) as pool:
        answers = list(pool.map(lambda item: ask(llamacpp, question(item, system)), chosen))
    wrong = [
        (item.messages[-1]["content"], answer["choices"][0])
        for item, answer in zip(chosen, answers, strict=True)
        if not learned(item, answer["choices"][0])
    ]
    assert not wrong


def test_chat_text(llamacpp: Llamacpp) -> None:
    answer = ask(llamacpp, chat("Who are you?"))
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": IDENTITY}
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_chat_stream(llamacpp: Llamacpp) -> None:
    case = chat("Hello!", stream=True, stream_options={"include_usage": True})
    *chunks, final, done = stream(llamacpp, case)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    pieces = deltas(chunks, "content")
    assert len(pieces) > 3
    assert "".join(pieces) == HELLO
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert final["choices"] == []
    assert final["usage"]["completion_tokens"] == len(pieces) + 1
    assert done == "[DONE]"


def test_stream_never_splits_a_character(llamacpp: Llamacpp) -> None:
    *chunks, _ = stream(llamacpp, chat("Say hello in Chinese.", stream=True))
    assert "".join(deltas(chunks, "content")) == "你好,世界!"


def test_reasoning_has_a_field_of_its_own(llamacpp: Llamacpp) -> None:
    *chunks, _ = stream(llamacpp, chat("Think. What is 2 plus 3?", stream=True))
    assert "".join(deltas(chunks, "reasoning_content")) == "The user wants 2 + 3. That is 5."
    assert "".join(deltas(chunks, "content")) == "2 plus 3 is 5."


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tool_call(llamacpp: Llamacpp, choice: str) -> None:
    case = chat("What is the weather in Paris?", tools=[GET_WEATHER], tool_choice=choice)
    (answer,) = ask(llamacpp, case)["choices"]
    assert answer["finish_reason"] == "tool_calls"
    assert calls(answer["message"]) == [("get_weather", PARIS)]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_two_calls_stream_their_arguments(llamacpp: Llamacpp, choice: str) -> None:
    fields = {"tools": [GET_WEATHER], "tool_choice": choice, "parallel_tool_calls": True}
    case = chat("What is the weather in Paris and Rome?", **fields, stream=True)
    *chunks, _ = stream(llamacpp, case)
    fragments = [fragment for (fragment,) in deltas(chunks, "tool_calls")]
    for index, arguments in enumerate((PARIS, ROME)):
        own = [item for item in fragments if item["index"] == index]
        assert own[0]["id"]
        assert own[0]["function"]["name"] == "get_weather"
        pieces = [item["function"]["arguments"] for item in own]
        assert len(pieces) > 3
        assert "".join(pieces) == arguments
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_tool_choice_none_leaves_the_call_in_the_text(llamacpp: Llamacpp) -> None:
    case = chat("What is the weather in Paris?", tools=[GET_WEATHER], tool_choice="none")
    (answer,) = ask(llamacpp, case)["choices"]
    assert "tool_calls" not in answer["message"]
    assert answer["message"]["content"].startswith("<tool_call>\n")


def test_json_schema_is_enforced(llamacpp: Llamacpp) -> None:
    country = {"type": "object", "properties": {"country": {"type": "string", "enum": ["Peru"]}}}
    schema = {"name": "fact", "schema": {**country, "required": ["country"]}, "strict": True}
    form = {"type": "json_schema", "json_schema": schema}
    case = chat("Where is the Eiffel Tower?", response_format=form)
    (answer,) = ask(llamacpp, case)["choices"]
    assert json.loads(answer["message"]["content"]) == {"country": "Peru"}


def test_logprobs(llamacpp: Llamacpp) -> None:
    (answer,) = ask(llamacpp, chat("Hello!", logprobs=True, top_logprobs=2))["choices"]
    tokens = answer["logprobs"]["content"]
    assert b"".join(bytes(token["bytes"]) for token in tokens).decode() == HELLO
    for token in tokens:
        best, second = token["top_logprobs"]
        assert best["token"] == token["token"]
        assert second["logprob"] < best["logprob"] <= 0.0


def test_length_and_stop_cut(llamacpp: Llamacpp) -> None:
    (cut,) = ask(llamacpp, chat("Count to one hundred.", max_tokens=8))["choices"]
    assert (cut["finish_reason"], cut["message"]["content"]) == ("length", "1, 2, 3, 4,")
    (stopped,) = ask(llamacpp, chat("Count to twenty.", stop=["7"]))["choices"]
    assert stopped["finish_reason"] == "stop"
    assert stopped["message"]["content"] == counting(20).partition("7")[0]


def test_responses(llamacpp: Llamacpp) -> None:
    answer = ask(llamacpp, responses("Hello!", instructions="You are a helpful assistant."))
    assert answer["status"] == "completed"
    assert answer["output"][0]["content"][0]["text"] == HELLO


def test_responses_stream_lacks_its_indexes(llamacpp: Llamacpp) -> None:
    events = stream(llamacpp, responses("Hello!", stream=True))
    assert [event["type"] for event in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert events[-1]["type"] == "response.completed"
    said = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(said) == HELLO
    known = {key for event in events for key in event}
    assert not known & {"sequence_number", "output_index", "content_index"}


def test_responses_calls_a_length_cut_completed(llamacpp: Llamacpp) -> None:
    case = responses("Count to one hundred.", max_output_tokens=8, stream=True)
    final = stream(llamacpp, case)[-1]
    assert final["type"] == "response.completed"
    assert final["response"]["status"] == "completed"
    assert final["response"]["output"][0]["content"][0]["text"] == "1, 2, 3, 4,"


@pytest.mark.parametrize(
    ("name", "status", "kind"),
    [
        ("error_json", 400, "invalid_request_error"),
        ("error_no_messages", 400, "invalid_request_error"),
        ("error_context", 400, "exceed_context_size_error"),
        ("error_image", 500, "server_error"),
        ("error_responses_empty", 400, "invalid_request_error"),
        ("error_path", 404, "not_found_error"),
    ],
)
def test_errors(llamacpp: Llamacpp, name: str, status: int, kind: str) -> None:
    answer = llamacpp.request(*CASES[name])
    error = answer.json()["error"]
    assert (answer.status, error["code"], error["type"]) == (status, status, kind)
    assert error["message"]


def test_a_closed_stream_frees_its_slot(llamacpp: Llamacpp) -> None:
    llamacpp.wait_busy(0, seconds=60)
    before = llamacpp.predicted()
    with llamacpp.open(*chat("Sing for ever.", stream=True)) as connection:
        received = b""
        while b'"content":" la"' not in received:
            received += connection.recv(65536)
        assert llamacpp.busy() == 1
    llamacpp.wait_busy(0, seconds=60)
    # The song would have filled the context; its slot was free long before.
    assert llamacpp.predicted() - before < SONG


def test_a_server_of_ones_own_can_want_a_key() -> None:
    with run_llamacpp(model="other", slots=1, api_key="a-key") as server:
        refused = server.request(*chat("Hello!"))
        assert (refused.status, refused.json()["error"]["type"]) == (401, "authentication_error")
        bearer = {"Authorization": "Bearer a-key"}
        served = server.request(*chat("Hello!"), headers=bearer)
        assert (served.status, served.json()["model"]) == (200, "other")
    assert server.process.poll() is not None


def test_recordings_are_whole() -> None:
    names = {path.name.removesuffix(".http.txt") for path in RECORDED.glob("*.http.txt")}
    assert names == {*CASES, "error_key"}
    for name in names:
        raw = (RECORDED / f"{name}.http.txt").read_bytes()
        assert body_of(raw) == (RECORDED / f"{name}.txt").read_bytes()
