"""llama.cpp's server in a process of its own, and log-probabilities aligned with its text."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.event import Delta, Event, Failed, Finished
from dragoman.core.fold import fold
from dragoman.core.interfaces import ANYONE, Caller
from dragoman.core.item import FunctionCall, FunctionCallOutput, Message, Reasoning, Text, Token
from dragoman.core.lifecycle import check
from dragoman.core.request import (
    FunctionTool,
    JSONObject,
    JSONSchema,
    Namespace,
    ReasoningOptions,
    Request,
    Sampling,
    completion_request,
)
from dragoman.core.response import Response
from dragoman.core.turn import Turn
from dragoman.engines import llamacpp as room
from dragoman.engines.llamacpp import (
    Aligner,
    Layout,
    LlamaCpp,
    bounded,
    check_request,
    lark_of,
    prepare,
    tokens_of_text,
)
from dragoman.engines.router import embed
from dragoman.engines.token.constraints import matches
from dragoman.engines.upstream import Answer
from dragoman.formats.grammar.demand import Choice, JSONBody, Lark, Regex
from tests.engines.stage import answered
from tests.upstream.llamacpp import MODEL_FILE, MODEL_FOLDER
from training.tiny.transcripts import HELLO

FILE = MODEL_FOLDER / MODEL_FILE
CONTEXT = 2048
LONG = 8192
"""A context in which a song is sung for half a minute: what is done meanwhile needs no hurry."""
WEATHER = FunctionTool(
    "get_weather",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


@pytest.fixture
async def engine() -> AsyncIterator[LlamaCpp]:
    made = prepare(FILE, threads=1, context=CONTEXT, gpu_layers=0)()
    yield made
    await made.close()


def asking(text: str) -> Request:
    return Request(
        model="tiny", items=(Message("user", text),), sampling=Sampling(temperature=0), stream=True
    )


async def test_gguf_model_has_no_embeddings(engine: LlamaCpp) -> None:
    with pytest.raises(FaultError, match="'tiny' has no embeddings"):
        await embed(engine, {"model": "tiny", "input": "a"}, ANYONE)


async def test_gguf_model_answers_in_text_and_in_calls(engine: LlamaCpp) -> None:
    assert (await answered(engine, asking("Hello!"))).text == HELLO
    wanted = replace(asking("What is the weather in Paris?"), tools=(WEATHER,))
    (call,) = (await answered(engine, wanted)).output
    assert (call.name, call.arguments) == ("get_weather", '{"city": "Paris"}')


async def test_the_listing_has_the_files_name_and_the_context(engine: LlamaCpp) -> None:
    (model,) = await engine.models()
    assert model.id == "tiny"
    assert (model.extra or {})["models"]["context_window"] == CONTEXT


async def test_llamacpp_server_requires_its_key(engine: LlamaCpp) -> None:
    body = b'{"messages": [{"role": "user", "content": "Hello!"}]}'
    request = urllib.request.Request(f"{engine.base_url}/chat/completions", body)
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        await asyncio.to_thread(urllib.request.urlopen, request)
    refused.value.close()


async def test_format_option_replaces_the_servers_template() -> None:
    engine = prepare(FILE, threads=1, context=CONTEXT, format=str(folder_of_the_template()))()
    assert (await answered(engine, asking("Hello!"))).text == HELLO
    await engine.close()


def folder_of_the_template() -> Path:
    """The pocket model's folder: both models read the same markup."""
    from dragoman.engines.pocket import FOLDER

    return FOLDER


SHAPE = JSONSchema("place", {"type": "object", "properties": {"city": {"enum": ["Rome"]}}})


@pytest.mark.parametrize("format", [SHAPE, JSONObject()])
async def test_the_tokens_of_a_demanded_form_are_those_of_its_text(
    engine: LlamaCpp, format
) -> None:
    trimmed = 0
    for seed in range(6):
        request = replace(
            asking("Think about Paris"),
            format=format,
            sampling=Sampling(temperature=1.5 if seed else 0, seed=seed, logprobs=True),
            max_output_tokens=30,
            stream=seed % 2 == 0,
        )
        assert await engine.prepare(request, ANYONE) is not None
        response = await answered(engine, request)
        assert tokens(response) == response.text
        raw = await answered(engine.engine, request)
        trimmed += tokens(raw) != raw.text
    assert trimmed  # else there is nothing left to align


