"""What the server's tests share: each of them can be run over every wire."""

import pytest

from tests.server.stubs import PATHS


@pytest.fixture(params=PATHS)
def wire(request) -> str:
    """The name of a wire."""
    return request.param
