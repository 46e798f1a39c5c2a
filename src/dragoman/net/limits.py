"""How long a request may take, how much an answer may weigh, how many connections may stand.

Values only; what enforces them is the connection, the pool and the response.
"""

import msgspec


class Timeouts(msgspec.Struct, frozen=True):
    """Seconds allowed for each phase of a request; None is no limit.

    `connect` covers the wait for a free connection and, again from zero, everything up to
    the end of the TLS handshake; `first_byte` runs from the request's last byte to the end
    of the response headers; `idle` is the silence allowed inside a body.
    """

    connect: float | None = 10.0
    first_byte: float | None = 600.0
    idle: float | None = 600.0


class Limits(msgspec.Struct, frozen=True):
    """Bounds on what a peer can make us hold.

    `connections` and `idle_connections` are per origin; an idle connection is closed after
    `keep_alive` seconds. `header_bytes` bounds all that is not body: head, chunk extensions,
    trailers. `body_bytes` is the most that `Response.read` collects, decoded.
    """

    connections: int = 1000
    idle_connections: int = 100
    keep_alive: float = 15.0
    header_bytes: int = 64 * 1024
    header_count: int = 200
    body_bytes: int = 64 * 1024 * 1024