async def test_tokens_without_a_format_are_as_llamacpp_sent_them(engine: LlamaCpp) -> None:
    request = replace(asking("Hello!"), sampling=Sampling(temperature=0, logprobs=True))
    assert await engine.prepare(request, ANYONE) is None
    prepared = await engine.prepare(replace(asking("Hello!"), format=SHAPE), ANYONE)
    assert prepared is not None
    assert prepared.map is None
    assert tokens(await answered(engine, request)) == HELLO


def tokens(response: Response) -> str:
    """The tokens of all that was said, put together."""
    messages = [item for item in response.output if isinstance(item, Message)]
    parts = [part for message in messages for part in message.parts if isinstance(part, Text)]
    return b"".join(token.bytes or b"" for part in parts for token in part.tokens).decode()


async def test_closing_stops_the_server_in_the_midst_of_a_song() -> None:
    engine = prepare(FILE, threads=1, context=LONG)()
    events = engine.stream(asking("Sing for ever."))
    async for event in events:
        if isinstance(event, Delta):
            break
    await asyncio.wait_for(engine.close(), 30)
    await events.aclose()
    with pytest.raises(urllib.error.URLError, match="refused"):
        await asyncio.to_thread(urllib.request.urlopen, engine.base_url)


async def test_f4_a_server_that_aborts_is_started_again(monkeypatch, caplog) -> None:
    monkeypatch.setattr(room, "PAUSES", (0.05, 1.0))
    engine = prepare(FILE, threads=1, context=LONG)()
    environ = Path(f"/proc/{engine.server.pid}/environ")
    if environ.exists():  # an abort would wait for a debugger
        assert b"GGML_NO_BACKTRACE=1" in environ.read_bytes()
    first = engine.server.pid
    events = engine.stream(asking("Sing for ever."))
    last = await anext(events)
    os.kill(first, signal.SIGABRT)
    async for event in events:
        last = event
    assert isinstance(last, Failed)
    assert last.fault.blame == "upstream"
    refused = False
    async with asyncio.timeout(60):
        while not isinstance(event := await end(engine), Finished):
            assert isinstance(event, Failed)
            # Refused by the system, or by a server that still reads its model.
            code = event.fault.code
            refused |= "llama.cpp ended, as it does at some requests" in event.fault.message
            assert code == "overloaded" or code.startswith("upstream_"), event.fault
            await asyncio.sleep(0.05)
    assert engine.server.pid != first
    assert refused
    assert "llama.cpp ended with status -6; it is started again in 0.05 s" in caplog.text
    await engine.close()


async def end(engine: LlamaCpp) -> Event:
    return [event async for event in engine.stream(asking("Hello!"))][-1]


