"""Nodes: what can be written, what is wrong to write, and how texts match."""

import operator
import re
from collections import OrderedDict
from types import SimpleNamespace

import pytest

from dragoman.core.error import FaultError, bad_request
from dragoman.core.item import Audio, Image
from dragoman.engines.token.constraints import GrammarState, byte_compiler
from dragoman.formats.format import Grammar
from dragoman.program import (
    Model,
    Tool,
    assistant,
    audio,
    capture,
    gen,
    gen_audio,
    grammar,
    image,
    json,
    lark,
    match,
    one_or_more,
    optional,
    program,
    regex,
    repeat,
    role,
    select,
    sequence,
    substring,
    user,
    zero_or_more,
)
from dragoman.program import nodes as tree
from dragoman.program.grammar import to_gbnf, to_lark


def named(text: str) -> str:
    return text


WRONG = [
    (lambda: select("ab"), "takes a list of options"),
    (lambda: select([]), "no options"),
    (lambda: select([gen("x")]), r"gen\('x'\) is neither"),
    (lambda: regex("("), "unclosed group"),
    (lambda: regex(1), "is a text"),
    (lambda: lark("start: ("), "expected"),
    (lambda: lark('start: "a" & "b"'), "operators & and ~"),
    (lambda: json(schema={"not": {}}), "schema.not"),
    (lambda: json(schema=False), "allows nothing"),
    (lambda: json(schema="{"), "is no JSON"),
    (lambda: json(schema={"properties": {1: {}}}), "are texts"),
    (lambda: gen(1), "must be a text"),
    (lambda: gen(list_append=True), "needs the name"),
    (lambda: gen("x", max_tokens=0), "from 1"),
    (lambda: gen("x", temperature="hot"), "must be a number"),
    (lambda: gen("x", guarantee="sure"), "enforced, verified or best-effort"),
    (lambda: gen("x", attempts=0), "1 at least"),
    (lambda: gen("x", stop=""), "not empty"),
    (lambda: gen("x", stop_regex="("), "no regular expression"),
    (lambda: gen(save_stop_text=True), "needs a name"),
    (lambda: gen("x", n=0), "n is 0"),
    (lambda: gen("x", regex="a", stop="b"), "leave out stop"),
    (lambda: gen("x", tools=[named, named]), "two tools"),
    (lambda: gen("x", tools=named), "write tools="),
    (lambda: gen("x", tool_choice="f"), "one of auto"),
    (lambda: repeat("a", 2, 1), "cannot be"),
    (lambda: repeat(gen("x")), "cannot be repeated"),
    (lambda: grammar(gen("x") + "a"), "has no place"),
    (lambda: substring(""), "empty text"),
    (lambda: substring("a", chunk="line"), "word, character"),
    (lambda: substring("ab", chunk=lambda text: ["a"]), "the text itself"),
    (lambda: image(b"nothing"), "are no image"),
    (lambda: image(1), "path, bytes or an address"),
    (lambda: audio(b"nothing"), "are no sound"),
    (lambda: role("tool"), "the roles are"),
    (lambda: f"{gen('x'):>5}", "takes no format"),
    (lambda: list(gen("x")), "has no elements"),
    (lambda: list(Model("script")), "has no elements"),
    (lambda: Model("script") + "x", "outside a role"),
    (lambda: Model("script") + gen("x"), "outside a role"),
    (lambda: Model("script") + None, "return lm"),
    (lambda: operator.add(Model("script"), ["a"]), r"select\(\[…\]\)"),
    (lambda: Model("script") + b"a", "image"),
    (lambda: Model("script") + 1, r"str\(…\)"),
    (lambda: Model("script") + len, "@program"),
    (lambda: Model("script") + program(lambda lm: lm), "call the program"),
    (lambda: gen("x") + Model("script"), "lm \\+ node"),
    (lambda: "x" + Model("script"), "lm \\+ node"),
    (lambda: program(staticmethod(len)), "@staticmethod"),
    (lambda: json(separators=" "), "separators are two texts"),
    (lambda: lark("start: foo"), r"line 1, column 8: unknown name: \"foo\""),
    (lambda: lark('first: "a"'), "no start rule found"),
    (lambda: gen(tools=[Tool(named, approval="always")]), "has approval='always', and a program"),
    (lambda: gen(tools=[Tool(named, approval=bool)]), "has approval=<class 'bool'>"),
    (lambda: gen(tools=[Tool(named, after="user")]), "has after='user', and a program"),
]


def test_what_is_wrong_is_an_error_that_says_what_to_write() -> None:
    for write, words in WRONG:
        with pytest.raises((TypeError, ValueError), match=words):
            write()


def test_roles_and_what_may_stand_in_them() -> None:
    with user(), pytest.raises(ValueError, match="end `with user"), assistant():
        pass
    with user(), pytest.raises(ValueError, match="in the role user"):
        Model("script") + gen("x")
    with assistant(), pytest.raises(ValueError, match="with user"):
        Model("script") + image("http://example.com/x.png")


