"""A request as a harmony prompt, piece by piece."""

import pytest
from msgspec import convert
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.item import Compaction, FunctionCall, FunctionCallOutput, ItemReference, Message
from dragoman.core.loss import LossList
from dragoman.core.request import FunctionTool, NamedTool, Namespace, Request
from dragoman.formats.format import Setting
from dragoman.formats.harmony import HARMONY
from dragoman.formats.harmony.tools import Toolkit
from tests.cases import cases

from .parsing import BYTES, TOOLS

USER = Message("user", "hi")
CHANNELS = (
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."
)
SYSTEM = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
    f"Knowledge cutoff: 2024-06\n\nReasoning: medium\n\n{CHANNELS}<|end|>"
)
OUTPUT = FunctionCallOutput("c1", "ok")
CASES = cases(__file__, "prompts")
"""Requests and their prompts, where `$SYSTEM` is the system message of a plain request."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_request_is_rendered_as_expected_and_losses_are_reported(case) -> None:
    setting = Setting(**case.get("setting", {}))
    prompt = HARMONY.render(convert(case["request"], Request), setting)
    assert prompt.text == case["prompt"].replace("$SYSTEM", SYSTEM)
    assert [[loss.field, loss.action] for loss in prompt.losses] == case.get("losses", [])


@pytest.mark.parametrize("items", [(USER, OUTPUT), (USER, OUTPUT, FunctionCall("c1", "f", "{}"))])
def test_r4_18_an_output_without_a_call_is_refused_by_name(items) -> None:
    with pytest.raises(FaultError) as refused:
        HARMONY.render(Request(model="m", items=items, instructions=(Message("system", "x"),)))
    fault = refused.value.fault
    assert (fault.code, fault.blame, fault.param) == (
        "invalid_request",
        "client",
        "input[1].call_id",
    )


def test_r4_20_the_assistant_is_next() -> None:
    pieces = HARMONY.render(Request(model="m", items=(USER,))).pieces
    assert [getattr(piece, "text", piece) for piece in pieces[-2:]] == ["<|start|>", "assistant"]
    assert HARMONY.stops(Request(model="m")).controls == (
        *("<|return|>", "<|call|>"),
        "<|endoftext|>",  # F11: models of raw vocabularies end with it
    )


def test_r4_w21_a_named_tool_is_called_at_once() -> None:
    request = replace(TOOLS, items=(USER,), tool_choice=NamedTool("f"))
    assert HARMONY.render(request).text.endswith(
        "<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
    )
    custom = replace(request, tool_choice=NamedTool("note", "custom", "crm"))
    assert HARMONY.render(custom).text.endswith("<|channel|>commentary to=crm.note<|message|>")


@pytest.mark.parametrize(
    ("item", "kind"),
    [(ItemReference("x"), "item_reference"), (Compaction("x"), "compaction")],
)
def test_item_that_only_its_maker_can_resolve_is_refused(item, kind) -> None:
    message = rf"^input\[1\]: the '{kind}' can only be resolved "
    with pytest.raises(FaultError, match=message) as refused:
        HARMONY.render(Request(model="m", items=(USER, item)))
    assert refused.value.fault.param == "input[1]"


def test_controls_are_tokens() -> None:
    ids = HARMONY.render(Request(model="m", items=(USER,))).ids(BYTES)
    assert [id for id in ids if id > 255] == [256, 259, 260, 256, 259, 260, 256]


HOSTED = {"tool": {}}
BROWSER = Namespace("browser", (FunctionTool("search"), FunctionTool("open")), extra=HOSTED)
PYTHON = FunctionTool("python", extra=HOSTED)


def test_r4_9_12_tools_of_the_server_stand_as_the_model_was_trained_with_them() -> None:
    text = HARMONY.render(Request(model="m", items=(USER,), tools=(BROWSER, PYTHON))).text
    system = text.partition("<|end|>")[0]
    parts = ["Reasoning: medium", "# Tools", "## browser", "## python", CHANNELS]
    assert [part for part in system.split("\n\n") if part in parts] == parts
    assert "} // namespace browser\n\n## python" in system
    assert "`【{cursor}†L{line_start}(-L{line_end})?】`" in system
    assert "functions" not in text
    assert "developer" not in text
    mine = HARMONY.render(Request(model="m", items=(USER,), tools=(replace(PYTHON, extra=None),)))
    assert "namespace functions {" in mine.text
    assert "# Tools" not in mine.text.partition("<|end|>")[0]


def test_r4_57_60_their_calls_and_outputs_stand_in_the_analysis_channel() -> None:
    calls = (
        FunctionCall("a", "search", '{"query": "cats"}', "browser"),
        FunctionCall("b", "python", '{"code": "print(1)"}'),
        FunctionCall("c", "python", "print(2)"),
        FunctionCall("d", "python", '{"not": "code"}'),
    )
    outputs = tuple(FunctionCallOutput(call.call_id, call.call_id.upper()) for call in calls)
    request = Request(model="m", items=(USER, *calls, *outputs), tools=(BROWSER, PYTHON))
    opening = "<|start|>assistant<|channel|>analysis to="
    assert HARMONY.render(request).text.partition("hi<|end|>")[2] == (
        f'{opening}browser.search code<|message|>{{"query": "cats"}}<|call|>'
        "<|start|>browser.search to=assistant<|channel|>analysis<|message|>A<|end|>"
        f"{opening}python code<|message|>print(1)<|call|>"
        "<|start|>python to=assistant<|channel|>analysis<|message|>B<|end|>"
        f"{opening}python code<|message|>print(2)<|call|>"
        "<|start|>python to=assistant<|channel|>analysis<|message|>C<|end|>"
        f'{opening}python code<|message|>{{"not": "code"}}<|call|>'
        "<|start|>python to=assistant<|channel|>analysis<|message|>D<|end|>"
        "<|start|>assistant"
    )


@pytest.mark.parametrize(
    ("recipient", "expected"),
    [
        ("python", ("function", "python", None)),
        ("functions.python", ("function", "python", None)),
        ("browser.search", ("function", "search", "browser")),
        ("functions.browser.open", ("function", "open", "browser")),
        ("browser.shut", ("function", "browser.shut", None)),
    ],
)
def test_r4_60_they_are_called_with_and_without_functions(recipient, expected) -> None:
    toolkit = Toolkit(Request(model="m", tools=(BROWSER, PYTHON)), LossList())
    found = toolkit.called_tool(recipient)
    assert found is not None
    assert (found.kind, found.name, found.namespace) == expected
