"""The model of a program: what it says, captures and remembers, and how it is run."""

import asyncio
import os
import sys
import threading
from types import SimpleNamespace

import pytest

from dragoman import connect
from dragoman.core.event import Delta, ItemAdded, PartAdded, Started
from dragoman.core.item import Message, Reasoning, Refusal, Text, Thought
from dragoman.engines.script import Script
from dragoman.program import (
    Model,
    assistant,
    block,
    capture,
    gen,
    gen_audio,
    grammar,
    image,
    program,
    regex,
    role,
    select,
    system,
    token_limit,
    user,
    with_temperature,
)
from tests.agent.stage import Model as Stage
from tests.agent.stage import call


def question(lm: Model, text: str = "Hello!") -> Model:
    with user():
        return lm + text


# ---- roles, blocks, text ---------------------------------------------------------------------


def test_texts_of_a_block_are_one_message_and_another_block_is_another() -> None:
    lm = Model(Stage("x"))
    with system():
        lm += "Be"
        lm += " brief."
    with user():
        lm += "One."
    with user():
        lm += "Two."
    with role("assistant"):
        pass  # says nothing, and is no message
    assert lm.items == (
        Message("system", "Be brief."),
        Message("user", "One."),
        Message("user", "Two."),
    )
    assert str(lm) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nOne.<|im_end|>\n<|im_start|>user\nTwo.<|im_end|>\n"
    )
    assert len(lm) == len(str(lm))
    assert f"{lm}" == str(lm)


def test_an_open_turn_has_no_end_in_the_text_of_the_model() -> None:
    with user():
        lm = Model(Stage("x")) + "Well"
        assert str(lm) == "<|im_start|>user\nWell"


def test_appending_changes_no_model() -> None:
    first = question(Model(Stage("x")))
    with assistant():
        second = first + gen("x")
    assert "x" not in first
    assert len(first.items) == 1
    assert second["x"] == "x"


def test_a_block_is_captured_between_its_opener_and_closer() -> None:
    lm = Model(Stage("x"))
    with assistant():
        lm += "A "
        with block("inner", opener="<b>", closer="</b>"):
            lm += "one "
            lm += gen("x")
        assert lm["inner"] == "one x"
        lm += "!"
    assert lm["inner"] == "one x"
    assert lm.items[0].text == "A <b>one x</b>!"


async def test_a_role_that_two_tasks_use_is_another_block_in_each() -> None:
    role_, arrived = user(), asyncio.Event()
    lm = Model(Stage("x"))

    async def first() -> Model:
        async with role_:
            found = lm + "one "
            arrived.set()
            await asyncio.sleep(0)
            return found + "turn"

    async def second() -> None:
        await arrived.wait()
        async with role_:
            assert [item.text for item in (lm + "other").items] == ["other"]

    found, _ = await asyncio.gather(first(), second())
    assert [item.text for item in found.items] == ["one turn"]


def test_the_marks_of_a_block_are_deltas_too() -> None:
    lm = Model(Stage("x"))
    with assistant():
        with block("inner", opener="<b>", closer="</b>"):
            inside = list(lm.stream("one ", gen("x")))
        after = list(inside[-1].model.stream("!"))
    assert [str(delta) for delta in inside] == ["<b>", "one ", "x", ""]
    assert [str(delta) for delta in after] == ["</b>", "!"]
    assert after[-1].model.items[0].text == "<b>one x</b>!"


def test_a_block_that_ends_with_its_role_ends_in_that_turn() -> None:
    lm = Model(Stage("x"))
    with user(), block("all", closer="."):
        lm += "Hello"
    with assistant():
        lm += "Hi"
    assert lm["all"] == "Hello"
    assert [item.text for item in lm.items] == ["Hello.", "Hi"]


