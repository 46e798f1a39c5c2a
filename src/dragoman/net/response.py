"""The answer to one request: status, headers, and a body that is read once, as it arrives.

It undoes content codings and bounds what is collected. What the bytes mean, and what to do
about a status, is for the reader.
"""

from collections.abc import AsyncIterator, Iterator

from dragoman.net.connection import Connection
from dragoman.net.decode import Decoder
from dragoman.net.error import TooLargeError

_CODINGS = (b"content-encoding", b"transfer-encoding")


class Headers:
    """Response headers: pairs in the order received, names in lower case."""

    __slots__ = ("raw",)

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        self.raw = raw

    def get(self, name: str) -> str | None:
        """The first value of `name` in any case, or None."""
        key = name.lower().encode()
        for field, value in self.raw:
            if field == key:
                return value.decode("latin-1")
        return None

    def get_all(self, name: str) -> list[str]:
        """Every value of `name`, in order."""
        key = name.lower().encode()
        return [value.decode("latin-1") for field, value in self.raw if field == key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for name, value in self.raw:
            yield name.decode("latin-1"), value.decode("latin-1")


class Response:
    """What `Client.stream` gives inside its `async with`; of no use after it.

    Reading raises DisconnectedError, RemoteProtocolError or NetTimeoutError if the body
    cannot be had whole; what came before has been handed out by then.
    """

    __slots__ = ("_connection", "_limit", "coded", "more", "status")

    def __init__(self, connection: Connection, limit: int) -> None:
        self.status = connection.status
        self._connection = connection
        self._limit = limit
        # Gives all that has arrived, `b""` at the end. Most bodies are not coded: then it is the
        # connection that is read, with nothing in between.
        self.more = connection.read
        self.coded = False
        for name, value in connection.headers:
            if name in _CODINGS and value != b"chunked":
                self.more = _Decoded(connection, _decoder(connection.headers)).read
                self.coded = True
                break

    @property
    def headers(self) -> Headers:
        """The headers of the answer."""
        return Headers(self._connection.headers)

    @property
    def reason(self) -> str:
        """The reason phrase of the status line, often empty."""
        return self._connection.reason.decode("latin-1")

    @property
    def trailers(self) -> Headers:
        """The headers that followed the body; known once it is read."""
        return Headers(self._connection.trailers)

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body: each chunk is all that had arrived, never empty.

        A coded body comes in pieces of bounded size.
        """
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = await self.more()
        if not chunk:
            raise StopAsyncIteration
        return chunk

    async def read(self, limit: int | None = None) -> bytes:
        """The rest of the body, whole, of at most `limit` bytes when decoded.

        Raises TooLargeError beyond that; by default the client's Limits.body_bytes counts.
        """
        limit = self._limit if limit is None else limit
        chunks: list[bytes] = []
        size = 0
        while chunk := await self.more():
            size += len(chunk)
            if size > limit:
                raise TooLargeError(
                    f"{self._connection.peer} sent a body of more than {limit} bytes"
                )
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def close(self) -> None:
        """Let go of the connection, which now belongs to others."""
        self.more = _closed


class _Decoded:
    """The body of a connection through a decoder, in pieces of bounded size."""

    def __init__(self, connection: Connection, decoder: Decoder) -> None:
        self._connection = connection
        self._decoder = decoder
        self._pieces: Iterator[bytes] = iter(())

    async def read(self) -> bytes:
        while True:
            for piece in self._pieces:
                return piece
            data = await self._connection.read()
            if not data:
                self._decoder.finish()
                return b""
            self._pieces = self._decoder.feed(data)


async def _closed() -> bytes:
    raise RuntimeError("the response was read outside its `async with`")


def _decoder(headers: list[tuple[bytes, bytes]]) -> Decoder:
    """What undoes the codings; chunking is undone already, and transfer codings came last."""
    contents: list[bytes] = []
    transfers: list[bytes] = []
    for name, value in headers:
        if name == b"content-encoding":
            contents += value.lower().split(b",")
        elif name == b"transfer-encoding":
            transfers += value.lower().split(b",")
    codings = [coding.strip().decode("latin-1") for coding in contents + transfers]
    return Decoder(coding for coding in codings if coding not in ("", "identity", "chunked"))
