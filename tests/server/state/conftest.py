"""What the tests of stored objects share: a new store of either kind, and a server around it."""

from collections.abc import AsyncIterator

import pytest

from dragoman.stores.sql import Store
from tests.server.state.storing import Server, opened, storing
from tests.server.stubs import Stub


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path) -> Store:
    return opened(request.param, tmp_path)


@pytest.fixture
async def server(store: Store) -> AsyncIterator[Server]:
    async with storing(Stub(), store) as server:
        yield server