async def test_a_server_that_cannot_be_started_again_is_tried_again(
    monkeypatch, caplog, tmp_path
) -> None:
    monkeypatch.setattr(room, "PAUSES", (0.01, 0.02))
    file = tmp_path / "copy.gguf"
    file.write_bytes(FILE.read_bytes())
    engine = prepare(file, threads=1, context=CONTEXT)()
    file.write_bytes(b"GGUF")
    os.kill(engine.server.pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        while caplog.text.count("llama.cpp ended again: llama.cpp cannot run") < 2:
            await asyncio.sleep(0.01)
    await engine.close()


ENDLESS = JSONSchema("x", {"type": "string", "pattern": "^((((a{0,99}){0,99}){0,99}){0,99})$"})
"""What llama.cpp makes a grammar of whose first token takes it minutes."""


async def test_a_server_that_does_not_go_on_is_ended_and_started_again(monkeypatch, caplog) -> None:
    monkeypatch.setattr(room, "PAUSES", (0.05, 1.0))
    monkeypatch.setattr(room, "LOOK", 0.1)
    monkeypatch.setattr(room, "PATIENCE", 2.0)
    engine = prepare(FILE, threads=1, context=CONTEXT)()
    first = engine.server.pid
    async with asyncio.timeout(60):
        held = replace(asking("a"), format=ENDLESS)  # past what is asked of it otherwise
        last = [event async for event in engine.engine.stream(held)][-1]
        assert isinstance(last, Failed)
        while not isinstance(await end(engine), Finished):
            await asyncio.sleep(0.05)
    assert engine.server.pid != first
    assert "llama.cpp was at one step for 2 s, and is ended" in caplog.text
    await engine.close()


async def test_a_server_that_works_for_many_is_not_ended(monkeypatch, caplog) -> None:
    monkeypatch.setattr(room, "LOOK", 0.01)
    monkeypatch.setattr(room, "PATIENCE", 20.0)
    engine = prepare(FILE, threads=1, context=CONTEXT)()
    first = engine.server.pid
    limited = replace(asking("Sing for ever."), max_output_tokens=100)
    answers = await asyncio.gather(*(answered(engine, limited) for _ in range(40)))
    assert all(answer.text for answer in answers)
    assert engine.server.pid == first
    assert not caplog.records
    await engine.close()


async def test_a_server_for_which_the_system_has_no_room_is_tried_again(
    monkeypatch, caplog
) -> None:
    monkeypatch.setattr(room, "PAUSES", (0.01, 0.02))
    engine = prepare(FILE, threads=1, context=CONTEXT)()
    spawn, tried = room.spawn, 0

    def none_left(*args: object) -> object:
        nonlocal tried
        tried += 1
        if tried <= 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return spawn(*args)

    monkeypatch.setattr(room, "spawn", none_left)
    os.kill(engine.server.pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        while not isinstance(await end(engine), Finished):
            await asyncio.sleep(0.05)
    assert tried == 3
    assert caplog.text.count("Too many open files") == 2
    await engine.close()


# ---- what cannot be served -----------------------------------------------------------------


def test_missing_extra_is_reported_with_its_install_command(monkeypatch) -> None:
    monkeypatch.setattr(room, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install '\.\[llamacpp\]' in the checkout\.$"):
        room.prepare(FILE)


def test_missing_or_foreign_file_is_reported(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"absent\.gguf is no file\.$"):
        room.prepare(tmp_path / "absent.gguf")
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK\x03\x04")
    with pytest.raises(ValueError, match=r"other\.gguf is no GGUF file\.$"):
        room.prepare(other)


def test_broken_file_is_reported(tmp_path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(FILE.read_bytes()[:5000])
    with pytest.raises(ValueError, match=re.escape(f"llama.cpp cannot run {broken}: ")):
        prepare(broken)()


@pytest.mark.parametrize("name", ["context", "parallel", "threads"])
def test_invalid_number_is_reported(name) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be at least 1, not 0"):
        room.prepare(FILE, **{name: 0})


def test_unknown_format_is_reported_before_loading() -> None:
    with pytest.raises(ValueError, match="There is no format 'moon'"):
        room.prepare(FILE, format="moon")


def token(text: str | bytes) -> Token:
    octets = text if isinstance(text, bytes) else text.encode()
    return Token(octets.decode("utf-8", "replace"), -1.0, octets, id=7)


def aligned(turn: Turn) -> list[Event]:
    """What an aligner makes of an answer, seen to be legal."""
    turn.finish("stop")
    turn.end(complete=True)
    aligner = Aligner()
    fed = [fit for event in turn.take() if (fit := aligner.feed(event)) is not None]
    check(fed)
    return fed


def said(events: list[Event]) -> list[tuple[str, list[str]]]:
    """Every text of an answer, with its tokens."""
    messages = [item for item in fold(events).output if isinstance(item, Message)]
    parts = [part for message in messages for part in message.parts if isinstance(part, Text)]
    return [(part.text, [each.text for each in part.tokens]) for part in parts]


@given(
    st.text("a \n`{é😀", max_size=6), st.lists(st.text('{"é😀a', min_size=1), min_size=1), st.data()
)
def test_tokens_before_the_text_are_cut_off(head, words, data) -> None:
    """Wherever the first token ends, inside a character too."""
    whole = (head + words[0]).encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole)))) | {len(whole)})
    pieces = [whole[a:b] for a, b in zip([0, *cuts], cuts, strict=False)]
    turn = Turn("1", 0, "m", think=None)
    turn.text("", 0, tuple(token(piece) for piece in pieces[:-1]))
    turn.text(words[0], 0, (token(pieces[-1]),))
    for each in words[1:]:
        turn.text(each, 0, (token(each),))
    (message,) = fold(aligned(turn)).output
    (part,) = message.parts
    assert b"".join(each.bytes or b"" for each in part.tokens) == "".join(words).encode()
    assert all(each.id == 7 and each.logprob == -1.0 for each in part.tokens)


