"""One table says what each fault is over HTTP; the words of a refusal are found in any shape."""

import json
from typing import get_args

import pytest

from dragoman.core.error import Code, Fault
from dragoman.wire import error
from dragoman.wire.messages import MESSAGES
from dragoman.wire.responses.response import render_error
from tests.cases import cases

CASES = cases(__file__, "errors")

CODES = get_args(Code)


def fault(code: str, **fields: object) -> Fault:
    return Fault(code, "What happened.", **fields)


def test_every_fault_has_a_row_and_an_error_status() -> None:
    assert set(error.TABLE) == set(CODES)
    assert all(400 <= error.status(fault(code)) <= 599 for code in CODES)


@pytest.mark.parametrize(("code", "status", "type", "said"), CASES["faults"])
def test_statuses_types_and_codes_of_own_faults(code, status, type, said) -> None:
    own = fault(code, param="model")
    assert error.status(own) == status
    assert json.loads(error.encode(own)) == {
        "error": {"message": "What happened.", "type": type, "param": "model", "code": said}
    }


def test_a_refusal_of_our_own_key_is_our_failure_and_not_the_clients() -> None:
    refused = error.decode(401, b'{"error":{"message":"no"}}')
    ours = fault("upstream_authentication", status=refused.status)
    assert error.status(ours) == 502
    assert error.error_object(ours)["code"] == "upstream_authentication"


@pytest.mark.parametrize(("data", "message", "param", "code", "type"), CASES["refusals"])
def test_r1_w12_a_refusal_keeps_status_message_type_param_and_code(
    data, message, param, code, type
) -> None:
    refused = error.decode(404, data.encode("latin-1"))
    assert refused.message == message
    assert (refused.param, refused.upstream_code, refused.upstream_type) == (param, code, type)
    assert (refused.code, refused.status) == ("upstream_refused", 404)
    assert error.status(refused) == 404
    said = error.error_object(refused)
    assert said["message"] == message
    assert said["type"] == (type or "invalid_request_error")
    assert said["code"] == (code or "not_found")


def test_a_validation_list_names_the_field() -> None:
    wrong = {"loc": ["body", "messages", 0, "role"], "msg": "field required", "type": "missing"}
    refused = error.decode(
        422, json.dumps({"detail": [wrong, {"msg": "x", "loc": ["body"]}]}).encode()
    )
    assert refused.message == "messages[0].role: field required; x"
    assert refused.param == "messages[0].role"
    assert error.status(refused) == 422
    assert error.error_object(refused)["code"] is None


@pytest.mark.parametrize("data", CASES["pages"])
def test_error_texts_are_never_html(data) -> None:
    refused = error.decode(502, data.encode())
    assert "<" not in refused.message
    assert "web page" in refused.message
    assert error.status(refused) == 502


def test_r1_w12_retry_after_is_passed_on_unchanged() -> None:
    refused = error.decode(429, b'{"error":{"message":"slow"}}', "Fri, 31 Dec 2027 23:59:59 GMT")
    assert refused.retry_after == "Fri, 31 Dec 2027 23:59:59 GMT"
    assert (error.status(refused), refused.blame) == (429, "upstream")
    assert error.error_object(refused)["type"] == "rate_limit_error"


def test_blame_follows_the_status() -> None:
    blames = {status: error.decode(status, b"").blame for status in (400, 404, 401, 429, 500)}
    assert blames == {
        400: "client",
        404: "client",
        401: "upstream",
        429: "upstream",
        500: "upstream",
    }


@pytest.mark.parametrize(("status", "type", "code"), CASES["statuses"])
def test_a_bare_status_has_its_usual_words(status, type, code) -> None:
    said = error.error_object(error.decode(status, b""))
    assert (said["type"], said["code"]) == (type, code)


def test_a_status_that_is_no_error_is_an_upstream_error() -> None:
    odd = error.decode(302, b"")
    assert (odd.code, odd.status, error.status(odd)) == ("upstream_error", None, 502)


def test_unknown_fields_of_an_upstream_error_are_preserved() -> None:
    body = {"error": {"message": "no", "code": 400, "metadata": {"provider": "x"}, "n": None}}
    refused = error.decode(400, json.dumps(body).encode())
    assert error.error_object(refused)["metadata"] == {"provider": "x"}
    assert "n" not in error.error_object(refused)


