"""How an answer is bound to a grammar: the strongest means of the engine, and what follows where it
has none.
"""

import time
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.core.error import Fault, FaultError, unsupported
from dragoman.core.interfaces import ANYONE, Caller, Capabilities
from dragoman.core.interfaces import Model as Listed
from dragoman.core.item import CustomToolCall, Message, Refusal, Text, Token
from dragoman.core.request import JSONObject, JSONSchema, NamedTool
from dragoman.core.response import TEXT_CONSTRAINTS, Response
from dragoman.engines.profiles import BY_NAME
from dragoman.program import (
    Model,
    ProgramError,
    assistant,
    gen,
    json,
    lark,
    regex,
    select,
    substring,
    user,
)
from tests.agent.stage import Model as Stage

MOOD = select(["friendly", "rude"], name="mood")
YEAR = regex("[0-9]{4}", name="year")
DATA = json("data", schema={"type": "object", "properties": {"a": {"type": "integer"}}})


class Server(Stage):
    """A scripted engine with the means of some kind of server."""

    def __init__(
        self, kind: str, *answers: Any, guarantees: Sequence[str] | None = ("enforced",)
    ) -> None:
        super().__init__(*answers)
        profile = BY_NAME[kind]
        self.known = Capabilities(
            wire="chat",
            constraints=profile.constraints,
            continues=profile.continues,
            guarantees=profile.guarantees,
        )
        self.guarantees = guarantees

    async def capabilities(self, model: str) -> Capabilities:
        return self.known

    async def models(self, caller: Caller = ANYONE) -> tuple[Listed, ...]:
        known = self.guarantees
        extra = None if known is None else {"models": {"guarantees": list(known)}}
        return (Listed("m", extra=extra),)


async def run(engine: Stage, *nodes: object, begin: str = "") -> Model:
    async with user():
        lm = await Model(engine).run("Hello!")
    async with assistant():
        return await lm.run(begin, *nodes)


def fields(engine: Stage) -> dict[str, Any]:
    """What the last request has beside the protocol."""
    return (engine.asked[-1].extra or {}).get("chat", {})


@pytest.mark.parametrize(
    ("kind", "node", "answer", "expected"),
    [
        ("dragoman", MOOD, "rude", {"guided_choice": ["friendly", "rude"]}),
        ("dragoman", YEAR, "1815", {"guided_grammar": "start: T1\nT1: /(?:[0-9]{4})/"}),
        ("vllm", MOOD, "rude", {"structured_outputs": {"choice": ["friendly", "rude"]}}),
        ("vllm", YEAR, "1815", {"structured_outputs": {"regex": "(?:[0-9]{4})"}}),
        ("sglang", YEAR, "1815", {"regex": "(?:[0-9]{4})"}),
        ("llama.cpp", MOOD, "rude", {"grammar": 'root ::= ("friendly" | "rude")'}),
        ("llama.cpp", YEAR, "1815", {"grammar": "root ::= ([0-9] {4})"}),
    ],
)
async def test_a_field_of_the_server_enforces_a_grammar(kind, node, answer, expected) -> None:
    engine = Server(kind, answer)
    lm = await run(engine, node)
    (name,) = lm.captures
    assert (lm[name], lm.guarantee(name)) == (answer, "enforced")
    assert fields(engine) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("dragoman", {"guided_grammar": 'start: "It is " C1\nC1: "friendly" | "rude"'}),
        ("vllm", {"structured_outputs": {"choice": ["It is friendly", "It is rude"]}}),
        ("llama.cpp", {"grammar": 'root ::= "It is " ("friendly" | "rude")'}),
    ],
)
async def test_text_that_stands_there_already_is_part_of_the_grammar(kind, expected) -> None:
    engine = Server(kind, "It is rude")
    lm = await run(engine, MOOD, ".", begin="It is ")
    assert fields(engine) == expected
    assert len(engine.asked[-1].items) == 1  # no other turn begins
    assert lm.items[-1] == Message("assistant", "It is rude.")
    assert lm["mood"] == "rude"