@pytest.mark.parametrize(
    ("tokens", "text", "kept"),
    [
        (["a", "b"], "ab", ["a", "b"]),
        (["a", "b"], "xyz", ["a", "b"]),
        (["\n", ' {"'], '{"', ['{"']),
        (["aa"], "a", ["a"]),
        ([" ", "ab", "held back"], "ab", ["ab", "held back"]),
        (["", "a", ""], "a", ["", "a", ""]),
    ],
)
def test_a_text_is_looked_for_in_its_tokens(tokens, text, kept) -> None:
    assert [each.text for each in tokens_of_text(list(map(token, tokens)), text)] == kept


def test_reasoning_is_left_unchanged() -> None:
    turn = Turn("1", 0, "m", think=None)
    turn.reasoning("Hm", 0, (token(" Hm"),))
    turn.text("a", 0, (token(" a"),))
    turn.finish("stop")
    turn.end(complete=True)
    events = turn.take()
    aligner = Aligner()
    fed = [fit for event in events if (fit := aligner.feed(event)) is not None]
    check(fed)
    (thought, _) = fold(fed).output
    assert isinstance(thought, Reasoning)
    assert thought == fold(events).output[0]
    assert said(fed) == [("a", ["a"])]


DEEP = {"$ref": "#/$defs/d0", "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(999)}}
WIDE: dict[str, object] = {"type": "null"}
for _ in range(200):
    WIDE = {"items": WIDE}
TALL = {
    "$ref": "#/$defs/d0",
    "$defs": {
        f"d{n}": json.loads('{"items":' * 40 + f'{{"$ref": "#/$defs/d{n + 1}"}}' + "}" * 40)
        for n in range(99)
    },
}
FATAL = {
    "grammar": "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000,
    "json_schema": DEEP,
    "repeat_last_n": 10**9,
    "dry_penalty_last_n": 10**400,
    "grammar_triggers": [{"type": 2, "value": "((("}],
    "grammar_lazy": True,
    "chat_parser": "{}",
    "samplers": ["dry"] * 65,
    "logit_bias": [[n, 1] for n in range(20_000)],
}


@pytest.mark.parametrize("name", FATAL)
def test_a_field_that_would_end_llamacpp_is_refused(name) -> None:
    """All others would wait until it is started again."""
    asked = replace(asking("hi"), extra={"chat": {name: FATAL[name]}})
    with pytest.raises(FaultError) as refused:
        checked(asked)
    written = {"json_schema": "guided_json"}
    assert refused.value.fault.param == written.get(name, name)
    usual = {"grammar": 'root ::= "(((" [(]+ ("a")', "mirostat": 2, "lora": [{"id": 0}]}
    checked(replace(asking("hi"), extra={"chat": usual}))


def checked(request: Request) -> Request:
    """What is asked of llama.cpp where a request is made of a model that does not reason."""
    check_request(request)
    return bounded(request, Layout())[0]


HANGING = {
    "repetitions": "root ::= " + '"a"? ' * 800,
    "alternatives": "root ::= " + " | ".join(f'"{n}"' for n in range(2_500)) + ' | "(" root ")"',
}


@pytest.mark.parametrize("name", HANGING)
def test_a_grammar_that_would_hold_others_is_refused(name) -> None:
    with pytest.raises(FaultError) as refused:
        checked(replace(asking("hi"), extra={"chat": {"grammar": HANGING[name]}}))
    assert refused.value.fault.param == "grammar"


def test_a_grammar_that_is_slow_to_compile_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(room, "HELD", 0.0)
    with pytest.raises(FaultError, match=r"s to compile, and 0\.0 s are the most here") as refused:
        checked(replace(asking("hi"), extra={"chat": {"guided_regex": "a+"}}))
    assert refused.value.fault.param == "guided_regex"


DEMANDS = {
    "grammar": ('root ::= [x-z] | "(" [x-z] ")"', r"[x-z]|\([x-z]\)"),
    "guided_grammar": ('start: "b" | "c"', "[bc]"),
    "guided_regex": ("[a-c]{5}", "[a-c]{5}"),
    "guided_choice": (["Rome", "Bern"], "Rome|Bern"),
    "guided_json": ({"const": 3}, "3"),
    "json_schema": ({"const": 4}, "4"),
    "response_format": ({"type": "regex", "pattern": "y+"}, "y+"),
}


@pytest.mark.parametrize("name", DEMANDS)
async def test_a_demand_on_the_text_is_met_and_never_in_llamacpps_own_grammar(engine, name) -> None:
    demanded, pattern = DEMANDS[name]
    for wire in ("chat", "responses"):
        asked = replace(asking("hi"), extra={wire: {name: demanded}}, max_output_tokens=40)
        assert list(checked(asked).extra[wire]) == (["grammar"] if wire == "chat" else [])
        assert checked(asked).extra["chat"]["grammar"].startswith("%llguidance {")
        answer = await answered(engine, asked)
        assert re.fullmatch(pattern, answer.text), answer.text
        assert answer.guarantee == "best-effort"
    prompts = Request(model="tiny", max_output_tokens=40, extra={"completions": {name: demanded}})
    events = [event async for event in engine.complete("hi", prompts)]
    assert re.fullmatch(pattern, fold(events).text)


@pytest.mark.parametrize("format", [ENDLESS, JSONSchema("x", {"enum": list(range(2_000))})])
async def test_a_schema_is_met_in_a_grammar_that_has_bounds(engine, format) -> None:
    """llama.cpp's own grammar of each takes seconds, or for ever, for which all others wait."""
    asked = replace(asking("hi"), format=format)
    assert checked(asked).format is None
    assert "%json" in checked(asked).extra["chat"]["grammar"]
    limited = replace(asked, max_output_tokens=30)
    async with asyncio.timeout(30):
        assert (await answered(engine, limited)).status in ("completed", "incomplete")
        assert (await answered(engine, asking("Hello!"))).text == HELLO


async def test_reasoning_may_come_before_a_demanded_form(engine: LlamaCpp) -> None:
    asked = replace(asking("Think about Paris"), format=SHAPE)
    layout = await engine._layout(asked)
    assert layout == Layout("<think>", "</think>", begun=False)
    free = lark_of(JSONBody("format", {"const": 1}), layout)
    begun = lark_of(JSONBody("format", {"const": 1}), replace(layout, begun=True))
    plain = lark_of(JSONBody("format", {"const": 1}), Layout())
    for grammar, fit, unfit in (
        (free, ("1", "<think>a</think>\n\n1", "<think></think>1"), ("a</think>1", "<think>1")),
        (begun, ("a</think>\n1", "</think>1"), ("1", "a")),
        (plain, ("1",), ("<think>a</think>1",)),
    ):
        for text in fit:
            assert matches(Lark("", grammar), text), text
        for text in unfit:
            assert not matches(Lark("", grammar), text), text


@pytest.mark.parametrize(
    "body", [Choice("", ("yes", "no")), Regex("", "yes|no"), Lark("", 'start: "yes" | "no"')]
)
def test_a_demanded_text_comes_right_behind_the_reasoning(body) -> None:
    grammar = lark_of(body, Layout("<think>", "</think>", begun=True))
    for text, fits in (("a</think>yes", True), ("yes", False), ("a</think>\nno", False)):
        assert matches(Lark("", grammar), text) == fits, text


async def test_a_demanded_text_is_no_reasoning_that_the_prompt_opened(engine, monkeypatch) -> None:
    opened = Layout("<think>", "</think>", begun=True)
    monkeypatch.setattr(engine, "_layout", lambda request: asyncio.sleep(0, opened))
    asked = replace(asking("hi"), extra={"chat": {"guided_choice": ["yes", "no"]}})
    prepared = await engine.prepare(asked, ANYONE)
    assert "thought" in prepared.request.extra["chat"]["grammar"]
    prompt = completion_request(asked, ("hi",))
    prepared = await engine.prepare(prompt, ANYONE)
    assert "thought" not in prepared.request.extra["completions"]["grammar"]


@pytest.mark.parametrize("kwargs", [{"open": True}, None])
async def test_what_opens_reasoning_in_the_prompt_is_found_out(engine, monkeypatch, kwargs) -> None:
    sent: list[bytes] = []

    async def question(client, method, url, headers, body) -> Answer:
        sent.append(body)
        return Answer(200, None, {"prompt": "<think></think><assistant><think>"})

    monkeypatch.setattr(room, "question", question)
    extra = {"chat": {"chat_template_kwargs": kwargs, "top_k": 3}} if kwargs else None
    asked = replace(asking("hi"), extra=extra, reasoning=ReasoningOptions(effort="low"))
    assert (await engine._layout(asked)).begun
    (body,) = map(json.loads, sent)
    assert body.pop("messages")
    expected = {"chat_template_kwargs": kwargs} if kwargs else {}
    assert body == {**expected, "reasoning_effort": "low"}


async def test_without_a_known_layout_llamacpp_gets_a_narrower_schema(engine, monkeypatch) -> None:
    """Its own grammar has what comes before the text, in whatever markup."""
    engine.server.marks = None
    assert await engine._layout(asking("hi")) is None
    for format in (ENDLESS, JSONObject()):
        asked, _ = bounded(replace(asking("hi"), format=format), None)
        assert asked.format != ENDLESS
        assert isinstance(asked.format, type(format))
        assert not asked.extra
    limited = replace(asking("hi"), format=SHAPE, max_output_tokens=40)
    assert (await answered(engine, limited)).text == '{"city": "Rome"}'


@pytest.mark.parametrize("plain", [True, False])
async def test_a_text_is_demanded_only_where_its_place_is_known(engine, plain) -> None:
    """Else it would be met in the reasoning, and there would be no text after it."""
    engine.server.marks, engine.server.plain = None, plain
    asked = replace(asking("hi"), extra={"chat": {"guided_choice": ["Rome", "Bern"]}})
    if plain:
        assert (await answered(engine, asked)).text in ("Rome", "Bern")
        return
    with pytest.raises(FaultError, match=r"^guided_choice: cannot be met") as refused:
        await engine.prepare(asked, ANYONE)
    assert (refused.value.fault.param, refused.value.fault.blame) == ("guided_choice", "client")


def test_schemas_of_tools_are_narrowed_and_the_model_is_told_the_rest() -> None:
    schema = {"type": "object", "properties": {"city": ENDLESS.schema}, "required": ["city"]}
    tool = FunctionTool("f", parameters=schema)
    (first, group, bare) = checked(
        replace(
            asking("hi"), tools=(tool, Namespace("n", tools=(WEATHER, tool)), FunctionTool("g"))
        )
    ).tools
    city = first.parameters["properties"]["city"]
    assert list(city) == ["type", "description"]
    assert ENDLESS.schema["pattern"] in city["description"]
    assert group.tools == (WEATHER, first.__class__("f", parameters=first.parameters))
    assert bare.parameters is None
    same = replace(asking("hi"), tools=(WEATHER,))
    assert checked(same) is same


async def test_a_called_tool_with_an_endless_schema_holds_nobody(engine) -> None:
    schema = {"type": "object", "properties": {"city": ENDLESS.schema}, "required": ["city"]}
    tool = FunctionTool("get_weather", parameters=schema)
    asked = replace(asking("What is the weather in Paris?"), tools=(tool,), tool_choice="required")
    async with asyncio.timeout(30):
        (call,) = (await answered(engine, asked)).output
    assert call.arguments == '{"city": "Paris"}'


async def test_what_a_schema_asks_for_in_vain_is_a_loss(engine: LlamaCpp) -> None:
    schema = {"type": "array", "items": {"const": 1}, "uniqueItems": True}
    asked = replace(asking("hi"), format=JSONSchema("x", schema), max_output_tokens=40)
    losses = (await answered(engine, asked)).losses
    assert [loss.field for loss in losses] == ["format.schema.uniqueItems"]
    strict = replace(asked, format=JSONSchema("x", schema, strict=True))
    events = [event async for event in engine.stream(strict)]
    assert events[-1].fault.param == "format.schema.uniqueItems"


@pytest.mark.parametrize("schema", [DEEP, TALL], ids=["references", "levels"])
def test_a_schema_that_would_end_llamacpp_is_refused(schema) -> None:
    tool = FunctionTool("f", parameters=schema)
    check_request(replace(asking("hi"), format=JSONSchema("x", WIDE), tools=(WEATHER,)))
    for asked in (
        replace(asking("hi"), format=JSONSchema("x", schema)),
        replace(asking("hi"), tools=(Namespace("n", tools=(tool,)),)),
    ):
        with pytest.raises(FaultError, match=r"references|levels"):
            check_request(asked)


@pytest.mark.parametrize("size", [0, 100_000])
@pytest.mark.parametrize(
    "arguments", ['{"city": "Par', "", '{"a": NaN}', '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"]
)
async def test_a_conversation_goes_on_after_a_call_with_arguments_that_are_no_json(
    engine: LlamaCpp, arguments, size
) -> None:
    """Those that would end llama.cpp, too, and in a large request, which is read in a thread."""
    cut = FunctionCall("c", "get_weather", arguments)
    items = (Message("user", "hi"), cut, FunctionCallOutput("c", "Ask again."))
    asked = replace(asking("hi"), items=(*items, Message("user", "Hello!")), tools=(WEATHER,))
    events = [event async for event in engine.stream(asked, Caller(size=size))]
    if len(arguments) < CONTEXT:
        assert isinstance(events[-1], Finished)
        (loss,) = (each for event in events for each in getattr(event, "losses", ()))
        assert (loss.field, loss.action) == ("items[1].arguments", "emulated")
    else:
        assert events[-1].fault.upstream_code == "context_length_exceeded"
    assert engine.server.pause is None


async def test_each_choice_is_asked_for_by_itself(engine: LlamaCpp) -> None:
    """llama.cpp copies what it has read for several: where a client left, it then answered others
    from the prompt of that one."""
    assert not (await engine.capabilities("tiny")).choices
    several = replace(asking("Hello!"), sampling=Sampling(temperature=0, n=2))
    one, two = [(await answered(engine, each)).usage for each in (asking("Hello!"), several)]
    assert two.input_tokens == 2 * one.input_tokens
    with pytest.raises(FaultError, match="n_cmpl"):
        check_request(replace(asking("Hello!"), extra={"chat": {"n_cmpl": 2}}))


async def test_a_schema_with_an_address_is_enforced(engine: LlamaCpp) -> None:
    """llama.cpp's llguidance has no such format: it would pass the whole grammar over."""
    place = {"type": "object", "properties": {"url": {"type": "string", "format": "uri"}}}
    asked = replace(asking("Hello!"), format=JSONSchema("place", place, strict=True))
    assert (await answered(engine, replace(asked, max_output_tokens=5))).text.startswith('{"url"')


async def test_prompts_have_the_same_bounds(engine: LlamaCpp) -> None:
    asked = replace(asking("hi"), extra={"completions": {"grammar": FATAL["grammar"]}})
    events = [event async for event in engine.complete("hi", asked)]
    assert isinstance(events[-1], Failed)
    assert events[-1].fault.param == "grammar"
    events = [event async for event in engine.complete("hi", Request(model="tiny"))]
    assert isinstance(events[-1], Finished)
    assert engine.server.pause is None