def test_an_error_in_an_answer_that_began_well() -> None:
    named = error.describe({"error": {"message": "busy", "code": 503}})
    assert (named.code, named.status, error.status(named)) == ("upstream_refused", 503, 503)
    numbered = error.describe({"error": {"message": "busy", "code": "busy", "status": 429}})
    assert (error.status(numbered), numbered.upstream_code) == (429, "busy")
    plain = error.describe({"error": {"message": "broken", "code": "server_error"}})
    assert (plain.code, error.status(plain), plain.upstream_code) == (
        "upstream_error",
        502,
        "server_error",
    )
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    typed = error.describe({**body, "request_id": "req_1"})
    assert (typed.code, typed.message, error.status(typed)) == (
        "upstream_refused",
        "Overloaded",
        529,
    )
    assert error.error_object(typed)["code"] == "overloaded"
    bare = error.describe({"error": {"code": 42}})
    assert bare.message == "The model's server reported an error and did not explain it."
    true = error.describe({"error": True})
    assert "did not explain" in true.message


@pytest.mark.parametrize(
    "value", [None, 1, "x", [], {}, {"error": None}, {"choices": []}, {"error": {}}]
)
def test_value_without_an_error_describes_none(value) -> None:
    assert error.describe(value) is None


@pytest.mark.parametrize(
    ("status", "refusal"),
    [
        # vLLM, before and since 0.10
        (400, {"object": "error", "type": "BadRequestError", "code": 400, "message": "This model's "
               "maximum context length is 6048 tokens. However, you requested 6616 tokens (568 in "
               "the messages, 6048 in the completion). Please reduce the length of the messages or "
               "completion."}),
        (400, {"error": {"type": "BadRequestError", "param": None, "code": 400, "message": "This "
               "model's maximum context length is 32768 tokens. However, your request has 50008 "
               "input tokens. Please reduce the length of the input messages."}}),
        # SGLang, DeepSeek, LiteLLM, Gemini, Anthropic
        (400, {"object": "error", "message": "The input (50008 tokens) is longer than the model's "
               "context length (32768 tokens).", "type": "BadRequestError", "code": 400}),
        (400, {"error": {"type": "invalid_request_error", "code": "invalid_request_error",
               "message": "This model's maximum context length is 65536 tokens."}}),
        (400, {"error": {"message": "litellm.ContextWindowExceededError: too long", "type": None,
               "code": "400"}}),
        (400, [{"error": {"code": 400, "message": "The input token count (1200000) exceeds the "
                "maximum number of tokens allowed (1048576).", "status": "INVALID_ARGUMENT"}}]),
        (400, {"type": "error", "error": {"type": "invalid_request_error",
               "message": "prompt is too long: 200001 tokens > 200000 maximum"}}),
        # LM Studio, in a stream
        (None, {"error": {"message": "Trying to keep the first 5000 tokens when context overflows. "
                "However, the model is loaded with context length of only 4096 tokens."}}),
    ],
)  # fmt: skip
def test_prompt_over_the_context_has_the_code_that_clients_know(status, refusal) -> None:
    found = error.describe(refusal, status)
    assert found.upstream_code == "context_length_exceeded"
    # Claude Code compacts then; the error of a server it would send again, ten times.
    assert error.encode_error(found, "r")[0] == 400
    assert MESSAGES.encode_error(found, "r")[0] == 400
    assert render_error(found)["code"] == "context_length_exceeded", "by which Codex compacts"


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (400, None, "'max_tokens' is too large: 5000. The maximum context length is 2048 tokens."),
        (400, None, "context_size is not a field"),
        (400, "string_above_max_length", "input is too long"),
        (429, None, "too many tokens: 9000 a minute"),
        (500, None, "context length 9"),
        (None, None, "Too many tokens, please wait before trying again."),  # Bedrock, in a stream
        (None, "429", "Rate limit: too many input tokens, 20000 are allowed"),
    ],
)  # fmt: skip
def test_other_refusals_are_not_of_a_prompt_over_the_context(status, code, message) -> None:
    refused = error.describe({"error": {"message": message, "code": code}}, status)
    assert refused.upstream_code == code


def test_status_of_an_error_in_a_stream_may_be_a_text() -> None:
    """As LiteLLM's."""
    limited = error.describe({"error": {"message": "slow down", "type": "None", "code": "429"}})
    assert (error.status(limited), limited.upstream_code) == (429, "429")
    assert error.status(error.describe({"error": {"message": "x", "code": "1302"}})) == 502
