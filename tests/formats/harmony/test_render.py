"""A request as a harmony prompt, piece by piece."""

import pytest
from msgspec import convert
from msgspec.structs import replace

from dragoman.core.error import FaultError
from dragoman.core.item import Compaction, FunctionCall, FunctionCallOutput, ItemReference, Message
from dragoman.core.request import NamedTool, Request
from dragoman.formats.format import Setting
from dragoman.formats.harmony import HARMONY
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
