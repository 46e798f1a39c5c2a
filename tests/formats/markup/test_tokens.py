"""Markup as tokens: control tokens by their ids, characters in halves, counts and probabilities."""

import time
from cProfile import Profile

import pytest

from dragoman.core.event import Delta
from dragoman.core.fold import fold
from dragoman.core.item import Token
from dragoman.core.turn import Turn
from dragoman.formats.markup.format import Markup
from dragoman.formats.prompt import ByteTokenizer
from tests.formats.markup.parsing import asked, parse_ids, tokens


def test_a_mark_that_is_a_token_is_only_text_when_it_is_spelled() -> None:
    tokenizer = ByteTokenizer(["<|im_end|>", "<tool_call>"])
    ids = [*b"The end is <|im_end|> or </tool_call>", tokenizer.controls["<|im_end|>"]]
    outcome = parse_ids("hermes", ids, tokenizer)
    assert outcome.said == [("text", "The end is <|im_end|> or ")]
    assert outcome.warnings == ["</tool_call> does not belong there and is left out"]


def test_a_mark_as_a_token_counts_inside_a_string() -> None:
    text = '<tool_call>{"name": "now", "arguments": {"a": "b</tool_call>'
    ids, tokenizer = tokens("hermes", f"{text}Hi")
    outcome = parse_ids("hermes", ids, tokenizer)
    assert outcome.said == [("now", '{"a": "b'), ("text", "Hi")]


def test_reasoning_may_begin_in_mid_text_by_a_token() -> None:
    ids, tokenizer = tokens("hermes", "Hi <think>hm</think> there")
    assert parse_ids("hermes", ids, tokenizer).said == [
        ("text", "Hi"),
        ("thought", "hm"),
        ("text", "there"),
    ]


def test_reasoning_tokens_are_counted_with_their_marks() -> None:
    ids, tokenizer = tokens("hermes", "<think>abc</think>de")
    assert parse_ids("hermes", ids, tokenizer, 2).reasoning == 5


def test_control_tokens_of_others_are_left_out() -> None:
    tokenizer = ByteTokenizer(["<|vision|>"])
    outcome = parse_ids("hermes", [*b"a", 256, *b"b", 999], tokenizer)
    assert outcome.said == [("text", "ab")]
    assert outcome.warnings == ["<|vision|> was not expected and is left out"]


def test_half_characters_wait_for_their_other_half() -> None:
    tokenizer = ByteTokenizer(["<|im_end|>"])
    ids = [*"né😀".encode(), *"😀".encode()[:2], 256]
    outcome = parse_ids("hermes", ids, tokenizer)
    assert outcome.said == [("text", "né😀\ufffd")]
    assert [e.data for e in outcome.events if isinstance(e, Delta)] == ["n", "é", "😀", "\ufffd"]
    assert parse_ids("hermes", [*b"a", 0xC3], ByteTokenizer()).said == [("text", "a\ufffd")]


@pytest.mark.parametrize(
    ("family", "text", "said"),
    [
        ("hermes", "a < b\n<tool_call>x <c", ["a", " ", "<", " ", "b"]),
        ("llama", '{"a": 1}', list('{"a": 1}')),
        ("llama", ' {"name": "now"} x', list("x")),
        ("hermes", "é", ["é", ""]),
    ],
)
def test_log_probabilities_go_with_the_emitted_text(family, text, said) -> None:
    turn = Turn("1", 0, "m", think=None)
    parser = Markup(family).parser(asked(), turn, ByteTokenizer())
    ids = list(text.encode())
    weighed = [
        Token(text if id > 127 and place == 0 else "" if id > 127 else chr(id), -1.0, id=id)
        for place, id in enumerate(ids)
    ]
    parser.feed(ids, weighed)
    parser.close("stop")
    parts = [part for item in fold(turn.take()).output for part in getattr(item, "content", ())]
    assert [token.text for token in parts[0].tokens][: len(said)] == said


def test_parser_without_a_tokenizer_refuses_tokens() -> None:
    parser = Markup("hermes").parser(asked(), Turn("1", 0, "m", think=None))
    with pytest.raises(TypeError, match="without a tokenizer"):
        parser.feed([1])


def test_vocabulary_is_classified_once() -> None:
    format, tokenizer = Markup("hermes"), ByteTokenizer()
    first = format.parser(asked(), Turn("1", 0, "m", think=None), tokenizer)
    second = format.parser(asked(), Turn("2", 0, "m", think=None), tokenizer)
    other = format.parser(asked(), Turn("3", 0, "m", think=None), ByteTokenizer())
    assert first._token_table is second._token_table
    assert other._token_table is not first._token_table


def test_a_plain_token_costs_few_calls() -> None:
    ids = [97] * 1_000
    parser = Markup("hermes").parser(asked(), Turn("1", 0, "m", think=None), ByteTokenizer())
    parser.feed(ids)
    with Profile() as profile:
        parser.feed(ids)
    assert sum(each.callcount for each in profile.getstats()) < 30 * len(ids)


@pytest.mark.uncounted
def test_a_call_of_many_scored_tokens_costs_little() -> None:
    tokenizer = ByteTokenizer()
    score = Token("x", -0.1, b"x")

    def once(size: int) -> float:
        parser = Markup("hermes").parser(asked(), Turn("1", 0, "m", think=None), tokenizer)
        parser.write('<tool_call>{"name": "now", "arguments": {"a": "')
        parser.feed([120] * size, [score] * size)
        start = time.thread_time()
        parser.write('"}}</tool_call>')
        return time.thread_time() - start

    assert any(once(10_000) < 0.3 for _ in range(3))  # seconds; a hundredth of that is usual


def test_token_longer_than_the_emitted_text_is_given_once() -> None:
    turn = Turn("1", 0, "m", think=None)
    parser = Markup("hermes").parser(asked(), turn)
    parser.write("a b ", [Token("a b ", -1.0)])
    parser.write("c", [Token("c", -2.0)])
    parser.close("stop")
    (message,) = fold(turn.take()).output
    assert [token.text for token in message.content[0].tokens] == ["a b ", "c"]
