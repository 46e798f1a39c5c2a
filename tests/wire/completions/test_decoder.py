"""What servers of raw text answer, in all the ways they have of it."""

import json
from typing import Any

import pytest

from dragoman.core.event import Finished, Progress
from dragoman.core.fold import fold
from dragoman.core.item import Message, Token
from dragoman.wire import json as body
from dragoman.wire.completions.response import text_of
from dragoman.wire.usage import decode_usage, encode_usage
from tests.wire.completions.speaking import DONE, chunk, failed, hear, heard, sse, tokens


def whole(text: str = "Hi", reason: Any = "stop", **more: Any) -> bytes:
    return json.dumps(chunk(text, reason, **more)).encode()


# ---- R2 4-7 -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("stop", "stop"),
        ("eos", "stop"),
        ("eos_token", "stop"),
        ("eom", "stop"),
        ("stop_sequence", "stop"),
        ("end_of_turn", "stop"),
        ("tool_calls", "stop"),
        ("who-knows", "stop"),
        (7, "stop"),
        ("length", "length"),
        ("MAX-TOKENS", "length"),
        ("out_of_tokens", "length"),
        ("content_filter", "content_filter"),
    ],
)
def test_r2_4_every_word_for_the_end_means_what_it_says(word: Any, reason: str) -> None:
    for response in (heard(chunk("Hi"), chunk("", word)), fold(hear(whole(reason=word)))):
        assert response.reasons == (reason,)
        assert response.status == ("completed" if reason == "stop" else "incomplete")
        assert response.text == "Hi"


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"text": "a"}, "a"),
        ({"delta": {"content": "a"}}, "a"),
        ({"message": {"role": "assistant", "content": "a"}}, "a"),
        ({"delta": None, "message": {"content": "a"}}, "a"),
        ({"delta": {"content": None}, "text": "a"}, "a"),
        ({"delta": {"content": "a"}, "message": {"content": "b"}, "text": "c"}, "a"),
        ({"message": {"content": [{"type": "text", "text": "a"}, {"text": 7}, 8]}}, "a"),
        ({"text": None}, ""),
        ({"text": 7}, ""),
        ({}, ""),
    ],
)
def test_r2_5_text_is_found_wherever_it_stands(choice: dict[str, Any], text: str) -> None:
    value = {"id": "x", "choices": [{"index": 0, "finish_reason": "stop", **choice}]}
    assert heard(value).text == text
    assert text_of(choice) == (text or (None if "text" not in choice or not text else text))
    if text:
        assert fold(hear(body.dump(value))).text == text