async def test_json_is_asked_for_by_the_format_of_the_protocol() -> None:
    for kind in ("openai", "ollama", "vllm", "llama.cpp", "dragoman"):
        engine = Server(kind, '{"a": 1}')
        assert (await run(engine, DATA)).guarantee("data") in ("enforced", "verified")
        assert isinstance(engine.asked[-1].format, JSONSchema)
    engine = Server("openai", "[1]")
    assert (await run(engine, json("any")))["any"] == "[1]"
    assert isinstance(engine.asked[-1].format, JSONObject)


async def test_on_a_server_with_schemas_alone_a_choice_is_an_object_with_one_value() -> None:
    engine = Server("openai", '{"value": "rude"}')
    engine.known = Capabilities(constraints={"schema": "format"})
    lm = await run(engine, MOOD)
    assert (lm["mood"], lm.guarantee("mood"), lm.items[-1].text) == ("rude", "enforced", "rude")
    asked = engine.asked[-1].format
    assert isinstance(asked, JSONSchema)
    assert asked.schema["properties"]["value"]["enum"] == ["friendly", "rude"]
    engine = Server("openai", '{"value": "1815"}')
    engine.known = Capabilities(constraints={"schema": "format"})
    assert (await run(engine, YEAR))["year"] == "1815"


async def test_a_custom_tool_takes_a_grammar_where_the_server_has_those() -> None:
    engine = Server("openai", CustomToolCall("c1", "answer", "1815"))
    lm = await run(engine, YEAR, begin="In ")
    assert (lm["year"], lm.guarantee("year")) == ("1815", "enforced")
    assert [tool.grammar for tool in engine.asked[-1].tools] == ["(?:[0-9]{4})"]
    assert engine.asked[-1].tool_choice == NamedTool("answer", "custom")
    assert lm.items[-1] == Message("assistant", "In 1815")
    engine = Server("openai", CustomToolCall("c1", "answer", "aab"))
    assert (await run(engine, lark('start: "a"* "b"', "x")))["x"] == "aab"


async def test_a_listing_that_promises_nothing_is_believed() -> None:
    engine = Server("dragoman", "rude", guarantees=["best-effort"])
    assert (await run(engine, MOOD)).guarantee("mood") == "verified"
    assert fields(engine) == {}
    engine = Server("dragoman", "rude", guarantees=["enforced"])
    assert (await run(engine, MOOD)).guarantee("mood") == "enforced"


def test_a_server_of_ours_before_an_engine_that_promises_nothing_promises_nothing(
    serve_engine,
) -> None:
    engine = Stage("It is rude", "very", "rude")
    with serve_engine(engine) as url:
        lm = Model(url)
        with user():
            lm += "Hello!"
        with assistant():
            said = lm + "It is " + gen("x")
            chosen = lm + MOOD
            with pytest.raises(ProgramError, match="cannot be enforced"):
                _ = lm + json("data", schema={"type": "object"}, guarantee="enforced")
        lm.close()
    assert (said["x"], chosen["mood"], chosen.guarantee("mood")) == ("rude", "rude", "verified")
    assert not any(asked.extra for asked in engine.asked)


async def test_a_model_that_is_not_listed_gets_only_the_constraints_that_hold_for_any() -> None:
    for kind, sure in (("dragoman", "verified"), ("vllm", "enforced")):
        engine = Server(kind, "rude", guarantees=None)
        assert (await run(engine, MOOD)).guarantee("mood") == sure, kind
    engine = Server("dragoman", "It is rude", guarantees=None)
    assert (await run(engine, gen("x"), begin="It is ")).items[-1].text == "It is rude"
    assert fields(engine) == {}  # a server behind it may not take those that continue
    with pytest.raises(ProgramError, match="cannot be enforced by m"):
        bound = select(["a", "b"], guarantee="enforced")
        await run(Server("dragoman", guarantees=None), bound)


@pytest.mark.parametrize(
    ("node", "answer", "value"),
    [
        (MOOD, "Rude, I would say.", "rude"),
        (MOOD, ' "friendly" ', "friendly"),
        (YEAR, "It was in 1815, or 1816.", "1815"),
        (DATA, 'Here it is:\n```json\n{"a": 2}\n```', '{"a": 2}'),
        (DATA, 'So {"a": 3} it is.', '{"a": 3}'),
        (json("data", schema={"properties": {"a": {}, "b": {}}}), '{"b":1,"a":2}', '{"b":1,"a":2}'),
        (substring("one two three", name="s"), "two three", "two three"),
    ],
)
async def test_without_means_the_answer_is_searched_for_what_matches(node, answer, value) -> None:
    lm = await run(Stage(answer), node)
    (name,) = lm.captures
    assert (lm[name], lm.guarantee(name)) == (value, "verified")
    assert lm.items[-1].text == value