async def test_roles_of_tasks_and_threads_are_their_own() -> None:
    lm = Model(Stage("x"))
    inside = asyncio.Event()

    async def one() -> Model:
        async with user():
            inside.set()
            await asyncio.sleep(0)
            return lm + "from one"

    async def other() -> Model:
        await inside.wait()
        async with system():
            return lm + "from other"

    found = await asyncio.gather(one(), other())
    assert [model.items[0].role for model in found] == ["user", "system"]
    errors = []

    def work() -> None:
        try:
            lm + "outside"
        except ValueError as error:
            errors.append(str(error))

    with user():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert "outside a role" in errors[0]


# ---- captures --------------------------------------------------------------------------------


def test_captures_are_read_set_and_removed_on_a_copy() -> None:
    lm = Model(Stage("x")).set("k", 1)
    assert lm["k"] == 1
    assert lm.get("k") == 1
    assert lm.get("no", 2) == 2
    assert "k" in lm
    assert "k" not in lm.remove("k")
    assert lm.captures == {"k": 1}
    with pytest.raises(KeyError, match="there is 'k'"):
        lm["no"]
    with pytest.raises(TypeError, match=r"lm = lm.set\('k', …\)"):
        lm["k"] = 2
    assert bool(Model(Stage("x")))


def test_appended_captures_are_a_list() -> None:
    lm = question(Model(Script("a", "b")))
    for _ in range(3):
        with assistant():
            lm += gen("said", list_append=True)
    assert lm["said"] == ["a", "b", "a"]
    assert lm.capture("said").value == "a"
    assert lm.log_prob("said") == [None, None, None]


def test_captures_nest_and_inner_names_are_captured_too() -> None:
    lm = question(Model(Script("so", "1815")))
    with assistant():
        lm += capture("It was " + gen("how") + " in " + regex("[0-9]+", "year"), "all")
        lm += capture(" End", "end")
    assert lm.captures == {"how": "so", "year": "1815", "all": "It was so in 1815", "end": " End"}


def test_a_capture_around_tools_has_all_text_of_the_turn() -> None:
    def now() -> str:
        """The time."""
        return "noon"

    lm = question(Model(Stage([Message("assistant", "Wait. "), call("now")], "It is noon.")))
    with assistant():
        lm += "Well. " + capture("So: " + gen("x", tools=[now]), "all")
    assert lm["all"] == "So: Wait. It is noon."


def test_a_capture_knows_its_tokens_and_usage_adds_up(pocket) -> None:
    lm = question(Model(pocket, temperature=0))
    with assistant():
        lm += "It is " + select(["yes", "no"], "x") + gen("y", max_tokens=3)
    tokens = lm.capture("y").tokens
    assert "".join(token.text for token in tokens) == lm["y"]
    assert lm.log_prob("y") == sum(token.logprob for token in tokens)
    assert lm.log_prob("x") < 0
    assert lm.usage.round_trips == 2
    assert lm.usage.output_tokens >= 3
    assert len(lm.tokens) >= 4


def test_save_and_load_give_the_same_model(tmp_path) -> None:
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    stage = Stage(call("add", a=1, b=2), "3", "4")
    lm = question(Model(stage))
    with assistant():
        lm += "So: " + gen("sum", tools=[add]) + gen("l", list_append=True)
    lm.save(tmp_path / "program.json")
    again = Model(stage).load(tmp_path / "program.json")
    assert Model(stage).load(str(tmp_path / "program.json")).captures == again.captures
    assert str(again) == str(lm)
    assert (again.captures, again.items, again.usage) == (lm.captures, lm.items, lm.usage)