TOP = [{"Hi": -0.1, "Ho": -2.5}, {"!": -0.2}]
FULL = (
    Token("Hi", -0.1, top=(Token("Hi", -0.1), Token("Ho", -2.5))),
    Token("!", -0.2, top=(Token("!", -0.2),)),
)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"tokens": ["Hi", "!"], "token_logprobs": [-0.1, -0.2], "top_logprobs": TOP}, FULL),
        ({"top_logprobs": TOP}, FULL),
        ({"tokens": ["Hi", "!"], "top_logprobs": TOP}, FULL),
        (
            {"tokens": ["Hi", "!"], "token_logprobs": [-0.1, -0.2], "top_logprobs": None},
            (Token("Hi", -0.1), Token("!", -0.2)),
        ),
        ({"tokens": ["Hi", "!"]}, (Token("Hi"), Token("!"))),
        (
            {"tokens": ["Hi", "!"], "token_logprobs": [None, -0.2], "top_logprobs": [None, {}]},
            (Token("Hi"), Token("!", -0.2)),
        ),
        (
            {
                "content": [
                    {
                        "token": "Hi!",
                        "logprob": -1,
                        "bytes": [72],
                        "id": 7,
                        "top_logprobs": [{"token": "H", "logprob": -2, "bytes": None}],
                    },
                    7,
                ]
            },
            (Token("Hi!", -1, b"H", (Token("H", -2),), 7),),
        ),
        ({"content": [{"token": None, "bytes": ["x"], "logprob": True, "id": "7"}]}, (Token(""),)),
        ({"top_logprobs": [{"Z": -1.0}]}, (Token("Hi!", None, top=(Token("Z", -1.0),)),)),
        ({"tokens": "no", "token_logprobs": 7}, ()),
        ([], ()),
        (True, ()),
    ],
)
def test_r2_6_log_probabilities_in_any_lists_become_the_same_tokens(
    given: Any, found: tuple[Token, ...]
) -> None:
    assert tokens(fold(hear(whole("Hi!", logprobs=given)))) == found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (-0.5, Token("Hi", -0.5)),
        ({"Hi": -0.5, "Ho": -1}, Token("Hi", -0.5, top=(Token("Hi", -0.5), Token("Ho", -1)))),
        (
            {"top_logprobs": {"Hi": -0.5, "H": -1}},
            Token("Hi", -0.5, top=(Token("Hi", -0.5), Token("H", -1))),
        ),
        ({"Ho": -1, "x": "y"}, Token("Hi", None, top=(Token("Ho", -1),))),
    ],
)
def test_r2_7_a_number_or_a_map_for_a_chunk_is_its_token(given: Any, found: Token) -> None:
    assert tokens(heard(chunk("Hi", logprobs=given), chunk("", "stop"))) == (found,)


def test_r2_7_text_beside_the_reason_to_stop_is_said() -> None:
    for reason in ("stop", "eos", "eos_token", "length"):
        response = heard(chunk("Hel"), chunk("lo", reason), done=reason == "stop")
        assert response.text == "Hello"


def test_a_part_of_a_character_has_its_bytes() -> None:
    given = {"tokens": ["bytes:\\xe2\\x82", "bytes:\\x41", "bytes:xyz"], "token_logprobs": [-1] * 3}
    first, *others = tokens(fold(hear(whole("€", logprobs=given))))
    assert (first.text, first.bytes) == ("�", b"\xe2\x82")
    assert [token.text for token in others] == ["bytes:\\x41", "bytes:xyz"]


# ---- beginning and end ---------------------------------------------------------------------------


def test_done_without_a_reason_is_a_stop() -> None:
    assert heard(chunk("a")).reasons == ("stop",)


def test_a_stream_that_just_ends_is_a_cut() -> None:
    assert failed(sse(chunk("a"), done=False)).code == "upstream_cut"
    assert failed(sse(chunk("a"), done=False) + b'data: {"choices": [{"te').code == "upstream_cut"


def test_a_reason_and_no_done_is_an_end() -> None:
    assert heard(chunk("a", "stop"), done=False).status == "completed"


def test_usage_comes_last_or_late_or_in_every_chunk() -> None:
    counts = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    last = {"id": "up-1", "choices": [], "usage": counts}
    end = chunk("a", "stop")
    for stream in (
        sse(end, last),
        sse(end) + b"data: " + body.dump(last) + b"\n\n",
        sse(end | {"usage": {"prompt_tokens": 1}}, last),
    ):
        found = fold(hear(stream)).usage
        assert found is not None
        assert (found.input_tokens, found.output_tokens, found.total_tokens) == (1, 2, 3)
    assert heard(end).usage is None
    assert heard(end | {"usage": {}}).usage is None


def test_counts_nobody_has_a_name_for_are_kept() -> None:
    given = {
        "prompt_tokens": 1,
        "seconds": 0.5,
        "nothing": None,
        "prompt_tokens_details": {"cached_tokens": 4, "tiles": 2},
        "completion_tokens_details": "odd",
    }
    found = decode_usage(given, "completions")
    assert found is not None
    assert (found.cached_tokens, found.reasoning_tokens) == (4, None)
    del given["nothing"]
    assert encode_usage(found, "completions") == given
    both = decode_usage({"prompt_tokens": 1, "completion_tokens": 2}, "completions")
    assert both is not None
    assert encode_usage(both, "completions")["total_tokens"] == 3