def test_nodes_in_f_strings_are_nodes_again_as_often_as_they_are_used() -> None:
    text = f"a {regex('[0-9]', name='n')} b {select(['x', 'y'], name='o')!s}"
    for _ in range(2):
        assert match(text, "a 1 b y").captures == {"n": "1", "o": "y"}
    assert match(text + "!", "a 1 b x!") is not None
    assert isinstance("a" + gen("x") + "b", tree.Join)
    assert match("a{} b".format(optional("c")), "ac b") is not None


def test_a_text_that_looks_like_a_tag_is_text() -> None:
    assert match("<<node 12345 0>>", "<<node 12345 0>>") is not None


def test_a_forgotten_node_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr(tree, "MOST_TAGGED", 1)
    monkeypatch.setattr(tree, "_tagged", OrderedDict())
    first, _ = f"{gen('x')}", f"{gen('y')}"
    with pytest.raises(ValueError, match="forgotten"):
        tree.node(first)


MATCHES = [
    (one_or_more("ab"), "abab", True),
    (zero_or_more("ab"), "", True),
    (optional("ab"), "abab", False),
    (sequence("a", 2, 3), "aaaa", False),
    (select([1, 2.5, "x"]), "2.5", True),
    (select(["", "a"]), "", True),
    (regex("^[a-z]+$"), "abc", True),
    (regex(r"\d+/\d"), "12/3", True),
    (lark('start: A b\nA: "x"\nb: /y+/'), "xyy", True),
    (lark('root ::= "a" [0-9]+'), "a12", True),
    ("<" + lark('start: A\nA: "x"') + lark('start: A\nA: "y"') + ">", "<xy>", True),
    (substring("the quick brown fox"), "quick brown", True),
    (substring("the quick brown fox"), "the fox", False),
    (substring("abc", chunk="character"), "bc", True),
    (substring("a,b,c", chunk=lambda text: ["a,", "b,", "c"]), "b,c", True),
    (gen("x", stop=".") + ".", "ab.", True),
    (gen("x") + "!", "ab!", True),
    (repeat(gen("x", stop=",", list_append=True) + ",", 1), "a,b,", True),
    (json(schema=list[int]), "[1, 2]", True),
    (json(schema=list[int]), "[1,2]", True),
    (json(schema=int), '"1"', False),
    (json(schema='{"type": "object", "properties": {"a": {}}}'), '{"a": null}', True),
    (json(), '{"any": [1]}', True),
    (json(schema=True), "1", True),
    (grammar("a" + optional("b")), "ab", True),
    ('quotes " and \\ and \n', 'quotes " and \\ and \n', True),
]


def test_texts_match_what_is_written() -> None:
    for node, text, expected in MATCHES:
        assert (match(node, text) is not None) is expected, (node, text)


def test_captures_of_a_match() -> None:
    node = one_or_more(regex("[0-9]+", name="n", list_append=True) + ",") + capture("end", "e")
    assert match(node, "1,22,end").captures == {"n": ["1", "22"], "e": "end"}
    assert match(node, "1,22") is None
    found = match(node, b"1,2", allow_partial=True)
    assert found.partial
    assert match("a" + regex("[a-z]+", name="x") + "z", "abcz")["x"] == "bc"
    with pytest.raises(KeyError):
        found["no"]


def test_a_stateless_program_is_a_grammar_that_may_come_back_to_itself() -> None:
    @program(stateless=True)
    def value(lm, most):
        return lm + select([regex(f"[0-9]{{{most}}}"), "(" + value(most) + ")"])

    assert match(value(2), "((12))") is not None
    assert match(value(2), "((12)") is None
    assert match(value(2), "((1", allow_partial=True) is not None
    assert match(value([1][0]), "(1)") is not None
    assert to_gbnf(value(2)) == 'root ::= f0\nf0 ::= (([0-9] {2}) | ("(" f0 ")"))'

    @program(stateless=True)
    def wrong(lm):
        lm += "x"

    with pytest.raises(TypeError, match="wrong gave nothing"):
        match(wrong(), "x")


GBNF = [
    (regex(r"[a-c\d]+x?"), 'root ::= ([a-c0-9] + "x" ?)'),
    (regex(r"(?:a|b)*?\.\w"), 'root ::= ( ( "a" | "b" ) * "." [a-zA-Z0-9_])'),
    (regex(r"\D.\n"), 'root ::= ([^0-9] [^\\n] "\\n")'),
    (regex(r"\p{L}"), None),
    (regex("(?i)a"), None),
    (json(), None),
    (substring("a b"), 'root ::= (s0 | s1 | s2)?\ns0 ::= "a" (s1)?\ns1 ::= " " (s2)?\ns2 ::= "b"'),
    (gen("x", stop="."), "root ::= ([^.] *)"),
    (
        lark('start: A b_c*\nA: "x" | /[0-9]+/  // hm\nb_c: ("y" A)?'),
        (
            "root ::= x0-r-start\n"
            "x0-r-start ::= x0-t-a x0-r-b-c *\n"
            'x0-t-a ::= "x" | ([0-9] +)\n'
            'x0-r-b-c ::= ( "y" x0-t-a ) ?'
        ),
    ),
    (lark('start: %json {"type": "null"}'), None),
    (lark("start: /\\p{L}/"), None),
    (
        lark("root ::= [^b] ."),
        "root ::= x0-r-start\nx0-t-r0 ::= ([^\\U00000062]) .\nx0-r-start ::= x0-t-r0",
    ),
]