def test_sound_is_bytes_again_when_a_program_is_loaded() -> None:
    lm = Model(Stage("x")).set("sound", b"RIFF\xff").set("n", 1)
    assert lm.load(lm.dump()).captures == {"sound": b"RIFF\xff", "n": 1}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"version": 2}', "version 2"),
        (b"[]", "no saved program"),
        (b"{", "no saved program"),
        (b'{"version": 1}', "no saved program"),
        (b'{"version": 1, "turns": 3, "captures": {}, "usage": {}}', "no saved program"),
        (b'{"version": 1, "a": ' + b"[" * 100_000, "no saved program"),
        (b'{"version": 1, "turns": [{"role": "root", "pieces": []}]}', "no saved program"),
    ],
)
def test_what_is_no_saved_program_is_a_value_error(data, words) -> None:
    with pytest.raises(ValueError, match=words):
        Model(Stage("x")).load(data)


def test_half_a_surrogate_pair_is_saved_as_far_as_it_can_be(tmp_path) -> None:
    """Some servers stream one; the rest of the program is not lost for it."""
    lm = question(Model(Stage("a \ud83d b")))
    with assistant():
        lm += gen("said")
    lm.save(tmp_path / "program.json")
    assert lm.load(tmp_path / "program.json")["said"] == "a \ufffd b"


