"""Opens WebSockets to other servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol

from .errors import ConnectError, DisconnectedError, InvalidUrlError, RemoteProtocolError


class RefusedError(RemoteProtocolError):
    """The server answered the handshake with a `status` and a `body`."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the server refused the WebSocket with {status}")
        self.status = status
        self.body = body


class WebSocket(Protocol):
    """One connection, of whole messages."""

    async def send(self, message: str) -> None:
        """Send a text. Returns when the connection takes more."""
        ...

    async def recv(self) -> str | bytes:
        """The next message."""
        ...

    async def close(self) -> None:
        """Say goodbye, and close."""
        ...


CLOSED = ConnectionClosed
"""What `send` and `recv` raise once the connection is closed, by whomever."""


async def open_websocket(
    url: str,
    headers: Mapping[str, str],
    subprotocols: Sequence[str] = (),
    *,
    within: float,
    max_size: int,
) -> WebSocket:
    """Connect, within so many seconds. Raises NetError: RefusedError where the server says why."""
    try:
        return await connect(
            url,
            additional_headers=dict(headers),
            subprotocols=[Subprotocol(each) for each in subprotocols] or None,
            open_timeout=within,
            max_size=max_size,
            compression=None,
        )
    except InvalidURI as error:
        raise InvalidUrlError(f"{url} is no WebSocket address") from error
    except InvalidStatus as error:
        raise RefusedError(error.response.status_code, bytes(error.response.body or b"")) from error
    except InvalidHandshake as error:
        raise RemoteProtocolError(f"the handshake failed: {error}") from error
    except ConnectionClosed as error:
        message = "the server closed the connection in the handshake"
        raise DisconnectedError(message, before_first_byte=True, reused=False) from error
    except (OSError, TimeoutError) as error:
        raise ConnectError(f"cannot connect to {url}: {str(error) or 'timed out'}") from error
