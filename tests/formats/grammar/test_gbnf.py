"""Grammars in GBNF, as token engines read them."""

import pytest

from dragoman.core.error import FaultError
from dragoman.formats.grammar.demand import lark
from dragoman.formats.grammar.lark import Writer
from tests.formats.grammar.accepts import verdict

JSON = r"""# an object, in the manner of llama.cpp's own grammars
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws ( string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws  # so
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
TAKEN = [
    (JSON, '{"a": [1, 2.5, true, {"b": "x\\n\\u00e9"}], "c": -3e5}', "whole"),
    (JSON, "{} ", "whole"),
    (JSON, '{"a": [1,', "begun"),
    (JSON, '{"a"}', "wrong after '{\"a\"'"),
    (JSON, "[1]", "wrong after ''"),
    ('root ::= "yes" | "no"', "yes", "whole"),
    ('root ::= "a"\n  | "b"\n', "b", "whole"),
    ("root ::= [a-c-]+", "a-cb", "whole"),
    ("root ::= [a-c-]+", "d", "wrong after ''"),
    (r"root ::= [^\]\\-]", "]", "wrong after ''"),
    (r"root ::= [^\]\\-]", "/", "whole"),
    ('root ::= "true" [a-z]* | [a-z]+', "trtrue", "whole"),
    ("root ::= .{3}", "é\nx", "whole"),
    ("root ::= .{2,}", "a", "begun"),
    (r'root ::= "\x41\u00e9\U0001F600\"\\\t"', 'Aé😀"\\\t', "whole"),
    ('root ::= a-b a-b?\na-b ::= "\x7f"', "\x7f", "whole"),
    ('root ::= root "a" | "b"', "baa", "whole"),
]
REFUSED = [
    ('foo ::= "a"', "there is no rule root"),
    ("root ::= x", "there is no rule x"),
    ('root ::= "a"\nroot ::= "b"', "line 2: 'root ::= \"b\"' is there already"),
    ('root ::= "a"\n  <[1]>', "line 2: '<[1]>' is not read here as GBNF"),
    ("root ::= [a", "line 1: '[a' is not read here as GBNF"),
    (r'root ::= "\ud800"', "has an escape that stands for no character"),
    (r"root ::= [\UFFFFFFFF]", "has an escape that stands for no character"),
    ("root ::= " + "(" * 101, "has 101 levels of brackets"),
]


@pytest.mark.parametrize(("grammar", "text", "found"), TAKEN)
def test_f14_a_grammar_in_gbnf_is_enforced(grammar, text, found) -> None:
    writer = Writer()
    made = writer.grammar(writer.body(lark("grammar", grammar)))
    assert verdict(made, text) == found


@pytest.mark.parametrize(("grammar", "words"), REFUSED)
def test_f14_what_is_no_gbnf_is_refused(grammar, words) -> None:
    with pytest.raises(FaultError) as refused:
        lark("grammar", grammar)
    assert refused.value.fault.param == "grammar"
    assert words in refused.value.fault.message