async def test_a_long_answer_is_searched_in_linear_time() -> None:
    began = time.process_time()
    lm = await run(Stage("```\n" + " " * 100_000 + '\nSo {"a": 3} it is.'), DATA)
    assert lm["data"] == '{"a": 3}'
    assert time.process_time() - began < 2  # 0.1 s, where a quadratic search takes 11 s


async def test_an_answer_that_does_not_match_is_asked_for_again_with_a_hint() -> None:
    engine = Stage("Who knows?", "Perhaps.", "friendly")
    lm = await run(engine, MOOD, begin="It is ")
    assert (lm["mood"], lm.usage.round_trips, lm.usage.input_tokens) == ("friendly", 3, 30)
    assert [len(request.items) for request in engine.asked] == [2, 3, 3]
    assert engine.asked[2].items[-1].text.endswith("friendly, rude")
    assert str(lm).count("Answer with") == 0


@pytest.mark.parametrize(("node", "of"), [(YEAR, "regex('[0-9]{4}', name='year')"), (MOOD, "mood")])
async def test_attempts_are_bounded_and_the_error_names_node_engine_and_answer(node, of) -> None:
    engine = Stage("Who knows?")
    with pytest.raises(ProgramError) as raised:
        await run(engine, node)
    assert len(engine.asked) == 4
    words = raised.value.fault.message
    assert of in words
    assert "script (Model)" in words  # the engine's class, above
    assert "Who knows?" in words
    engine = Stage("Who knows?")
    with pytest.raises(ProgramError):
        await run(engine, regex("[0-9]", attempts=2))
    assert len(engine.asked) == 2


async def test_best_effort_takes_any_answer_and_says_so() -> None:
    engine = Stage("Who knows?")
    lm = await run(engine, select(["a", "b"], name="x", guarantee="best-effort"))
    assert (lm["x"], lm.guarantee("x"), len(engine.asked)) == ("Who knows?", "best-effort", 1)


async def test_enforced_that_cannot_be_had_is_an_error_before_anything_is_asked() -> None:
    engine = Stage("friendly")
    with pytest.raises(ProgramError, match=r"select\(\['a'\], name='x'\) cannot be enforced by"):
        await run(engine, select(["a"], name="x", guarantee="enforced"))
    assert engine.asked == []


async def test_a_means_that_the_server_refuses_is_given_up_for_the_next() -> None:
    refusal = unsupported("no such field", "structured_outputs")
    engine = Server("vllm", refusal, refusal, refusal, "rude")
    assert (await run(engine, MOOD)).guarantee("mood") == "verified"
    engine = Server("vllm", refusal)
    with pytest.raises(Exception, match="no such field"):
        await run(engine, select(["a"], name="x", guarantee="enforced"))


async def test_json_is_asked_for_in_words_where_its_field_is_ignored_or_refused() -> None:
    engine = Stage("Well …", 'Sure: {"a": 1}')
    lm = await run(engine, DATA)
    assert (lm["data"], lm.guarantee("data")) == ('{"a": 1}', "verified")
    assert [request.format is not None for request in engine.asked] == [True, True]
    assert engine.asked[1].items[-1].text.endswith('"integer"}},"additionalProperties":false}')
    refused = unsupported("not available", "response_format")
    for kind in ("openai", "generic"):
        engine = Server(kind, refused, '{"a": 1}')
        lm = await run(engine, json("data", schema={"type": "object"}, attempts=1))
        assert (lm["data"], lm.guarantee("data")) == ('{"a": 1}', "verified")
        assert engine.asked[-1].format is None
        assert "JSON of this schema" in engine.asked[-1].items[-1].text
    engine = Server("generic", unsupported("no", "response_format"), unsupported("never", "model"))
    with pytest.raises(Exception, match="never"):
        await run(engine, DATA)


async def test_a_refused_means_is_no_attempt() -> None:
    refusal = unsupported("no such field", "regex")
    engine = Server("sglang", refusal, "1815")
    engine.known = replace(engine.known, constraints={"regex": "regex"})
    lm = await run(engine, regex("[0-9]{4}", "year", attempts=1))
    assert (lm["year"], lm.guarantee("year")) == ("1815", "verified")


