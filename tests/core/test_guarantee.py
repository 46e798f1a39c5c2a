"""The word of how sure an answer is, carried by events and responses."""

import pytest

from dragoman.core.event import Finished, Started
from dragoman.core.fold import fold, unfold
from dragoman.core.request import (
    AllowedTools,
    FunctionTool,
    JSONObject,
    NamedTool,
    Namespace,
    Request,
    UnknownTool,
)
from dragoman.core.response import default_guarantee


def test_guarantee_of_the_end_wins_over_that_of_the_start() -> None:
    start = Started("1", 0, "m", guarantee="enforced")
    assert fold([start, Finished("completed")]).guarantee == "enforced"
    assert fold([start, Finished("completed", guarantee="best-effort")]).guarantee == "best-effort"
    verified = fold([Started("1", 0, "m"), Finished("completed", guarantee="verified")])
    assert fold(unfold(verified)) == verified


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        (Request(model="m"), None),
        (Request(model="m", format=JSONObject()), "best-effort"),
        (Request(model="m", extra={"chat": {"response_format": {"type": "regex"}}}), "best-effort"),
        (Request(model="m", extra={"chat": {"response_format": {"vendor": 1}}}), None),
        (
            Request(model="m", tools=(Namespace("n", (FunctionTool("f", strict=True),)),)),
            "best-effort",
        ),
        (Request(model="m", tools=(UnknownTool("chat", "x", {}),)), None),
        (Request(model="m", tool_choice=AllowedTools("auto", (NamedTool("f"),))), "best-effort"),
        (Request(model="m", tool_choice=NamedTool("f")), "best-effort"),
        (Request(model="m", tool_choice="required"), "best-effort"),
        (Request(model="m", tool_choice="none", tools=(FunctionTool("f", strict=True),)), None),
    ],
)
def test_default_guarantee_follows_the_constraints_of_the_request(
    request_: Request, word: str | None
) -> None:
    assert default_guarantee(request_) == word
