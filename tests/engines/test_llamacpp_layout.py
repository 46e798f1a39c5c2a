"""What llama.cpp tells of the place of text in a model's answers."""

from __future__ import annotations

import pytest

from dragoman.engines.llamacpp import told_by

CODE = 'space ("```json" space response-format space "```" | space response-format space)'
ROOTS = {
    rf'"<a>\n" {CODE}': ("", ""),
    '"<a>" response-format-schema': ("", ""),
    f'space ("<think>" until-5 "</think>")? {CODE}': ("<think>", "</think>"),
    rf'"<a>" space ("<t>" "\n"? until-13 "\n"? "</t>" "\n"? "\n"?)? {CODE}': ("<t>", "</t>"),
    '"<a>" ("<t>" space until-6 ("</t>" | ))? space response-format': ("<t>", "</t>"),
    f'("<|thought|>" until-5 "<|end|>")? {CODE}': None,
    '("[THINK]" until-1 "[/THINK]")? space response-format': None,
    f'("<t>" until-5 "")? {CODE}': None,
    "(start analysis)* start response-format": None,
}


@pytest.mark.parametrize("root", ROOTS)
def test_the_marks_of_reasoning_are_those_of_llamacpps_grammar(root) -> None:
    grammar = f"a ::= response-format\nroot ::= {root}\nspace ::= | [ ]\n"
    told = {"__verbose": {"generation_settings": {"grammar": grammar}}}
    assert told_by(Telling(told)) == (ROOTS[root], False)


@pytest.mark.parametrize(
    ("message", "plain"), [({"content": "a"}, True), ({"reasoning_content": "a"}, False)]
)
def test_a_server_tells_whether_text_comes_first_in_an_answer(message, plain) -> None:
    assert told_by(Telling({"choices": [{"message": message}]})) == (None, plain)


def test_a_server_that_tells_nothing_has_no_marks_that_are_known() -> None:
    assert told_by(Telling({})) == (None, False)


class Telling:
    """A server of one answer."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def handle_chat_completions(self, asked: object) -> object:
        return self.answer