async def test_what_is_found_in_an_answer_is_verified_and_not_enforced() -> None:
    engine = Server("openai", CustomToolCall("c1", "answer", "the year 1815."))
    assert (await run(engine, YEAR)).guarantee("year") == "verified"


async def test_enforced_that_a_server_does_not_keep_is_an_error() -> None:
    engine = Server("sglang", "Well")
    with pytest.raises(ProgramError, match=r"none of [0-9]+ answers of .* matches"):
        await run(engine, regex("[0-9]", "x", guarantee="enforced"))
    assert len(engine.asked) == 4
    assert isinstance(engine.asked[-1].format, JSONSchema)  # the last of its means


async def test_a_server_that_ignores_its_field_is_found_out() -> None:
    engine = Server("sglang", "Well, ", "1815 it was")
    lm = await run(engine, YEAR)
    assert lm["year"] == "1815"
    assert lm.guarantee("year") == "verified"


async def test_the_option_that_the_model_held_for_likeliest_is_chosen_where_it_says_none() -> None:
    tops = (Token("X", -0.1), Token(" fri", -2.0), Token("ru", -1.0))
    said = Message("assistant", (Text("X.", tokens=(Token("X", -0.1, top=tops),)),))
    lm = await run(Stage(said), MOOD)
    assert (lm["mood"], lm.guarantee("mood")) == ("rude", "verified")


async def test_an_answer_that_is_cut_off_is_kept_and_not_asked_for_again() -> None:
    cut = Response(
        id="1",
        created_at=0,
        model="m",
        status="incomplete",
        output=(Message("assistant", "18"),),
        reasons=("length",),
    )
    engine = Server("vllm", cut)
    lm = await run(engine, YEAR)
    found = lm.capture("year")
    assert (found.value, found.end, found.guarantee) == ("18", "length", "best-effort")
    assert len(engine.asked) == 1


async def test_a_repeated_beginning_of_the_turn_is_removed() -> None:
    lm = await run(Stage("It is so, yes."), gen("rest", stop=","), begin="It is ")
    assert lm["rest"] == "so"
    lm = await run(Stage("It is rude"), MOOD, begin="It is ")
    assert lm.items[-1].text == "It is rude"
    with user():
        lm += "?"
    async with assistant():
        stream = lm.stream("It is ", gen("more"))
        assert "".join([str(delta) async for delta in stream]) == "It is rude"


@pytest.mark.parametrize("blank", ["", "\n\n"])
async def test_white_space_before_a_repetition_is_left_out_of_a_stream(blank) -> None:
    lm = Model(Server("openai", f"{blank}It is 12"), model="m")
    with user():
        lm += "?"
    async with assistant():
        stream = lm.stream("It is ", gen("x"))
        assert "".join([str(delta) async for delta in stream]) == "It is 12"


def ended(text: str, reason: Any) -> Response:
    said = (Message("assistant", text),)
    about: dict[str, Any] = {"status": "incomplete" if reason == "length" else "completed"}
    return Response(id="1", created_at=0, model="m", output=said, reasons=(reason,), **about)


ANEW = "It is 12. So be it. Really"


@pytest.mark.parametrize("blank", ["", " ", "\n\n"])
async def test_a_stop_within_a_repetition_is_none(blank) -> None:
    """Servers know of no repetition: they end it at the stop."""
    first = ended(f"{blank}It is 12", "stop")
    engine = Server("openai", first, f"{blank}{ANEW}, yes.", f"{blank}{ANEW}, no.")
    lm = await run(engine, gen("x", stop="."), ". ", gen("y", stop=","), begin="It is 12. So ")
    assert (lm["x"], lm["y"]) == ("be it", "Really")
    assert [request.sampling.stop for request in engine.asked] == [(".",), None, None]


async def test_a_stop_that_begins_a_repetition_is_none() -> None:
    engine = Server("openai", ended("", "stop"), '"Yes" indeed')
    lm = await run(engine, gen("x", stop='"'), begin='"')
    assert lm["x"] == "Yes"


