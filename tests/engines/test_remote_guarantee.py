"""What a remote answer says of demands that only the server behind it knows of."""

import pytest
from msgspec.structs import replace

from dragoman.core.request import FunctionTool, JSONObject, Request
from tests.engines.asking import HELLO, HELLO_STREAM, ask, asking, remote


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("request_", "guarantee"),
    [
        (asking(), None),
        (asking(tools=(FunctionTool("f"),)), None),
        (asking(format=JSONObject()), "best-effort"),
        (asking(extra={"chat": {"guided_regex": "a+"}}), "best-effort"),
    ],
)
async def test_p34_a_demand_that_is_passed_on_is_best_effort(
    request_: Request, guarantee: str | None, stream: bool
) -> None:
    async with remote(HELLO_STREAM if stream else HELLO) as (engine, up):
        response = await ask(engine, replace(request_, stream=stream))
        (asked,) = up.asked
    assert response.guarantee == guarantee
    if request_.extra is not None:
        assert asked.json["guided_regex"] == "a+"  # its own wire carries it