def test_several_choices_each_have_their_text_and_reason() -> None:
    def of(index: Any, text: str, reason: Any = None) -> dict[str, Any]:
        return {"choices": [{"index": index, "text": text, "finish_reason": reason}]}

    response = heard(of(1, "b"), of(0, "a"), of(1, "B", "length"), of(0, "A", "stop"))
    said = [item.text for item in response.output if isinstance(item, Message)]
    assert sorted(said) == ["aA", "bB"]
    assert response.choice(0)[0] == response.output[1]
    assert response.reasons == ("stop", "length")
    odd = {"choices": [{"text": "a", "index": -4}, {"text": "b", "index": None}, 7]}
    assert len(heard(odd, of(0, "", "stop"), of(1, "", "stop")).reasons) == 2


# ---- failures ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "no answer in it"),
        (b"   \n", "no answer in it"),
        (b"{}", "no choices"),
        (b'{"choices": []}', "no choices"),
        (b'{"choices": [7]}', "a choice that is a number"),
        (b'{"choices": [{"finish_reason": "stop"}]}', "a choice without a message"),
        (b"[]", "an array, and not with an object"),
        (b'{"choices": [{"text": "a"', "ended the stream before"),
        (b'{"choices": nope}', "a body that is not valid JSON"),
        (b'{"error": {"message": "no room"}}', "no room"),
        (b'{"object": "error", "message": "no room"}', "no room"),
        (b"<html>", "web page"),
        (b"data: nope\n\n", "events that are not JSON objects"),
        (b"data: [1]\n\n", "events that are not JSON objects"),
        (b"data: \n\n" + DONE, "no answer in it"),
        (b"event: ping\n\n", "ended the stream before"),
        (sse(chunk("a"), {"error": {"message": "no room"}}), "no room"),
        (sse(chunk("a"), {"object": "error", "message": "no room"}), "no room"),
        (b'event: error\ndata: {"message": "no room"}\n\n', "no room"),
        (b'event: error\ndata: {"error": {"message": "no room"}}\n\n', "no room"),
        (sse(chunk("a", error={"message": "no room"})), "no room"),
        (sse(chunk("a", "abort")), "broke the answer off"),
        (sse(chunk("a")) + b"x", ""),
    ],
)
def test_what_is_no_answer_is_a_fault(answer: bytes, words: str) -> None:
    if words:
        assert words in failed(answer).message
    else:
        assert isinstance(hear(answer)[-1], Finished)


def test_garbage_in_a_stream_that_goes_on_is_skipped() -> None:
    assert heard(chunk("a"), b"nope", b'"x"', chunk("b", "stop")).text == "ab"


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "MAX_ANSWER", 10)
    assert "more than 10 bytes" in failed(b'{"choices": []}').message
    monkeypatch.setattr("dragoman.wire.sse.MAX_EVENT", 100)
    assert "larger than" in failed(b"data: " + b"x" * 200).message
    assert hear(b'{"choices": [' + b" " * 20, b"more") != []


# ---- what is not known --------------------------------------------------------------------------


def test_unknown_fields_are_kept_where_they_stood() -> None:
    first = chunk("a", x_each=1) | {"x_top": 1}
    second = chunk("b") | {"x_top": 1, "x_new": 2}
    last = chunk("", "stop", stop_reason=7)
    events = hear(sse(first, second, last))
    (raw,) = [event for event in events if isinstance(event, Progress)]
    assert raw.data == {"completions": {"choices": [{"index": 0, "x_each": 1}]}}
    extra = fold(events).extra or {}
    assert extra["completions"] == {
        "x_top": 1,
        "x_new": 2,
        "choices": [{"index": 0, "stop_reason": 7}],
    }
    assert extra["upstream"] == {"id": "up-1", "created": 7}