def test_grammars_in_gbnf() -> None:
    for node, expected in GBNF:
        found = to_gbnf(node)
        assert (found and found.replace("( (", "((")) == (
            expected and expected.replace("( (", "((")
        ), node


def test_the_same_substring_twice_has_rules_for_both_in_gbnf() -> None:
    found = to_gbnf(substring("a b") + substring("a b"))
    heads = {line.partition(" ")[0] for line in found.splitlines()}
    assert set(re.findall(r"s\d", found)) == heads - {"root"}


def test_a_grammar_that_is_worn_out_is_compiled_anew(monkeypatch) -> None:
    """The copies of a matcher share states, of which there is a limit."""
    node = regex("[a-c]+x", name="n")
    assert match(node, "abx") is not None
    compiled = byte_compiler().compiled(Grammar(to_lark(node)))
    accept, tries = GrammarState.accept, []

    def worn(state, data):
        tries.append(state)
        if state.compiled is compiled:
            compiled.worn = True
            raise FaultError(bad_request("too large"))
        accept(state, data)

    monkeypatch.setattr(GrammarState, "accept", worn)
    assert match(node, "cbx").captures == {"n": "cbx"}
    assert len(tries) == 2

    def large(state, data):
        raise FaultError(bad_request("too large"))

    monkeypatch.setattr(GrammarState, "accept", large)
    with pytest.raises(FaultError, match="too large"):
        match(node, "cbx")


def test_a_type_adapter_has_a_schema_of_its_own() -> None:
    adapter = SimpleNamespace(json_schema=lambda: {"type": "array", "items": {"type": "integer"}})
    assert match(json(schema=adapter), "[1]") is not None
    assert match(json(schema=adapter), '["x"]') is None


def test_free_text_with_a_long_stop_is_no_part_of_a_grammar() -> None:
    node = gen("x", stop="<end>")
    with pytest.raises(ValueError, match=r"has no place for gen\('x'\)"):
        grammar(node)
    assert to_gbnf(node) is None


LABELS = [
    (image(b"BM"), "image(…)"),
    (audio(b"ID3"), "audio(…)"),
    (json("x"), "json(schema=…, name='x')"),
    (substring("a"), "substring(…)"),
    (grammar("text"), "literal('text')"),
    (select(["a", "b", "c", "d"]), "select(['a', 'b', 'c', …])"),
    (gen_audio("x"), "gen_audio('x')"),
]


def test_errors_call_a_node_as_it_was_written() -> None:
    assert [tree.label(node) for node, _ in LABELS] == [label for _, label in LABELS]


def test_images_and_sounds_are_known_by_their_first_bytes(tmp_path) -> None:
    starts = {
        "png": b"\x89PNG\r\n\x1a\n",
        "jpeg": b"\xff\xd8\xff",
        "gif": b"GIF89a",
        "webp": b"RIFF0000WEBP",
        "bmp": b"BM",
    }
    for kind, start in starts.items():
        part = image(start).part
        assert isinstance(part, Image)
        assert part.url.startswith(f"data:image/{kind};base64,")
    (tmp_path / "a.wav").write_bytes(b"RIFF0000WAVE")
    part = audio(tmp_path / "a.wav").part
    assert isinstance(part, Audio)
    assert (part.format, part.data) == ("wav", "UklGRjAwMDBXQVZF")
    assert [audio(each).part.format for each in (b"ID3x", b"\xff\xfbx")] == ["mp3", "mp3"]
    assert image("https://example.com/x.png", detail="low").part.detail == "low"


def test_tools_of_functions_patterns_and_grammars() -> None:
    def run(text: str) -> str:
        """Runs."""
        return text

    assert Tool.from_callable(run, name="go").spec.name == "go"
    assert Tool.from_regex("[0-9]+", run).spec.syntax == "regex"
    assert Tool.from_lark('start: "a"', run, description="x").spec.description == "x"
    assert Tool.from_grammar(select(["a", "b"]), run).spec.grammar == 'start: C1\nC1: "a" | "b"'
    assert Tool(run).spec.name == "run"


def test_a_stateless_method_comes_back_to_itself_and_is_not_another_objects() -> None:
    class Digits:
        def __init__(self, digit: str) -> None:
            self.digit = digit

        @program(stateless=True)
        def many(self, lm):
            return lm + select([self.digit, self.digit + self.many()])

    assert match(Digits("1").many(), "111") is not None
    both = Digits("1").many() + Digits("2").many()
    assert match(both, "1122") is not None
    assert match(both, "1111") is None
