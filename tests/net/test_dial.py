"""Opening a connection where the system, or the moment, is not the usual one."""

import asyncio
import socket
from typing import Any

import pytest

from dragoman.net.client import Client
from dragoman.net.errors import TLSError
from tests.net.peer import Peer, answering, plain

pytestmark = pytest.mark.usefixtures("clean")


class Loop:
    """The running loop, which says of every handshake that its connection is gone."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def start_tls(self, *_: Any, **__: Any) -> None:
        """Gives no transport."""


async def test_a_peer_that_goes_as_the_handshake_ends_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    async with Peer(answering(plain(b"hello"))) as peer, Client(connect_retries=0) as client:
        with pytest.raises(TLSError, match="the peer closed the connection"):
            async with client.stream("GET", peer.url.replace("http:", "https:")):
                pass


async def test_a_system_without_settings_for_keepalive_will_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(socket, "TCP_KEEPIDLE")
    async with (
        Peer(answering(plain(b"hello"))) as peer,
        Client() as client,
        client.stream("GET", peer.url) as response,
    ):
        assert await response.read() == b"hello"