async def test_what_only_looks_like_a_part_of_a_repetition_is_the_answer() -> None:
    engine = Server("openai", ended("It is 12", "stop"), "It is 12. Or 13.")
    lm = await run(engine, gen("x", stop="."), begin="It is 12. So ")
    assert lm["x"] == "It is 12"
    engine = Server("openai", ended("It", "length"), ended("It was", "length"))
    lm = await run(engine, gen("x", max_tokens=1), begin="It is 12. So ")
    assert (lm["x"], lm.capture("x").end) == ("It", "length")
    assert [request.max_output_tokens for request in engine.asked] == [1, 14]


@pytest.mark.parametrize("whole", [ended(ANEW, "length"), ended("It is", "length"), ANEW])
async def test_a_limit_within_a_repetition_is_an_error_that_says_so(whole) -> None:
    engine = Server("openai", ended("It", "length"), whole)
    with pytest.raises(ProgramError, match="anew, and max_tokens ended it too soon"):
        await run(engine, gen("x", max_tokens=1), begin="It is 12. So ")
    engine = Server("openai", ended("It", "length"), ANEW)
    lm = await run(engine, gen("x", max_tokens=9, stop="."), begin="It is 12. So ")
    assert lm["x"] == "be it"


async def test_a_repetition_that_was_cut_off_has_nothing_that_matches() -> None:
    lm = await run(Stage(ended("It is 1867", "length")), YEAR, begin="It is 1867. And ")
    assert (lm["year"], lm.capture("year").end) == ("", "length")


def test_every_constraint_of_a_profile_is_known() -> None:
    known = {*TEXT_CONSTRAINTS, "gbnf", "custom"}
    for profile in BY_NAME.values():
        assert set(profile.constraints or ()) <= known


async def test_json_in_a_turn_that_has_begun_is_asked_for_without_what_stands_there() -> None:
    """Some servers bind no answer that has begun."""
    refusal = unsupported("no such thing", "response_format")
    engine = Server("openai", refusal, '{"a": 1}')
    lm = await run(engine, DATA, begin="So: ")
    assert lm.guarantee("data") == "enforced"
    assert [len(request.items) for request in engine.asked] == [2, 1]
    assert lm.items[-1].text == 'So: {"a": 1}'


async def test_enforced_that_every_means_refuses_is_the_servers_refusal() -> None:
    engine = Server("sglang", unsupported("no such field", "regex"))
    with pytest.raises(FaultError, match="no such field"):
        await run(engine, regex("[0-9]", "x", guarantee="enforced"))


async def test_another_fault_is_no_reason_to_ask_in_another_way() -> None:
    engine = Server("sglang", Fault("rate_limited", "Too many.", "upstream"))
    with pytest.raises(FaultError, match="Too many"):
        await run(engine, YEAR)
    assert len(engine.asked) == 1


async def test_a_server_that_takes_no_stop_is_asked_without_and_it_is_found_here() -> None:
    engine = Server("openai", unsupported("stop is not supported", "stop"), "one; two", "a; b")
    lm = await run(engine, gen("x", stop=";"), gen("y", stop=";"))
    assert (lm["x"], lm["y"]) == ("one", "a")
    assert [request.sampling.stop for request in engine.asked] == [(";",), None, None]


async def test_options_that_begin_alike_are_not_chosen_by_probability() -> None:
    top = (Token("fr", -0.1), Token(" ", -0.2), Token("z", None))
    said = Message("assistant", (Text("X.", tokens=(Token("X", -0.1, top=top),)),))
    with pytest.raises(ProgramError):
        await run(Stage(said), select(["friendly", "free"], attempts=1))


async def test_a_choice_that_is_refused_is_on_the_capture() -> None:
    lm = await run(Stage(Message("assistant", (Refusal("I will not."),))), MOOD)
    found = lm.capture("mood")
    assert (found.value, found.end, found.refusal) == ("", "refused", "I will not.")
    assert "I will not." in str(lm)
    assert "[refused] I will not." in lm.html()


async def test_a_space_is_left_to_the_model_in_a_message_of_parts_too() -> None:
    engine = Server("vllm", Message("assistant", (Refusal("No. "),)), "fine")
    lm = await run(engine, gen("x"), "But ", gen("y"))
    assert lm["y"] == "fine"
    asked = engine.asked[1].items[-1]
    assert (asked.status, asked.parts[-1].text) == ("in_progress", "But")
