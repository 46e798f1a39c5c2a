"""What the server's tests share: each of them can be run over every wire."""

import pytest


@pytest.fixture(params=["chat", "responses", "messages"])
def wire(request) -> str:
    """The name of a wire."""
    return request.param