def test_a_pipe_is_no_saved_program(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is no file"):
        Model(Stage("x")).load(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        Model(Stage("x")).load(tmp_path / "none")


# ---- settings --------------------------------------------------------------------------------


def test_settings_of_the_model_apply_where_the_node_has_none() -> None:
    stage = Stage("x")
    lm = question(Model(stage, temperature=0.5, max_tokens=9))
    with assistant():
        lm += gen(temperature=0)
        lm += with_temperature(gen(), 0.7)
        lm = lm.with_sampling_params(top_p=0.3, temperature=None) + token_limit(gen(), 5)
        lm += gen(effort="low", min_p=0.1, top_k=4)
    asked = [(r.sampling.temperature, r.max_output_tokens, r.sampling.top_p) for r in stage.asked]
    assert asked == [(0, 9, None), (0.7, 9, None), (None, 5, 0.3), (None, 9, 0.3)]
    assert stage.asked[3].reasoning.effort == "low"
    assert (stage.asked[3].sampling.min_p, stage.asked[3].sampling.top_k) == (0.1, 4)
    with pytest.raises(TypeError, match="no setting 'heat'"):
        lm.with_sampling_params(heat=1)
    with pytest.raises(TypeError, match="no setting temprature; did you mean temperature"):
        Model("script", temprature=0)
    with pytest.raises(ValueError, match="script has no option heat"):
        Model("script", heat=0)
    with pytest.raises(TypeError, match="temperature: Expected `float "):
        Model("script", temperature="0")
    with pytest.raises(TypeError, match="max_output_tokens: Expected `int "):
        lm.with_sampling_params(max_tokens="5")
    Model("script", logit_bias={50256: -100})  # as for OpenAI's SDK


def test_limits_around_a_program_apply_to_what_it_generates() -> None:
    @program
    def answer(lm):
        return lm + gen() + gen(max_tokens=7)

    stage = Stage("x")
    with assistant():
        Model(stage, temperature=0.5) + token_limit(with_temperature(answer(), 0.7), 3) + gen()
    asked = [(request.sampling.temperature, request.max_output_tokens) for request in stage.asked]
    assert asked == [(0.7, 3), (0.7, 7), (0.5, None)]


def test_a_model_is_made_of_whatever_connect_takes_and_of_clients() -> None:
    for target in ("script", Script("Hi"), connect(Script("Hi")), connect(Script("Hi")).sync):
        lm = question(Model(target))
        with assistant():
            assert (lm + gen("x"))["x"]
    assert "captures" in repr(Model(Stage("x")))


def test_probabilities_are_not_asked_for_where_they_are_not_wanted() -> None:
    stage = Stage("x")
    with assistant():
        Model(stage, logprobs=False) + gen()
    assert stage.asked[0].sampling.logprobs is None


# ---- tools -----------------------------------------------------------------------------------


def test_a_tool_that_is_forced_by_name_is_asked_for_once() -> None:
    def now() -> str:
        """The time."""
        return "noon"

    stage = Stage(call("now"), "It is noon.")
    lm = question(Model(stage))
    with assistant():
        deltas = list(lm.stream(gen("x", tools=[now], tool_choice="now")))
    assert [(each.kind, each.text) for each in deltas if each.kind in ("call", "result")] == [
        ("call", "{}"),
        ("result", "noon"),
    ]
    assert stage.asked[0].tool_choice.name == "now"
    assert stage.asked[1].tool_choice is None
    assert "<tool=now>{}</tool>" in str(deltas[-1].model)


def test_calls_without_an_end_are_stopped_and_the_error_names_the_limit() -> None:
    def now() -> str:
        """The time."""
        return "noon"

    with assistant(), pytest.raises(Exception, match="after 3 rounds"):
        Model(Stage(call("now"))) + gen("x", tools=[now], max_rounds=3)


# ---- streams and batches ---------------------------------------------------------------------


async def test_a_stream_that_is_closed_stops_the_answer() -> None:
    never = asyncio.Event()
    lm = Model(Script([*opening("one"), never.wait]))
    async with assistant(), lm.stream(gen("x")) as stream:
        first = await anext(stream)
        assert str(first) == "one"
    assert stream.model["x"] == "one"


def opening(text: str) -> list:
    message = Message("assistant", (), "msg_1")
    return [
        Started("1", 0, "m"),
        ItemAdded(0, message),
        PartAdded(0, 0, Text("")),
        Delta(0, 0, "text", text),
    ]


async def test_a_stream_has_the_roles_of_where_it_was_made() -> None:
    lm = Model(Stage("yes"))
    async with assistant():
        stream, waiting = lm.stream(gen("x")), lm.run(gen("y"))
    assert [str(delta) async for delta in stream] == ["yes", ""]
    assert (await waiting)["y"] == "yes"


def test_errors_of_a_stream_reach_its_reader() -> None:
    with user(), pytest.raises(ValueError, match="only the assistant generates"):
        list(Model(Stage("x")).stream("Well: ", gen()))


def test_a_batch_waits_for_all_and_shows_a_bar(capsys) -> None:
    lm = question(Model(Stage("x")))
    with assistant():
        found = lm.batch([gen(f"n{n}") for n in range(4)], at_once=2, progress=True).wait()
    assert [list(each.captures) for each in found] == [["n0"], ["n1"], ["n2"], ["n3"]]
    assert capsys.readouterr().err.rstrip().endswith("] 4/4")


# ---- programs --------------------------------------------------------------------------------


@program
def turn(lm, text):
    with user():
        lm += f"""Question:
        {text}
          (indented)"""
    with assistant():
        lm += gen("answer")
    return lm


class Base:
    @program
    def ask(self, lm, text):
        with user():
            return (
                lm
                + f"""Base:
            {text}"""
            )


class Heir(Base):
    @program
    def ask(self, lm, text):
        lm += super().ask(text)
        with user():
            return (
                lm
                + """Heir
            too"""
            )


def test_a_method_may_call_that_of_its_base() -> None:
    lm = Model(Stage("x")) + Heir().ask("hello")
    assert [item.text for item in lm.items] == ["Base:\nhello", "Heir\ntoo"]


class Asker:
    def __init__(self, name: str) -> None:
        self.name = name

    @program
    def ask(self, lm, text="Who?"):
        return lm + turn(f"{text} I am {self.name}.")

    @program
    async def later(self, lm):
        async with user():
            lm = await lm.run(self.name)
        async with assistant():
            return await lm.run(gen("answer"))


def test_a_program_is_a_node_and_its_texts_are_dedented() -> None:
    lm = Model(Stage("x")) + turn("a\n b")
    assert lm.items[0].text == "Question:\na\n b\n  (indented)"
    assert turn(Model(Stage("y")), "b")["answer"] == "y"


async def test_methods_and_asynchronous_programs_are_programs() -> None:
    asker = Asker("Ada")
    lm = await Model(Stage("x")).run(asker.ask(text="Hm?"))
    assert lm.items[0].text.endswith("Hm? I am Ada.\n  (indented)")
    lm = await lm.run(asker.later())
    assert lm.items[-2].text == "Ada"
    stream = lm.stream(asker.ask())
    kinds = [delta.kind async for delta in stream]
    assert kinds == ["literal", "text", "done"]
    assert stream.model["answer"] == "x"


def test_a_program_that_forgets_its_model_is_named() -> None:
    @program
    def forgetful(lm):
        lm += "x"

    with user(), pytest.raises(TypeError, match=r"forgetful returned nothing.*`return lm`"):
        Model(Stage("x")) + forgetful()


def test_dedent_keeps_closures_defaults_and_docstrings() -> None:
    name = "Ada"

    @program
    def greet(lm, end="!", *, mark="?"):
        """Greets.

        Twice.
        """
        with user():
            return (
                lm
                + f"""Hello
            {name}{end}{mark}"""
            )

    @program(dedent=False)
    def plain(lm):
        with user():
            return (
                lm
                + """a
            b"""
            )

    assert (Model(Stage("x")) + greet()).items[0].text == "Hello\nAda!?"
    assert (Model(Stage("x")) + plain()).items[0].text == "a\n            b"
    assert "Twice." in greet.__doc__


def test_a_space_before_a_gen_is_left_to_the_model_and_stays_in_the_text(pocket) -> None:
    lm = question(Model(pocket, temperature=0), "What is 2 + 3?")
    with assistant():
        spaced = list(lm.stream("2 + 3 =", " ", gen("sum")))
    assert spaced[-1].model.items[-1].text == "2 + 3 = " + spaced[-1].model["sum"]
    assert not spaced[-1].model["sum"].startswith(" ")
    assert "".join(map(str, spaced)) == spaced[-1].model.items[-1].text


def test_what_is_held_back_for_a_stop_is_shown_at_the_end() -> None:
    lm = Model(Script("one <st", "two"))
    with assistant():
        deltas = list(lm.stream(gen("x", stop="<stop>"), ". ", gen("y", stop_regex="o$")))
    assert "".join(map(str, deltas)) == "one <st. tw"
    assert deltas[-1].model.captures == {"x": "one <st", "y": "tw"}


async def test_a_program_that_is_cancelled_ends_in_its_thread() -> None:
    never, ended = asyncio.Event(), threading.Event()

    @program
    def hangs(lm):
        try:
            with assistant():
                return lm + gen("x")
        finally:
            ended.set()

    begun = asyncio.Event()

    async def begin() -> None:
        begun.set()

    task = asyncio.ensure_future(Model(Script([begin, never.wait])).run(hangs()))
    await begun.wait()
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert await asyncio.to_thread(ended.wait, 30)


def test_an_engine_that_gives_one_choice_is_asked_again_for_the_others() -> None:
    stage = Stage("a", "b", "c")
    with assistant():
        lm = Model(stage) + gen("x", n=3)
    assert sorted(lm["x"]) == ["a", "b", "c"]
    assert [request.sampling.n for request in stage.asked] == [3, None, None]


def test_deltas_have_all_of_the_text_whatever_the_means() -> None:
    lm = Model(Stage("Rude, I say.", "Hm."))
    with assistant():
        stream = lm.stream("So ", select(["friendly", "rude"], "x"), ".")
        assert "".join(map(str, stream)) == "So rude."


def test_thoughts_stand_before_the_message_of_their_turn() -> None:
    thinking = [Reasoning((Thought("Hm."),)), Message("assistant", (Text("so"),))]
    stage = Stage(thinking, "there")
    with assistant():
        lm = Model(stage) + "It is " + gen("x") + ", " + gen("y", suffix="!")
    assert lm.items == (Reasoning((Thought("Hm."),)), Message("assistant", "It is so, there!"))
    assert stage.asked[1].items[-1].text == "It is so, "


def test_calls_of_one_round_run_at_the_same_time_and_a_suffix_is_a_delta() -> None:
    both = threading.Barrier(2, timeout=30)

    def meet(who: str) -> str:
        """Meet."""
        both.wait()
        return who

    lm = Model(Stage([call("meet", "c1", who="a"), call("meet", "c2", who="b")], "Met"))
    with assistant():
        deltas = list(lm.stream(gen("x", tools=[meet], suffix="!")))
    assert [each.text for each in deltas if each.kind == "result"] == ["a", "b"]
    assert "".join(map(str, deltas)) == "Met!"


def test_a_capture_inside_a_grammar_has_its_own_tokens(pocket) -> None:
    lm = question(Model(pocket, temperature=0))
    with assistant():
        lm += "In " + grammar("year " + regex("[0-9]{4}", name="year") + "!", "all")
    text = "".join(token.text for token in lm.capture("year").tokens)
    assert lm["year"] in text
    assert lm.log_prob("all") <= lm.log_prob("year") < 0


def test_a_stateless_program_may_have_free_text() -> None:
    @program(stateless=True)
    def why(lm, name):
        return lm + "as " + gen(name) + "."

    with assistant():
        lm = Model(Stage("it is")) + why(name="x")
    assert (lm["x"], lm.items[-1].text) == ("it is", "as it is.")


def test_an_image_is_a_delta_without_text() -> None:
    with user():
        deltas = list(Model(Stage("x")).stream("See ", image("https://example.com/a.png"), "!"))
    assert [each.text for each in deltas] == ["See ", "", "!"]
    assert len(deltas[1].model.items[0].parts) == 2


def test_a_snapshot_has_a_list_with_what_has_come_so_far() -> None:
    lm = Model(Script("a b", "c d"))
    with assistant():
        lm += gen("l", list_append=True)
        with lm.stream(gen("l", list_append=True), gen("m")) as stream:
            seen = [delta.model.captures for delta in stream if delta.kind == "text"][:2]
    assert seen == [{"l": ["a b", "c"]}, {"l": ["a b", "c d"]}]


def test_a_list_is_not_captured_over_a_text() -> None:
    lm = Model(Script("a", "b", "c")).set("l", [])
    with assistant():
        lm += gen("text") + gen("l", list_append=True)
        with pytest.raises(ValueError, match="list_append: 'text' was captured before, without"):
            lm + gen("text", list_append=True)
    assert lm.load(lm.dump()).captures == lm.captures == {"text": "a", "l": ["b"]}


def test_a_stream_that_is_left_early_is_cancelled_without_async_too() -> None:
    never = asyncio.Event()
    lm = Model(Script([*opening("one"), never.wait]))
    with assistant(), lm.stream(gen("x")) as stream:
        assert str(next(stream)) == "one"
    assert stream.model["x"] == "one"
    assert "x" not in lm


def test_a_block_is_not_opened_inside_itself() -> None:
    inner = block("x")
    with inner, pytest.raises(ValueError, match="is open already"), inner:
        pass


def test_speech_that_is_refused_is_on_the_capture() -> None:
    with assistant():
        lm = Model(Stage(Message("assistant", (Refusal("No."),)))) + gen_audio("x")
    assert (lm.capture("x").end, lm.capture("x").refusal) == ("refused", "No.")


def test_a_notebook_shows_html(monkeypatch) -> None:
    shown = []
    display = SimpleNamespace(HTML=str, display=shown.append)
    notebook = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1), display=display)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with user():
        (Model(Stage("x")) + "Hello!").show()
    assert "Hello!" in shown[0]


def test_a_model_ends_the_processes_of_its_engine() -> None:
    closed = []

    class Closing(Stage):
        async def close(self) -> None:
            closed.append(True)

    lm = question(Model(Closing("x")))
    lm.close()
    assert closed == [True]
