"""What llama.cpp does by itself, where other tests rely on it; Dragoman has no part in it.

Its answers to questions of the SDK are in `test_through_dragoman.py`, which fails when it changes.
"""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.upstream.llamacpp import MODEL_FILE, MODEL_FOLDER, SLOTS, Llamacpp, run_llamacpp
from tests.upstream.record import CASES, RECORDED, body_of, chat, responses
from training.tiny.transcripts import HELLO, SYSTEMS, Message, Transcript, transcripts


def test_the_model_is_the_committed_one() -> None:
    digest = hashlib.sha256((MODEL_FOLDER / MODEL_FILE).read_bytes()).hexdigest()
    assert f"{digest}  {MODEL_FILE}\n" == (MODEL_FOLDER / "tiny.sha256").read_text()


def test_recordings_are_whole() -> None:
    names = {path.name.removesuffix(".http.txt") for path in RECORDED.glob("*.http.txt")}
    assert names == {*CASES, "error_key"}
    for name in names:
        raw = (RECORDED / f"{name}.http.txt").read_bytes()
        assert body_of(raw) == (RECORDED / f"{name}.txt").read_bytes()


# ---- what the model learned ------------------------------------------------------------------


def schema_of(answer: str) -> dict[str, Any]:
    """The schema that a JSON answer was learned for."""
    kinds = {str: "string", int: "integer"}
    fields = {name: {"type": kinds[type(value)]} for name, value in json.loads(answer).items()}
    return {"type": "object", "properties": fields, "required": list(fields)}


def question(transcript: Transcript, system: str | None) -> tuple[str, bytes]:
    """The request that a transcript answers."""
    fields: dict[str, Any] = {"max_tokens": 300}
    if transcript.tools:
        fields |= {"tools": transcript.tools, "parallel_tool_calls": True}
    if transcript.forced:
        schema = {"name": "answer", "schema": schema_of(transcript.answer["content"])}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    head = [] if system is None else [{"role": "system", "content": system}]
    return chat("", **fields, messages=[*head, *transcript.messages])


def calls(message: Message) -> list[tuple[str, str]]:
    functions = [call["function"] for call in message.get("tool_calls", [])]
    return [(function["name"], function["arguments"]) for function in functions]


def learned(transcript: Transcript, choice: Any) -> bool:
    """Whether a choice is what the transcript says, in every field that it has."""
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


def test_sampled_transcripts_are_answered_word_for_word(llamacpp: Llamacpp) -> None:
    every = transcripts()
    chosen = [(item, None) for item in every[::4]]
    chosen += [(item, system) for system in SYSTEMS for item in every[::16]]

    def ask(case: tuple[Transcript, str | None]) -> Any:
        answer = llamacpp.request(*question(*case))
        assert answer.status == 200, answer.body
        return answer.json()["choices"][0]

    with ThreadPoolExecutor(SLOTS) as pool:
        answers = list(pool.map(ask, chosen))
    pairs = zip(chosen, answers, strict=True)
    assert not [(item.messages, said) for (item, _), said in pairs if not learned(item, said)]


# ---- what Dragoman is there to mend ----------------------------------------------------------


def test_tool_choice_none_leaves_the_call_in_the_text(llamacpp: Llamacpp) -> None:
    path, body = CASES["chat_call"]
    asked = json.loads(body or b"") | {"tool_choice": "none"}
    (answer,) = llamacpp.request(path, asked).json()["choices"]
    assert "tool_calls" not in answer["message"]
    assert answer["message"]["content"].startswith("<tool_call>\n")


def test_responses_stream_lacks_its_indexes(llamacpp: Llamacpp) -> None:
    events = llamacpp.request(*responses("Hello!", stream=True)).events()
    said = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(said) == HELLO
    known = {key for event in events for key in event}
    assert not known & {"sequence_number", "output_index", "content_index"}


def test_responses_calls_a_length_cut_completed(llamacpp: Llamacpp) -> None:
    final = llamacpp.request(*CASES["responses_length_stream"]).events()[-1]
    assert (final["type"], final["response"]["status"]) == ("response.completed", "completed")
    assert final["response"]["output"][0]["content"][0]["text"] == "1, 2, 3, 4,"


@pytest.mark.parametrize(
    ("name", "status", "kind"),
    [
        ("error_json", 400, "invalid_request_error"),
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


def test_llamacpp_server_may_require_a_key() -> None:
    with run_llamacpp(model="other", slots=1, api_key="a-key") as server:
        refused = server.request(*chat("Hello!"))
        assert (refused.status, refused.json()["error"]["type"]) == (401, "authentication_error")
        bearer = {"Authorization": "Bearer a-key"}
        served = server.request(*chat("Hello!"), headers=bearer)
        assert (served.status, served.json()["model"]) == (200, "other")
    assert server.process.poll() is not None
